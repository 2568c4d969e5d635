//! The atomic step: judge every limit of a check, then charge all of them or none.
//!
//! The shards of all items are locked in index order before the first look and released after the last
//! charge, so parallel checks in one region are one after another for every counter they share. A new
//! counter's place is taken before anything is charged: a full ledger is found out while nothing has been
//! written.

use parking_lot::MutexGuard;
use serde::Deserialize;
use serde::Serialize;
use smallvec::SmallVec;

use crate::algorithm::Standing;
use crate::algorithm::concurrency::Lease;
use crate::catalogue::intern::LimitId;
use crate::domain::decision::DecidedBy;
use crate::domain::decision::Decision;
use crate::domain::decision::Reason;
use crate::domain::limit::Limit;
use crate::domain::limit::Mode;
use crate::domain::stamp::Stamp;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::ledger::Ledger;
use crate::ledger::counter::Counter;
use crate::ledger::counter::Entries;
use crate::ledger::counter::Mark;
use crate::ledger::exchange::Reference;
use crate::ledger::hold::Receipt;
use crate::ledger::judge::Able;
use crate::ledger::judge::judge;
use crate::ledger::mesh::Mesh;
use crate::ledger::shard::Entry;
use crate::ledger::shard::Name;
use crate::ledger::shard::Place;
use crate::ledger::shard::Shard;
use crate::usage::record::CounterId;
use crate::usage::record::CounterRecord;

/// When a caller who met a failed store should try again.
pub const UNAVAILABLE_RETRY_AFTER: Span = Span::from_seconds(1);

/// One limit of a check.
#[derive(Clone, Copy, Debug)]
pub struct Item<'a> {
    /// The limit as it holds for the tenant and the key.
    pub limit: &'a Limit,
    /// The number of its name.
    pub id: LimitId,
    /// Its epoch for the tenant and the key.
    pub epoch: u64,
    /// The key; empty when the limit has none.
    pub key: &'a str,
    /// Units asked for; 0 only looks.
    pub cost: u64,
}

/// A check.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Region time.
    pub now: Timestamp,
    /// Boot time, which approximate limits measure demand by; not read for others.
    pub boot: Span,
    /// Who asks.
    pub tenant: &'a str,
    /// What is asked; no (limit, key) twice.
    pub items: &'a [Item<'a>],
    /// A hold's number and end, when units are to be held.
    pub hold: Option<(u128, Timestamp)>,
    /// Whether receipts and records of the charges are wanted.
    pub keep: bool,
    /// Whether the store cannot keep the answer, so that each limit follows its policy.
    pub store_failed: bool,
    /// Whether nothing is to be charged: what would be said is all that is wanted.
    pub judge_only: bool,
    /// What is known of each item from elsewhere; empty: nothing, all are judged here.
    pub words: &'a [Word],
}

/// What is known of an item from elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// Nothing: it is judged by its counter here.
    Judge,
    /// It was decided; what is charged is counted here and held against nothing.
    Decided(ItemOutcome),
    /// Whoever decides it cannot be reached: the limit's failure policy decides.
    OutOfReach,
}

/// What one limit said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ItemOutcome {
    /// Yes or no.
    pub decision: Decision,
    /// Why not.
    pub reason: Option<Reason>,
    /// A shadow limit would have said no.
    pub would_deny: bool,
    /// Decided by the failure policy.
    pub degraded: bool,
    /// What the answer rests on.
    pub decided_by: DecidedBy,
    /// How the limit stands after this check.
    pub standing: Standing,
    /// When the same check can pass; `None` where waiting cannot help.
    pub retry_after: Option<Span>,
    /// How long a leaky bucket makes this call wait.
    pub delay: Span,
    /// Start of the window, of limits that have windows.
    pub window_start: Option<Timestamp>,
    /// Length of the running calendar window.
    pub calendar_length: Option<Span>,
}

