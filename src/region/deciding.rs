//! Checks that wait: for the disk, for units, for the leader.
//!
//! [`Region::decide`] (in `decide.rs`) is the same without strict limits. Order: reservations and local
//! limits in one step, again whenever units arrive; then, if the log has a part in it, one entry. What waits
//! has a deadline, and a caller that goes away gives its places back.

use std::sync::Arc;

use serde::Deserialize;
use serde::Serialize;
use smallvec::SmallVec;
use tokio::sync::mpsc;

use crate::domain::decision::Decision;
use crate::domain::limit::Durability;
use crate::domain::name::RegionName;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::grants::reservation::Ticket;
use crate::grants::reservation::Times;
use crate::grants::reservation::Verdict;
use crate::ledger::check::Item;
use crate::ledger::check::ItemOutcome;
use crate::ledger::check::Outcome;
use crate::ledger::check::Request;
use crate::ledger::check::Word;
use crate::ledger::hold::Receipt;
use crate::machine::charge::Answered;
use crate::machine::charge::Charge;
use crate::machine::charge::ChargeItem;
use crate::machine::charge::Charged;
use crate::machine::charge::Keyed;
use crate::machine::command::Command;
use crate::region::decide::Together;
use crate::region::proposals;
use crate::region::proposals::ProposeError;
use crate::region::reservations::Waiter;
use crate::region::state::Region;
use crate::region::strict;
use crate::region::strict::Parts;
use crate::region::strict::Stepped;

/// A check that the log decides waits at least so long for its commit, unless its caller wants less: once it is
/// proposed, giving up costs more than waiting, because nobody knows then what became of it.
const COMMIT_WAIT_MIN: Span = Span::from_ms(500);
/// How long the catalogue may take to follow the leader's.
const CATCH_UP: Span = Span::from_seconds(1);

/// How much later than its deadline a verdict may come.
const VERDICT_GRACE: Span = Span::from_seconds(1);

/// How a check that waits is to be decided.
#[derive(Clone, Debug, Default)]
pub struct Terms {
    /// The longest wait for the leader; `None`: as long as a refill may take.
    pub max_wait: Option<Span>,
    /// The caller's `Idempotency-Key`, when the log is to remember it.
    pub keyed: Option<Keyed>,
}

/// What a region adds to a check that the log decides, for whoever repeats it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Local {
    /// The region that was asked first.
    pub region: RegionName,
    /// The hold that it opened, and its end.
    pub hold: Option<(u128, Timestamp)>,
    /// What its own limits said, by place in the check.
    pub items: Vec<Option<ItemOutcome>>,
}

impl Answered {
    /// The whole answer: what the log said, and what the region that was asked first said.
    pub fn outcome(&self) -> Option<(Local, Outcome)> {
        let local: Local = postcard::from_bytes(&self.local).ok()?;
        let mut by_log = self.items.iter();
        let items = local
            .items
            .iter()
            .map(|told| told.or_else(|| by_log.next().copied()))
            .collect::<Option<_>>()?;
        let outcome = Outcome {
            allowed: true,
            items,
            receipts: self.receipts.clone(),
            records: Vec::new(),
            is_urgent: false,
        };
        Some((local, outcome))
    }
}

/// What came of a check with strict limits.
#[derive(Debug)]
pub enum Ended {
    /// It is decided.
    Decided(Outcome),
    /// Its key was answered before: this was said then, and of the local limits that.
    Repeated(Answered),
    /// Its key was used with another body.
    Mismatch,
    /// A limit is another one by now: look it up again.
    Changed,
}

/// The places of a check that waits; given back when it is dropped.
struct Places<'a, 'b> {
    region: &'a Region,
    parts: &'a Parts<'b>,
    waiter: Waiter,
    verdicts: mpsc::Receiver<(Ticket, Verdict)>,
    tickets: SmallVec<[Option<Ticket>; 2]>,
}

impl Drop for Places<'_, '_> {
    fn drop(&mut self) {
        let mut effects = Vec::new();
        let boot = self.region.clock.boot();
        for (want, ticket) in self.parts.wants.iter().zip(&self.tickets) {
            let Some(ticket) = *ticket else { continue };
            self.region.reservations.forget(ticket);
            self.region
                .reservations
                .with(&want.account, boot, |reservation, now| {
                    reservation.done(ticket, now, &mut effects);
                });
        }
        self.region.carry_out(effects);
    }
}

impl<'a, 'b> Places<'a, 'b> {
    fn new(region: &'a Region, parts: &'a Parts<'b>) -> Self {
        let (waiter, verdicts) = region.reservations.waiter();
        Self {
            region,
            parts,
            waiter,
            verdicts,
            tickets: smallvec::smallvec![None; parts.wants.len()],
        }
    }

