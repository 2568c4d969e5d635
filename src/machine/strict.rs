//! Deciding checks that have strict limits: the step over a region's reservations and counters, and what is told of it.
//!
//! ```text
//! local limits are looked at first ──► a refusal there asks nobody
//! reservations ─ all have the units ─► one atomic step charges everything
//!              └ some are short ─────► wait for the leader, then the whole step again
//! what the leader decides itself ────► the local part is charged, then one entry of the log; a refusal there
//!                                      undoes the local part, an unknown outcome undoes nothing
//! ```
//!
//! A strict limit with windows, or a token bucket, is spent from this region's reservation, unless the check has an
//! `Idempotency-Key` or another strict limit of a kind that the log decides: then the log decides all of its
//! strict limits in one entry. A limit that refuses nobody (unlimited, shadow, a key that is always allowed)
//! is counted here and asks nobody.

use smallvec::SmallVec;

use crate::algorithm::Standing;
use crate::algorithm::bucket::Flow;
use crate::algorithm::bucket::Level;
use crate::domain::decision::DecidedBy;
use crate::domain::decision::Decision;
use crate::domain::decision::Reason;
use crate::domain::limit::Limit;
use crate::domain::limit::Mode;
use crate::domain::limit::Rule;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::domain::time::Window;
use crate::grants::account::Account;
use crate::grants::account::Holder;
use crate::grants::account::PoolStanding;
use crate::grants::account::Quota;
use crate::grants::reservation;
use crate::grants::reservation::Effect;
use crate::grants::reservation::Now;
use crate::grants::reservation::RETRY_AFTER_MIN;
use crate::grants::reservation::Reservation;
use crate::grants::reservation::Spend;
use crate::grants::reservation::Ticket;
use crate::grants::reservation::Verdict;
use crate::ledger::Ledger;
use crate::ledger::check::Item;
use crate::ledger::check::ItemOutcome;
use crate::ledger::check::Outcome;
use crate::ledger::check::Request;
use crate::ledger::check::UNAVAILABLE_RETRY_AFTER;
use crate::ledger::check::Word;
use crate::machine::Machine;
use crate::machine::charge::bucket_wait;
use crate::machine::charge::has_reservations;
use crate::machine::charge::level_of;

/// Words for the items of a check.
pub type Words = SmallVec<[Word; 2]>;

/// One strict limit of a check whose units come from a reservation.
#[derive(Clone, Debug)]
pub struct Want<'a> {
    /// Its place in the check.
    pub place: usize,
    /// The counter.
    pub account: Account,
    /// The limit.
    pub limit: &'a Limit,
    /// Units; 0 looks.
    pub units: u64,
}

/// The reservations of a check, locked: nobody else looks at them until the step is over.
pub trait Seats {
    /// The reservation of `want`; made when there is none and units are wanted. `None`: there is none, or no room for
    /// one more.
    fn get(&mut self, want: &Want<'_>, boot: Span) -> Option<&mut Reservation>;
}

/// A check with strict limits, and where it has waited.
#[derive(Clone, Copy, Debug)]
pub struct Strict<'a, 'r, 'p> {
    /// The check.
    pub request: &'a Request<'r>,
    /// Its strict part.
    pub parts: &'a Parts<'p>,
    /// Tickets of the wants that have waited, by place among the wants.
    pub tickets: &'a [Option<Ticket>],
}

/// The strict part of a check.
#[derive(Clone, Debug, Default)]
pub struct Parts<'a> {
    /// What comes from reservations.
    pub wants: SmallVec<[Want<'a>; 2]>,
    /// Places of what the log decides.
    pub led: SmallVec<[usize; 2]>,
}

/// What came of one step.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "a box would cost every strict check an allocation"
)]
pub enum Stepped {
    /// It is decided, and charged if it was allowed.
    Decided(Outcome),
    /// Nothing happened: these wants lack units.
    Short(SmallVec<[usize; 2]>),
}

/// Whether `item` is one that a strict limit can refuse.
pub fn is_strict(item: &Item<'_>) -> bool {
    item.limit.mode == Mode::Strict && item.limit.enforce && !item.limit.never_refuses(item.key)
}

/// The counter of an item.
pub fn account(tenant: &str, item: &Item<'_>) -> Account {
    Account {
        tenant: tenant.into(),
        limit: item.limit.name.clone(),
        key: item.key.into(),
        epoch: item.epoch,
    }
}