/// What a check came to.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Whether every limit said yes (and so was charged).
    pub allowed: bool,
    /// What each said, in the order asked.
    pub items: SmallVec<[ItemOutcome; 2]>,
    /// What was charged, if asked to keep it.
    pub receipts: Vec<Receipt>,
    /// The charged counters for disk, if asked to keep them.
    pub records: Vec<CounterRecord>,
    /// Whether a counter came so near its limit that peers are to be told at once.
    pub is_urgent: bool,
}

/// Where an item's counter stands.
enum Spot {
    /// In its shard.
    Placed(Place),
    /// Not in the ledger; a place is taken if `reserved`.
    New {
        counter: Box<Counter>,
        reserved: bool,
    },
    /// The counter is in a newer epoch of another shape: the limit that this caller still holds is over. It
    /// is judged as if unused, before the change, and charged nowhere.
    Past(Box<Counter>),
}

struct Candidate {
    guard: usize,
    hash: u32,
    spot: Spot,
    /// Whether the units were there: what passes for another reason is counted, but not drawn from a bucket.
    admitted: bool,
}

type Guards<'a> = SmallVec<[(usize, MutexGuard<'a, Shard>); 2]>;

impl Request<'_> {
    fn word(&self, index: usize) -> Word {
        self.words.get(index).copied().unwrap_or(Word::Judge)
    }

    /// When the window began in which the units of the item at `index` lie, where its word says so.
    fn lies_in(&self, index: usize) -> Option<Timestamp> {
        match self.word(index) {
            Word::Decided(told) if told.decided_by == DecidedBy::Reservation => told.window_start,
            _ => None,
        }
    }

    /// Whether the counter here says how the item at `index` stands.
    fn stands_here(&self, index: usize) -> bool {
        !matches!(self.word(index), Word::Decided(_))
    }
}

impl Ledger {
    /// Decides a check and charges it if every limit says yes.
    pub fn check(&self, request: &Request<'_>) -> Outcome {
        let located: SmallVec<[(usize, u32); 2]> = request
            .items
            .iter()
            .map(|item| self.locate(item.id, request.tenant, item.key))
            .collect();
        let mut guards = self.lock(located.iter().map(|(shard, _)| *shard));
        let mut candidates: SmallVec<[Candidate; 2]> = SmallVec::with_capacity(request.items.len());
        for (item, (shard, hash)) in request.items.iter().zip(located) {
            let guard = guards
                .iter()
                .position(|(locked, _)| *locked == shard)
                .unwrap_or(0);
            let shard = &mut guards[guard].1;
            let candidate = find(shard, guard, hash, request, item);
            candidates.push(candidate);
        }
        let mut items: SmallVec<[ItemOutcome; 2]> = SmallVec::with_capacity(request.items.len());
        let is_shared = |item: &Item<'_>| item.limit.mode == Mode::Approximate;
        let mesh = request
            .items
            .iter()
            .any(is_shared)
            .then(|| self.mesh.load());
        let mesh = mesh.as_deref().map(|mesh| &**mesh);
        for (index, item) in request.items.iter().enumerate() {
            let room = self.reserve(&mut candidates, index, &mut guards, request);
            let candidate = &mut candidates[index];
            let mut counter = prepared(candidate, &mut guards, item, request.now);
            // Whoever only judges looks at a copy, which tells it each time.
            if item.limit.mode == Mode::Approximate
                && !request.judge_only
                && let Some(ended) = counter
                    .as_mut()
                    .and_then(|counter| counter.take_ended(&item.limit.rule))
            {
                self.note_ended(ended);
            }
            let (told, admitted) = match request.word(index) {
                Word::Decided(told) if room && !request.store_failed => (told, false),
                word => {
                    let able = Able {
                        room,
                        reachable: word != Word::OutOfReach,
                        mesh,
                    };
                    judge(counter, item, request, &able)
                }
            };
            candidate.admitted = admitted;
            items.push(told);
        }
        let allowed = items
            .iter()
            .all(|outcome| outcome.decision == Decision::Allow);
        let mut outcome = Outcome {
            allowed,
            items,
            receipts: Vec::new(),
            records: Vec::new(),
            is_urgent: false,
        };
        if allowed && !request.judge_only {
            self.charge_all(request, candidates, &mut guards, &mut outcome, mesh);
        } else {
            for (index, ((item, told), mut candidate)) in request
                .items
                .iter()
                .zip(&mut outcome.items)
                .zip(candidates)
                .enumerate()
            {
                if told.decision == Decision::Allow
                    && request.stands_here(index)
                    && let Some(counter) = prepared(&mut candidate, &mut guards, item, request.now)
                {
                    told.standing = counter.standing(&item.limit.rule, request.now);
                }
                match candidate.spot {
                    Spot::New { reserved: true, .. } => self.forget_key(request.tenant),
                    // What is asked for and refused is demand, which peers share by.
                    // A remainder that can never be granted is no news however often it is asked for.
                    Spot::Placed(place)
                        if item.limit.mode == Mode::Approximate
                            && told.standing.remaining >= item.cost.max(1) =>
                    {
                        let shard = &mut guards[candidate.guard].1;
                        let wants = |entry: &mut Entry| entry.counter.wants_to_tell(request.boot);
                        if shard.get(place).is_some_and(wants) {
                            shard.mark_unsent(place);
                        }
                    }
                    _ => {}
                }
            }
        }
        outcome
    }