    /// Waits at the reservations that are short; gives the first word that any of them has, and whose.
    async fn wait(&mut self, short: &[usize], times: Times) -> Option<(usize, Verdict)> {
        let mut effects = Vec::new();
        let boot = self.region.clock.boot();
        for place in short {
            let want = &self.parts.wants[*place];
            let ticket = *self.tickets[*place]
                .get_or_insert_with(|| self.region.reservations.ticket(&self.waiter));
            let waits = self
                .region
                .reservations
                .with(&want.account, boot, |reservation, now| {
                    reservation.wait(ticket, want.units, times, now, &mut effects);
                });
            // Between the step and here an untouched reservation may have been let go: the step makes it anew.
            if waits.is_none() {
                self.region.carry_out(effects);
                tokio::task::yield_now().await;
                return Some((*place, Verdict::Retry));
            }
        }
        self.region.carry_out(effects);
        // Reservations give their word by the deadline; a caller does not hang on a word that was lost.
        let patience = times.deadline.minus(boot).plus(VERDICT_GRACE);
        let told = tokio::time::timeout(patience.to_std(), self.verdicts.recv()).await;
        let Ok(told) = told else {
            return Some((*short.first()?, Verdict::OutOfReach));
        };
        let (ticket, verdict) = told?;
        let place = self
            .tickets
            .iter()
            .position(|known| *known == Some(ticket))?;
        Some((place, verdict))
    }
}

impl Region {
    /// Decides a check that has strict limits, however long it takes. `together` says what goes to disk with
    /// an allowed one.
    pub async fn decide_strict(
        self: &Arc<Self>,
        request: &Request<'_>,
        terms: &Terms,
        together: impl Fn(&Outcome) -> Together,
    ) -> Ended {
        let Some(parts) = strict::parts(request, terms.keyed.is_some()) else {
            return Ended::Decided(self.decide(request, together).await);
        };
        let is_sync = |item: &Item<'_>| item.cost > 0 && item.limit.durability == Durability::Sync;
        // What the log decides is on a majority's disks; the region's own charges are kept as their limits say.
        let needs_disk = request.hold.is_some() || request.items.iter().any(is_sync);
        let stepped = self
            .reserve(request, &parts, terms, needs_disk, &together)
            .await;
        let outcome = match stepped {
            Ended::Decided(outcome) => outcome,
            other => return other,
        };
        let policy_decided = parts.led.iter().any(|place| outcome.items[*place].degraded);
        if !outcome.allowed || parts.led.is_empty() || policy_decided {
            self.debts.note(request, &outcome);
            return Ended::Decided(outcome);
        }
        let ended = self.have_charged(request, &parts, terms, outcome).await;
        let Ended::Decided(mut outcome) = ended else {
            return ended;
        };
        self.debts.note(request, &outcome);
        if needs_disk && outcome.allowed && !outcome.records.is_empty() {
            // The log has its part; this region's own part is on disk before the answer too.
            let kept = together(&outcome).with(&mut outcome, request.now);
            if self.store.keep(kept).await.is_err() {
                for (told, item) in outcome.items.iter_mut().zip(request.items) {
                    *told = strict::unknown(item.limit, request.now);
                }
                outcome = settled(outcome);
            }
        }
        Ended::Decided(outcome)
    }

    /// The part that this region decides: reservations and local limits.
    async fn reserve(
        &self,
        request: &Request<'_>,
        parts: &Parts<'_>,
        terms: &Terms,
        needs_disk: bool,
        together: &impl Fn(&Outcome) -> Together,
    ) -> Ended {
        let came = self.clock.boot();
        let times = Times {
            came,
            deadline: came.plus(self.max_wait(terms)),
        };
        let mut places = Places::new(self, parts);
        loop {
            let stepped = if needs_disk && parts.led.is_empty() {
                self.step_to_disk(request, parts, &places.tickets, together)
                    .await
            } else {
                let asked = Request {
                    store_failed: self.store.is_failed(),
                    ..*request
                };
                self.step(&asked, parts, &places.tickets)
            };
            let short = match stepped {
                Stepped::Decided(outcome) => return Ended::Decided(outcome),
                Stepped::Short(short) => short,
            };
            let Some((place, verdict)) = places.wait(&short, times).await else {
                return Ended::Changed;
            };
            let want = &parts.wants[place];
            match verdict {
                Verdict::Retry => {}
                Verdict::Changed { version } => {
                    self.catch_up(version).await;
                    return Ended::Changed;
                }
                Verdict::Closed => return Ended::Changed,
                Verdict::Dry { .. } | Verdict::OutOfReach | Verdict::Capacity => {
                    // Final: the ticket is forgotten there.
                    if let Some(ticket) = places.tickets[place].take() {
                        self.reservations.forget(ticket);
                    }
                    let boot = self.clock.boot();
                    let view = self
                        .reservations
                        .with(&want.account, boot, |reservation, now| {
                            reservation.view(now)
                        });
                    let seen = view.flatten().map(strict::seen);
                    let word = strict::verdict_word(want, verdict, seen, request.now);
                    let outcome = self.by_word(request, parts, place, word);
                    return Ended::Decided(outcome);
                }
            }
        }
    }

