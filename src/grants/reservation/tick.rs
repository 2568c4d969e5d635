//! What happens because time passes.

use crate::domain::time::Span;
use crate::grants::message::Report;
use crate::grants::message::ToLeader;
use crate::grants::reservation::Effect;
use crate::grants::reservation::Now;
use crate::grants::reservation::Reservation;
use crate::grants::reservation::Spend;
use crate::grants::reservation::Ticket;
use crate::grants::reservation::Verdict;
use crate::grants::reservation::held::Held;
use crate::grants::reservation::judge_dry;
use crate::grants::reservation::queue::Queue;

/// The totals of a window are kept this long after its end, beyond any doubt about clocks.
const PAST_KEPT: Span = Span::from_seconds(10);

impl Reservation {
    /// Does what is due: deadlines, asks that were not answered, reports, units of the next window, windows
    /// that begin or end. Gives [`Reservation::due`], or `None` when nothing is due until the next input.
    pub fn tick(&mut self, now: &Now<'_>, out: &mut Vec<Effect>) -> Option<Span> {
        self.settle(now);
        self.serve(now, out);
        self.expire_waiters(now, out);
        self.refill_waiting(now, out);
        self.prefetch(now, out);
        self.give_idle(now);
        self.report(now, out);
        self.past
            .take_if(|past| past.until.plus(PAST_KEPT) <= now.boot);
        self.plan(now);
        (self.due != Span::MAX).then_some(self.due)
    }

    /// Asks only for checks that wait: without new checks there is nothing to hold more for.
    fn refill_waiting(&mut self, now: &Now<'_>, out: &mut Vec<Effect>) {
        self.expire_flights(now);
        if self.queue.is_some() {
            self.refill(now, out);
        }
    }

    /// A bucket of which nothing is drawn earns nothing until the leader knows that something was spent.
    pub(super) fn tell_full_bucket(&mut self, now: &Now<'_>, out: &mut Vec<Effect>) {
        let Some(held) = &mut self.current else {
            return;
        };
        if !held.is_of_full_bucket() {
            return;
        }
        held.told_totals(now.boot);
        out.push(Effect::Send(ToLeader::Report(Report {
            holder: self.holder.clone(),
            account: self.account.clone(),
            window: held.window.id,
            totals: held.totals,
            demand: self.demand.now(),
            recall: 0,
        })));
    }

    /// What nobody wanted for a while of a bucket goes back: it earns no more than it has room for.
    fn give_idle(&mut self, now: &Now<'_>) {
        let nobody_waits = self.queue.as_ref().is_none_or(|queue| queue.is_empty());
        if nobody_waits
            && let Some(held) = &mut self.current
            && held.idle_at() <= now.boot
        {
            held.give(held.units(), now.boot);
        }
    }

    /// Tells changed totals.
    fn report(&mut self, now: &Now<'_>, out: &mut Vec<Effect>) {
        let demand = self.demand.now();
        let windows = [&mut self.past, &mut self.current, &mut self.next];
        for held in windows.into_iter().flatten() {
            if held.report_is_due(now.boot) {
                out.push(Effect::Send(ToLeader::Report(Report {
                    holder: self.holder.clone(),
                    account: self.account.clone(),
                    window: held.window.id,
                    totals: held.totals,
                    demand,
                    recall: 0,
                })));
            }
        }
    }

    /// Gives a verdict to those whose deadline has come.
    pub(super) fn expire_waiters(&mut self, now: &Now<'_>, out: &mut Vec<Effect>) {
        let Some(queue) = &mut self.queue else {
            return;
        };
        let before = queue.first_deadline();
        while let Some(waiter) = queue.overdue(now.boot) {
            let free = match &self.current {
                Some(held) if held.is_usable(now.boot) => {
                    held.units().saturating_sub(queue.promised())
                }
                _ => 0,
            };
            let was_answered = self.answered.is_some_and(|boot| boot >= waiter.came);
            let held = self.current.as_ref();
            let is_dry = held.is_some_and(|held| held.believed_dry(now.boot).is_some());
            let verdict = if free >= waiter.units {
                // What it lacks is another limit, which has the last word.
                queue.put_late(waiter);
                Verdict::Retry
            } else if was_answered || is_dry {
                let retry_after = held.map_or(super::RETRY_AFTER_MIN, |held| held.retry_after(now));
                Verdict::Dry { retry_after }
            } else {
                Verdict::OutOfReach
            };
            out.push(Effect::Wake(waiter.ticket, verdict));
        }
        if queue.first_deadline() != before {
            self.serve(now, out);
            self.return_surplus(now, out);
        }
    }

    /// A check that came to wait while the leader's word says that nothing is to be had.
    pub(super) fn refuse_when_dry(&mut self, ticket: Ticket, now: &Now<'_>, out: &mut Vec<Effect>) {
        let (Some(queue), Some(held)) = (&mut self.queue, &self.current) else {
            return;
        };
        if queue.is_asleep(ticket)
            && let Spend::Dry { retry_after } = judge_dry(held, now)
        {
            queue.remove(ticket);
            out.push(Effect::Wake(ticket, Verdict::Dry { retry_after }));
        }
    }

    /// Finds when the next thing is due, after anything changed.
    pub(super) fn plan(&mut self, now: &Now<'_>) {
        self.queue.take_if(|queue| queue.is_empty());
        let report = |held: &Option<Held>| held.as_ref().map_or(Span::MAX, |held| held.report_at);
        let mut due = report(&self.past)
            .min(report(&self.current))
            .min(report(&self.next))
            .min(self.prefetch_at(now));
        if let Some(held) = &self.current {
            due = due.min(held.until);
            if self.queue.is_none() {
                due = due.min(held.idle_at().max(now.boot));
            }
        }
        if let Some(past) = &self.past {
            due = due.min(past.until.plus(PAST_KEPT));
        }
        let lost = self.flights.iter().map(|flight| flight.gives_up).min();
        due = due.min(lost.unwrap_or(Span::MAX));
        if let Some(queue) = &self.queue {
            due = due.min(self.queue_due(queue, now));
        }
        self.due = due;
    }

    fn queue_due(&self, queue: &Queue, now: &Now<'_>) -> Span {
        let deadline = queue.first_deadline().unwrap_or(Span::MAX);
        let begins = self
            .current
            .as_ref()
            .map_or(Span::MAX, |held| held.from)
            .max(now.boot);
        let is_running = self
            .current
            .as_ref()
            .is_some_and(|held| held.is_usable(now.boot));
        let begins = if is_running { Span::MAX } else { begins };
        let rest = queue.next_rest(now.boot).unwrap_or(Span::MAX);
        deadline.min(begins).min(rest).min(self.next_ask(now))
    }
}