/// The strict part of a check; `None` when it has none.
pub fn parts<'a>(request: &Request<'a>, is_keyed: bool) -> Option<Parts<'a>> {
    let strict = || {
        request
            .items
            .iter()
            .enumerate()
            .filter(|(_, item)| is_strict(item))
    };
    strict().next()?;
    let is_led = strict()
        .any(|(_, item)| item.cost > 0 && (is_keyed || !has_reservations(&item.limit.rule)));
    let mut parts = Parts::default();
    for (place, item) in strict() {
        if is_led && item.cost > 0 {
            parts.led.push(place);
        } else {
            parts.wants.push(Want {
                place,
                account: account(request.tenant, item),
                limit: item.limit,
                units: item.cost,
            });
        }
    }
    Some(parts)
}

/// One atomic step over reservations and counters. Items that the log decides are looked past: their time comes later.
/// `looked` says what a look is told, of a want and how its reservation stands.
pub fn step(
    strict: Strict<'_, '_, '_>,
    now: &Now<'_>,
    seats: &mut impl Seats,
    ledger: &Ledger,
    looked: impl Fn(&Want<'_>, Option<reservation::View>) -> ItemOutcome,
    effects: &mut Vec<Effect>,
) -> Stepped {
    let Strict {
        request,
        parts,
        tickets,
    } = strict;
    let mut words = words(request, parts);
    let mut short: SmallVec<[usize; 2]> = SmallVec::new();
    let mut dry: SmallVec<[usize; 2]> = SmallVec::new();
    for (place, want) in parts.wants.iter().enumerate() {
        if want.units == 0 {
            let view = seats.get(want, now.boot).and_then(|found| found.view(now));
            words[want.place] = Word::Decided(looked(want, view));
            continue;
        }
        if want.units > want.limit.rule.quota() {
            let look = Want {
                units: 0,
                ..want.clone()
            };
            let view = seats.get(&look, now.boot).and_then(|found| found.view(now));
            words[want.place] = Word::Decided(never(looked(&look, view)));
            continue;
        }
        let ticket = tickets.get(place).copied().flatten();
        let Some(reservation) = seats.get(want, now.boot) else {
            words[want.place] = Word::OutOfReach;
            continue;
        };
        let spend = reservation.can_spend(want.units, ticket, now);
        let view = reservation.view(now);
        words[want.place] = Word::Decided(match spend {
            Spend::Ready | Spend::Short => {
                held(want.limit, view.map(seen), want.units, request.now)
            }
            Spend::Dry { retry_after } => refused(
                want.limit,
                view.map(seen),
                want.units,
                retry_after,
                request.now,
            ),
        });
        match spend {
            Spend::Ready => {}
            Spend::Short => short.push(place),
            Spend::Dry { .. } => dry.push(place),
        }
    }
    let asked = Request {
        words: &words,
        judge_only: request.judge_only || !short.is_empty(),
        ..*request
    };
    let mut outcome = ledger.check(&asked);
    for place in dry {
        let want = &parts.wants[place];
        if let Some(reservation) = seats.get(want, now.boot) {
            reservation.refuse(want.units, now, effects);
        }
    }
    if outcome.allowed && !short.is_empty() {
        return Stepped::Short(short);
    }
    if outcome.allowed && !asked.judge_only {
        for (place, want) in parts.wants.iter().enumerate() {
            let is_spent =
                want.units > 0 && outcome.items[want.place].decided_by == DecidedBy::Reservation;
            if is_spent && let Some(reservation) = seats.get(want, now.boot) {
                let ticket = tickets.get(place).copied().flatten();
                // It was ready a moment ago, under the same lock and at the same instant.
                let spent = reservation.spend(want.units, ticket, now);
                debug_assert!(spent.is_some(), "what is ready can be spent");
                // Units go back to the window of the log, not to that of this region's clock.
                let of = &request.items[want.place];
                let receipt = outcome.receipts.iter_mut().find(|receipt| {
                    receipt.counter.limit == of.limit.name && receipt.counter.key == of.key
                });
                if let (Some(receipt), Some(window)) = (receipt, spent) {
                    receipt.window = window;
                }
                reservation.after_spend(now, effects);
            }
        }
    }
    Stepped::Decided(outcome)
}

/// Words of the items that are not wanted from reservations: what the log decides is looked past, and a strict limit
/// that refuses nobody is counted.
fn words(request: &Request<'_>, parts: &Parts<'_>) -> Words {
    let mut words: Words = smallvec::smallvec![Word::Judge; request.items.len()];
    for place in &parts.led {
        let item = &request.items[*place];
        words[*place] = Word::Decided(held(item.limit, None, item.cost, request.now));
    }
    words
}

/// What a look is told: by the reservation of the process `holder`, else by what its region knows of the log.
pub fn looked(
    machine: &Machine,
    holder: &Holder,
    request: &Request<'_>,
    want: &Want<'_>,
    view: Option<reservation::View>,
) -> ItemOutcome {
    let item = &request.items[want.place];
    if !has_reservations(&want.limit.rule) {
        return machine.look(request.tenant, item, request.now);
    }
    let seen = seen_by_log(machine, holder, want, view, request.now);
    let left = seen.map_or(want.limit.rule.quota(), |seen| seen.remaining);
    let told = held(want.limit, seen, 0, request.now);
    if left == 0 {
        // What is used comes back with the next window; what others hold may come back any moment.
        let is_used_up = seen.is_some_and(|seen| seen.used >= want.limit.rule.quota());
        let retry_after = if is_used_up {
            told.standing.reset_after
        } else {
            RETRY_AFTER_MIN
        };
        refused(want.limit, seen, 1, retry_after, request.now)
    } else {
        ItemOutcome {
            decided_by: DecidedBy::Local,
            ..told
        }
    }
}

/// How the window stands that a reservation serves, or else that runs, by the log and by what the process `holder` has
/// spent. The leader's last word to the reservation may be of any age, and older than a refund.
fn seen_by_log(
    machine: &Machine,
    holder: &Holder,
    want: &Want<'_>,
    view: Option<reservation::View>,
    now: Timestamp,
) -> Option<Seen> {
    let Some(view) = view else {
        let (window, standing) = machine.seen(&want.account, now)?;
        return Some(Seen::new(want.limit, window, &standing, 0, now));
    };
    let standing = machine.book().standing_at(
        now.max(machine.log_time()),
        &want.account,
        view.window.id,
        Some(holder),
    );
    Some(standing.map_or_else(
        || seen(view),
        |standing| Seen::new(want.limit, view.window, &standing, view.spent, now),
    ))
}

/// How a window stands, for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The window.
    pub window: Window,
    /// Units known to be used.
    pub used: u64,
    /// Units left.
    pub remaining: u64,
    /// A bucket's amounts and its level.
    pub bucket: Option<(Flow, Level)>,
}