    /// Decides the whole check now that one of its reservations has said its last word.
    fn by_word(
        &self,
        request: &Request<'_>,
        parts: &Parts<'_>,
        place: usize,
        word: Option<Word>,
    ) -> Outcome {
        let word = word.unwrap_or(Word::OutOfReach);
        let words = strict::last_words(request, parts, place, word);
        self.ledger.check(&Request {
            words: &words,
            ..*request
        })
    }

    async fn step_to_disk(
        &self,
        request: &Request<'_>,
        parts: &Parts<'_>,
        tickets: &[Option<Ticket>],
        together: &impl Fn(&Outcome) -> Together,
    ) -> Stepped {
        let by_policy = || {
            self.ledger.check(&Request {
                store_failed: true,
                ..*request
            })
        };
        let Ok(permit) = self.store.keep_permit().await else {
            return Stepped::Decided(by_policy());
        };
        let (outcome, keeping) = {
            let _order = self.order.lock();
            let asked = Request {
                store_failed: self.store.is_failed(),
                keep: true,
                ..*request
            };
            let mut outcome = match self.step(&asked, parts, tickets) {
                Stepped::Decided(outcome) => outcome,
                short @ Stepped::Short(_) => return short,
            };
            if asked.store_failed || outcome.records.is_empty() {
                return Stepped::Decided(outcome);
            }
            let kept = together(&outcome).with(&mut outcome, request.now);
            (outcome, permit.send(kept))
        };
        if keeping.wait().await.is_ok() {
            return Stepped::Decided(outcome);
        }
        // Units that were spent from a reservation stay spent: nobody else can have them.
        self.undo(request, &outcome);
        Stepped::Decided(by_policy())
    }

    /// How long a check may wait for the leader.
    pub fn max_wait(&self, terms: &Terms) -> Span {
        let usual = self.reservations.exchange().max_wait();
        terms.max_wait.map_or(usual, |wait| wait.min(usual))
    }

    /// Waits for the catalogue of version `version`, a moment at most.
    async fn catch_up(&self, version: u64) {
        let Some(consensus) = self.consensus() else {
            return;
        };
        let mut applied = consensus.applied();
        let caught_up =
            async { while self.view().version() < version && applied.changed().await.is_ok() {} };
        if tokio::time::timeout(CATCH_UP.to_std(), caught_up)
            .await
            .is_err()
        {
            tracing::debug!(version, "the catalogue is still behind the leader's");
        }
    }

    /// The part that the log decides; the rest has been charged.
    async fn have_charged(
        self: &Arc<Self>,
        request: &Request<'_>,
        parts: &Parts<'_>,
        terms: &Terms,
        mut outcome: Outcome,
    ) -> Ended {
        let charge = self.charge_of(request, parts, terms, &outcome);
        let number = charge.request.number;
        let usual = self.reservations.exchange().max_wait().max(COMMIT_WAIT_MIN);
        let patience = terms.max_wait.map_or(usual, |wait| wait.min(usual));
        let started = self.clock.stopwatch();
        let charged = self
            .propose_until_known(Command::Charge(charge), patience)
            .await;
        self.requests.answered(number);
        match charged.map(proposals::charged) {
            Ok(Ok(Charged::Allowed(answered))) => {
                self.reservations.charged(started.elapsed());
                tell_charged(request, parts, answered, &mut outcome);
                Ended::Decided(outcome)
            }
            Ok(Ok(Charged::Repeated(answered))) => {
                self.undo(request, &outcome);
                Ended::Repeated(answered)
            }
            Ok(Ok(Charged::Mismatch)) => {
                self.undo(request, &outcome);
                Ended::Mismatch
            }
            Ok(Ok(Charged::Stale { version })) => {
                self.undo(request, &outcome);
                self.catch_up(version).await;
                Ended::Changed
            }
            Ok(Ok(Charged::Refused(items))) => {
                self.undo(request, &outcome);
                for (place, told) in parts.led.iter().zip(items) {
                    outcome.items[*place] = told;
                }
                Ended::Decided(settled(outcome))
            }
            Ok(not_taken @ (Ok(Charged::NotTaken(_)) | Err(_))) => {
                tracing::debug!(?not_taken, "the log did not decide a check");
                self.undo(request, &outcome);
                for place in &parts.led {
                    let limit = request.items[*place].limit;
                    outcome.items[*place] = strict::no_capacity(limit, request.now);
                }
                Ended::Decided(settled(outcome))
            }
            Err(ProposeError::OutcomeUnknown(_)) => {
                for place in &parts.led {
                    let limit = request.items[*place].limit;
                    outcome.items[*place] = strict::unknown(limit, request.now);
                }
                Ended::Decided(settled(outcome))
            }
            Err(ProposeError::Unavailable(_) | ProposeError::Refused(_)) => {
                self.undo(request, &outcome);
                let mut words: strict::Words =
                    smallvec::smallvec![Word::Judge; request.items.len()];
                for place in &parts.led {
                    words[*place] = Word::OutOfReach;
                }
                let by_policy = self.ledger.check(&Request {
                    words: &words,
                    ..*request
                });
                Ended::Decided(by_policy)
            }
        }
    }