    /// Locks the shards, each once, in index order.
    fn lock(&self, shards: impl Iterator<Item = usize>) -> Guards<'_> {
        let mut wanted: SmallVec<[usize; 2]> = shards.collect();
        wanted.sort_unstable();
        wanted.dedup();
        wanted
            .into_iter()
            .map(|shard| (shard, self.shards[shard].lock()))
            .collect()
    }

    /// Takes a place for a counter that the check at `index` would make; false when there is none.
    ///
    /// All counters of the check have been found by now, so making room spares them: one that is dead is
    /// about to be charged.
    fn reserve(
        &self,
        candidates: &mut [Candidate],
        index: usize,
        guards: &mut Guards<'_>,
        request: &Request<'_>,
    ) -> bool {
        let guard = candidates[index].guard;
        if request.judge_only
            || request.items[index].cost == 0
            || !matches!(candidates[index].spot, Spot::New { .. })
        {
            return true;
        }
        let mut room = self.admit_key(request.tenant, false);
        if !room {
            let found: SmallVec<[Place; 2]> = candidates
                .iter()
                .filter(|other| other.guard == guard)
                .filter_map(|other| match other.spot {
                    Spot::Placed(place) => Some(place),
                    Spot::New { .. } | Spot::Past(_) => None,
                })
                .collect();
            self.relieve(&mut guards[guard].1, request.now, &found);
            room = self.admit_key(request.tenant, false);
        }
        if !room {
            self.refused_keys
                .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
        if let Spot::New { reserved, .. } = &mut candidates[index].spot {
            *reserved = room;
        }
        room
    }

    fn charge_all(
        &self,
        request: &Request<'_>,
        candidates: SmallVec<[Candidate; 2]>,
        guards: &mut Guards<'_>,
        outcome: &mut Outcome,
        mesh: Option<&Mesh>,
    ) {
        for (index, ((item, candidate), told)) in request
            .items
            .iter()
            .zip(candidates)
            .zip(&mut outcome.items)
            .enumerate()
        {
            let (shard_index, shard) = &mut guards[candidate.guard];
            if item.cost == 0 {
                continue;
            }
            let place = match candidate.spot {
                Spot::Placed(place) => place,
                Spot::Past(counter) => {
                    told.standing = counter.standing(&item.limit.rule, request.now);
                    continue;
                }
                Spot::New {
                    reserved: false, ..
                } => continue,
                Spot::New {
                    counter,
                    reserved: true,
                } => {
                    let name = Name::new(item.id, request.tenant, item.key);
                    shard.insert(candidate.hash, name, *counter)
                }
            };
            let Some(counter) = shard.change(place) else {
                continue;
            };
            let mark = match request.lies_in(index) {
                Some(start) => counter.charge_in(&item.limit.rule, start, item.cost, request.now),
                None => charge(counter, item, request, candidate.admitted),
            };
            let standing = counter.standing(&item.limit.rule, request.now);
            counter.note_life(&item.limit.rule, &standing, request.now);
            if request.stands_here(index) {
                told.standing = standing;
            }
            if item.limit.mode == Mode::Approximate
                && let Some(mesh) = mesh
                && counter.wants_push(item.limit, mesh, request.boot, standing.remaining)
            {
                self.urgent.lock().push(Reference::of(*shard_index, place));
                outcome.is_urgent = true;
            }
            if request.keep {
                let id = CounterId {
                    limit: item.limit.name.clone(),
                    tenant: request.tenant.into(),
                    key: item.key.into(),
                };
                outcome.receipts.push(Receipt {
                    counter: id.clone(),
                    epoch: counter.epoch,
                    window: mark.window,
                    at: request.now,
                    entry: Stamp {
                        start: self.start,
                        count: mark.entry,
                    },
                    units: item.cost,
                });
                outcome.records.push(counter.record(
                    id,
                    self.actors.own(),
                    self.start,
                    Entries::From(mark.entry),
                ));
            }
        }
    }
}