impl Seen {
    /// By the book, and what this process has spent, which it knows better.
    fn new(
        limit: &Limit,
        window: Window,
        standing: &PoolStanding,
        spent: u64,
        now: Timestamp,
    ) -> Self {
        let bucket = level_of(&limit.rule, standing, now).map(|(flow, mut level)| {
            level.draw(&flow, spent.saturating_sub(standing.used_by_holder));
            (flow, level)
        });
        if let Some((flow, level)) = bucket {
            let stands = level.standing(&flow);
            return Self {
                window,
                used: stands.used,
                remaining: stands.remaining,
                bucket,
            };
        }
        let used = reservation::used(standing, spent);
        let left = standing.quota.saturating_sub(used);
        Self {
            window,
            used,
            remaining: left.saturating_sub(standing.stranded),
            bucket,
        }
    }
}

/// What an answer tells of a reservation's view.
pub const fn seen(view: reservation::View) -> Seen {
    Seen {
        window: view.window,
        used: view.used,
        remaining: view.remaining,
        bucket: view.bucket,
    }
}

fn outcome(limit: &Limit, seen: Option<Seen>, now: Timestamp) -> ItemOutcome {
    let window = seen
        .map(|seen| seen.window)
        .filter(|window| !window.is_endless());
    let bucket = seen.and_then(|seen| seen.bucket);
    let full_in = bucket.map_or(Span::ZERO, |(flow, level)| level.wait(&flow));
    ItemOutcome {
        decision: Decision::Allow,
        reason: None,
        would_deny: false,
        degraded: false,
        decided_by: DecidedBy::Reservation,
        standing: Standing {
            used: seen.map_or(0, |seen| seen.used),
            remaining: seen.map_or(limit.rule.quota(), |seen| seen.remaining),
            reset_after: window.map_or(full_in, |window| window.end.since(now)),
        },
        retry_after: None,
        delay: Span::ZERO,
        window_start: window.map(|window| window.start),
        calendar_length: window
            .filter(|_| matches!(limit.rule, Rule::CalendarWindow { .. }))
            .map(|window| window.end.since(window.start)),
    }
}