    fn charge_of(
        &self,
        request: &Request<'_>,
        parts: &Parts<'_>,
        terms: &Terms,
        outcome: &Outcome,
    ) -> Charge {
        let boot = self.clock.boot();
        let items = parts.led.iter().map(|place| {
            let item = &request.items[*place];
            let account = strict::account(request.tenant, item);
            let told = self
                .reservations
                .with(&account, boot, |reservation, now| {
                    reservation.take_for_charge(item.cost, now)
                })
                .flatten();
            ChargeItem {
                limit: item.limit.name.clone(),
                key: item.key.into(),
                epoch: item.epoch,
                units: item.cost,
                window: None,
                told,
            }
        });
        let items = items.collect();
        // What the region's own limits said, for whoever repeats the request.
        let items_here = outcome.items.iter().enumerate();
        let local = Local {
            region: self.name.clone(),
            hold: request.hold,
            items: items_here
                .map(|(place, told)| (!parts.led.contains(&place)).then_some(*told))
                .collect(),
        };
        Charge {
            request: self.requests.next(self.reservations.holder()),
            tenant: request.tenant.into(),
            items,
            hold: request.hold,
            keyed: terms.keyed.clone(),
            local: postcard::to_allocvec(&local).unwrap_or_default(),
            up_to: false,
        }
    }

    /// Counts units that the log charged beside the region's own use.
    pub fn count(&self, tenant: &str, item: Item<'_>, now: Timestamp) {
        let word = Word::Decided(strict::held(item.limit, None, item.cost, now));
        self.ledger.check(&Request {
            now,
            boot: self.clock.boot(),
            tenant,
            items: &[item],
            hold: None,
            keep: false,
            store_failed: false,
            judge_only: false,
            words: &[word],
        });
    }

    /// Proposes a request that counts once however often it is proposed: asks again while the outcome is not
    /// known, by the next leader too.
    pub async fn propose_until_known(
        self: &Arc<Self>,
        command: Command,
        patience: Span,
    ) -> Result<crate::machine::command::Reply, ProposeError> {
        let started = self.clock.stopwatch();
        let mut may_count = false;
        loop {
            let left = patience.minus(started.elapsed());
            let tried = self.propose(command.clone(), left).await;
            match tried {
                Ok(done) => return Ok(done.reply),
                Err(ProposeError::OutcomeUnknown(why)) => {
                    may_count = true;
                    if patience.minus(started.elapsed()).is_zero() {
                        return Err(ProposeError::OutcomeUnknown(why));
                    }
                }
                Err(ProposeError::Unavailable(why)) if may_count => {
                    return Err(ProposeError::OutcomeUnknown(why));
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// Puts the words and receipts of the log in. Its units are counted here already, beside the region's own use;
/// what goes back goes back to where the log charged it.
fn tell_charged(
    request: &Request<'_>,
    parts: &Parts<'_>,
    answered: Answered,
    outcome: &mut Outcome,
) {
    let led = |receipt: &Receipt| {
        let counter = &receipt.counter;
        parts
            .led
            .iter()
            .map(|place| &request.items[*place])
            .any(|item| item.limit.name == counter.limit && item.key == counter.key)
    };
    outcome.receipts.retain(|receipt| !led(receipt));
    outcome.receipts.extend(answered.receipts);
    for (place, told) in parts.led.iter().zip(answered.items) {
        outcome.items[*place] = told;
    }
}

/// Says whether all of it was allowed, after some of its words changed.
fn settled(mut outcome: Outcome) -> Outcome {
    outcome.allowed = outcome
        .items
        .iter()
        .all(|told| told.decision == Decision::Allow);
    outcome
}