/// Charges what was allowed.
fn charge(counter: &mut Counter, item: &Item<'_>, request: &Request<'_>, admitted: bool) -> Mark {
    let rule = &item.limit.rule;
    // A bucket's level tells what enforcement would do. Were it drawn for calls that pass whatever it says
    // (shadow, unlimited, always allowed, an outage), its debt would grow without bound and refuse for as
    // long once the limit is enforced again. The call is counted as use all the same.
    if !admitted && crate::ledger::counter::flow(rule).is_some() {
        return counter.count(item.cost);
    }
    let lease = request.hold.map(|(hold, expires_at)| Lease {
        hold,
        expires_at,
        units: item.cost,
    });
    counter.charge(rule, item.cost, request.now, lease)
}

fn find(
    shard: &mut Shard,
    guard: usize,
    hash: u32,
    request: &Request<'_>,
    item: &Item<'_>,
) -> Candidate {
    let unused = || Box::new(Counter::new(item.epoch));
    let enters = |counter: &mut Counter| counter.enter_with(item.epoch, item.limit);
    let found = shard.find(hash, item.id, request.tenant, item.key);
    let known = found.and_then(|place| Some((place, &mut shard.get(place)?.counter)));
    let spot = match known {
        // Whoever only judges looks at a copy: not even the passing of time is noted.
        Some((_, counter)) if request.judge_only => {
            let mut counter = Box::new(counter.clone());
            if enters(&mut counter) {
                Spot::New {
                    counter,
                    reserved: false,
                }
            } else {
                Spot::Past(unused())
            }
        }
        Some((place, counter)) => {
            if enters(counter) {
                Spot::Placed(place)
            } else {
                Spot::Past(unused())
            }
        }
        None => {
            let mut counter = unused();
            enters(&mut counter);
            Spot::New {
                counter,
                reserved: false,
            }
        }
    };
    Candidate {
        guard,
        hash,
        spot,
        admitted: false,
    }
}

/// The candidate's counter, brought to `now`.
fn prepared<'a>(
    candidate: &'a mut Candidate,
    guards: &'a mut Guards<'_>,
    item: &Item<'_>,
    now: Timestamp,
) -> Option<&'a mut Counter> {
    let shard = &mut guards[candidate.guard].1;
    let (counter, now) = match &mut candidate.spot {
        Spot::New { counter, .. } | Spot::Past(counter) => (&mut **counter, shard.held(now)),
        Spot::Placed(place) => (&mut shard.get(*place)?.counter, now),
    };
    counter.prepare(&item.limit.rule, now);
    Some(counter)
}