/// Units are here.
pub fn held(limit: &Limit, seen: Option<Seen>, units: u64, now: Timestamp) -> ItemOutcome {
    let mut told = outcome(limit, seen, now);
    told.standing.used = told.standing.used.saturating_add(units);
    told.standing.remaining = told.standing.remaining.saturating_sub(units);
    if let Some((flow, mut level)) = seen.and_then(|seen| seen.bucket) {
        level.draw(&flow, units);
        told.standing = level.standing(&flow);
    }
    told
}

/// The leader said that there are none.
pub fn refused(
    limit: &Limit,
    seen: Option<Seen>,
    units: u64,
    retry_after: Span,
    now: Timestamp,
) -> ItemOutcome {
    let mut told = outcome(limit, seen, now);
    told.decision = Decision::Deny;
    told.reason = Some(Reason::QuotaExceeded);
    told.decided_by = DecidedBy::Leader;
    told.retry_after = Some(retry_after.max(RETRY_AFTER_MIN));
    match seen.and_then(|seen| seen.bucket) {
        None => told.standing.remaining = 0,
        bucket => {
            if let Some(wait) = bucket_wait(bucket, units) {
                told.retry_after = Some(wait);
            }
        }
    }
    told
}

/// No window has so many units; `looked` is how it stands.
const fn never(looked: ItemOutcome) -> ItemOutcome {
    ItemOutcome {
        decision: Decision::Deny,
        reason: Some(Reason::CostExceedsQuota),
        decided_by: DecidedBy::Local,
        retry_after: None,
        ..looked
    }
}

/// It may have been charged.
pub fn unknown(limit: &Limit, now: Timestamp) -> ItemOutcome {
    ItemOutcome {
        decision: Decision::Deny,
        reason: Some(Reason::OutcomeUnknown),
        decided_by: DecidedBy::Leader,
        retry_after: Some(UNAVAILABLE_RETRY_AFTER),
        ..outcome(limit, None, now)
    }
}

/// There is no room to count it.
pub fn no_capacity(limit: &Limit, now: Timestamp) -> ItemOutcome {
    ItemOutcome {
        decision: Decision::Deny,
        reason: Some(Reason::Unavailable),
        decided_by: DecidedBy::Leader,
        retry_after: Some(UNAVAILABLE_RETRY_AFTER),
        ..outcome(limit, None, now)
    }
}

/// The final word of a reservation on a check that waited, as it is told.
pub fn verdict_word(
    want: &Want<'_>,
    verdict: Verdict,
    seen: Option<Seen>,
    now: Timestamp,
) -> Option<Word> {
    match verdict {
        Verdict::Dry { retry_after } => {
            let told = refused(want.limit, seen, want.units, retry_after, now);
            Some(Word::Decided(told))
        }
        Verdict::OutOfReach => Some(Word::OutOfReach),
        Verdict::Capacity => Some(Word::Decided(no_capacity(want.limit, now))),
        Verdict::Retry | Verdict::Changed { .. } | Verdict::Closed => None,
    }
}

/// What is told to a check whose reservation at `place` has said its last word, which is `word`, and of its other wants.
pub fn last_words(request: &Request<'_>, parts: &Parts<'_>, place: usize, word: Word) -> Words {
    let mut words: Words = smallvec::smallvec![Word::Judge; request.items.len()];
    for (index, want) in parts.wants.iter().enumerate() {
        words[want.place] = match word {
            // A refusal is this limit's own. Nothing is charged, so of the others nothing is said.
            Word::Decided(_) if index != place => {
                Word::Decided(held(want.limit, None, 0, request.now))
            }
            // The leader is out of reach for all of them.
            word => word,
        };
    }
    words
}

/// The length of a limit's windows, for rates; of a calendar window the period's usual length, of a bucket the
/// time in which it fills.
pub fn window_length(rule: &Rule) -> Span {
    match rule {
        Rule::FixedWindow { window, .. } => *window,
        Rule::CalendarWindow { calendar, .. } => {
            let window = calendar.window(Timestamp::EPOCH);
            window.end.since(window.start)
        }
        rule => Quota::of(rule)
            .flow()
            .map_or(Span::from_seconds(60), Flow::time_to_refill),
    }
}
