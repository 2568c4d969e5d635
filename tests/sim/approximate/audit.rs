//! Knows every unit that was admitted, and looks at what the regions know of it.

use std::collections::BTreeMap;
use std::rc::Rc;

use highwater::domain::limit::Rule;
use highwater::domain::time::Span;
use highwater::domain::time::Timestamp;
use highwater::ledger::check::Outcome;
use highwater::ledger::counter::Told;
use highwater::ledger::counter::Unsent;
use highwater::ledger::give::Moved;
use highwater::ledger::hold::Receipt;
use highwater::ledger::shard::GRACE;
use highwater::ledger::sharing::BUCKET_PUSH_GAP;
use highwater::ledger::sharing::PUSH_GAP;
use highwater::replication::sender::FLIGHTS_MAX;
use highwater::replication::sender::FLYING_BYTES_MAX;
use highwater::usage::record::slots;

use super::faulty::BUCKET;
use super::faulty::Place;
use super::faulty::SHORT;
use super::node::At;
use super::node::Catalogue;
use super::node::Node;
use super::node::SlotId;
use super::node::TENANT;
use crate::model::SECOND;

/// Charged and given back.
type Counts = (u64, u64);

/// What one region knows.
#[derive(Default)]
struct Known {
    slots: BTreeMap<SlotId, Counts>,
    /// By (limit, key): the epoch, the windows, and when it is dead.
    counters: BTreeMap<(String, String), (u64, Vec<i64>, Timestamp)>,
    /// By (limit, key): the newest window, the home use in it, and what a region knows that has merged up to each
    /// peer's round.
    rings: BTreeMap<(String, String), (i64, Vec<u64>)>,
}

/// The audit of one run.
pub struct Audit {
    pub checks: u64,
    pub granted: u64,
    pub faults: BTreeMap<&'static str, u64>,
    catalogue: Rc<Catalogue>,
    has_refunds: bool,
    /// Every slot as it was charged and given back.
    truth: BTreeMap<SlotId, Counts>,
    /// What of it cannot be lost any more by the crashes until now.
    floor: BTreeMap<SlotId, Counts>,
    /// By limit, key, process and epoch, which begins with a new counter.
    pushed: BTreeMap<(usize, String, u64, u64), Span>,
    /// A common bucket by key: level in units, and when.
    buckets: BTreeMap<String, (f64, u64)>,
    bucket_units: u64,
    wiped_or_crashed: u64,
    /// How much of what one process gathered was found merged by another.
    verified: BTreeMap<(u64, u64), usize>,
    /// How often in a row it was taken for reachable.
    reached: BTreeMap<(u64, u64), u64>,
    has_loss: bool,
}

/// Whether a window decides nothing any more, where clocks are furthest ahead.
fn is_over(limit: &str, window: i64, now: Timestamp) -> bool {
    let now = now.plus(Span::from_ms(2_100));
    let length = match limit {
        "held" => return window.saturating_neg() <= now.as_nanos(),
        "short" => SHORT,
        "slide" => SHORT.plus(SHORT),
        // Two segments.
        "bucket" => Span::from_nanos(1 << 36),
        _ => return false,
    };
    Timestamp::from_nanos(window).plus(length) <= now
}

/// Whether a process told of a slot again when it could change no decision any more, as it may be when something was
/// given back after it was gathered. Then it is not kept where no counter of that name stands.
fn told_as_over(node: &Node, id: &SlotId, now: Timestamp) -> bool {
    let told = node.told_again.get(id);
    told.is_some_and(|dead_at| dead_at.plus(GRACE) <= now)
}

const fn is_slice(window: i64) -> bool {
    window < 0 && window != i64::MIN
}

impl Audit {
    pub fn new(catalogue: &Rc<Catalogue>, has_refunds: bool, has_loss: bool) -> Self {
        Self {
            checks: 0,
            granted: 0,
            faults: BTreeMap::new(),
            catalogue: Rc::clone(catalogue),
            has_refunds,
            truth: BTreeMap::new(),
            floor: BTreeMap::new(),
            pushed: BTreeMap::new(),
            buckets: BTreeMap::new(),
            bucket_units: 0,
            wiped_or_crashed: 0,
            verified: BTreeMap::new(),
            reached: BTreeMap::new(),
            has_loss,
        }
    }

    pub fn count(&mut self, fault: &'static str) {
        *self.faults.entry(fault).or_default() += 1;
    }

    pub fn checked(
        &mut self,
        node: &Node,
        at: At,
        (limit, key, cost): (usize, &str, u64),
        outcome: &Outcome,
        time: u64,
    ) {
        self.checks += 1;
        let rule = &self.catalogue.limits[limit].rule;
        let told = &outcome.items[0];
        assert!(told.standing.remaining <= rule.quota(), "T4: {told:?}");
        if !outcome.allowed {
            assert!(!outcome.is_urgent, "A8: pushed for what was refused");
            return;
        }
        self.granted += cost;
        let is_bucket = matches!(rule, Rule::TokenBucket { .. });
        if !is_bucket {
            assert!(told.standing.used <= rule.quota(), "A3: {told:?}");
        }
        if outcome.is_urgent {
            let epoch = outcome.receipts.first().map_or(0, |receipt| receipt.epoch);
            let name = (limit, key.to_owned(), node.incarnation, epoch);
            let gap = if is_bucket { BUCKET_PUSH_GAP } else { PUSH_GAP };
            if let Some(before) = self.pushed.insert(name, at.boot) {
                assert!(at.boot.minus(before) >= gap, "A8: pushed again too soon");
            }
        }
        if is_bucket {
            self.bucket_units += cost;
            let level = bucket_at(self.buckets.get(key), time);
            self.buckets
                .insert(key.to_owned(), (level - cost as f64, time));
        }
        for receipt in &outcome.receipts {
            if !matches!(rule, Rule::Concurrency { .. }) {
                self.truth.entry(slot_id(node, receipt)).or_default().0 += cost;
            }
        }
    }

    pub fn gave_back(&mut self, node: &Node, receipt: &Receipt, moved: &Moved) {
        let Some(record) = &moved.record else {
            return;
        };
        if receipt.counter.limit.as_str() == "bucket" {
            // A common bucket has at most what it had.
            let bucket = self
                .buckets
                .get_mut(receipt.counter.key.as_str())
                .expect("it was charged");
            bucket.0 = (bucket.0 + moved.units as f64).min(BUCKET.0 as f64);
        }
        let own = node.ledger.actors().own();
        for (window, counter) in &record.windows {
            for (_, p, n) in slots(counter).into_iter().filter(|slot| slot.0 == own) {
                let mut id = slot_id(node, receipt);
                id.2 = record.epoch;
                id.3 = window.0;
                let truth = self.truth.entry(id).or_default();
                assert_eq!(truth.0, p, "a gift changed what was charged");
                truth.1 = n;
            }
        }
    }

    fn known(&self, node: &Node) -> Known {
        let mut known = Known::default();
        let own = node.ledger.actors().own();
        let roster = node.ledger.roster();
        let peers = self.peers(node);
        for shard in 0..node.ledger.shards() {
            node.ledger.visit(shard, |_, name, counter| {
                let limit = self.catalogue.names.names()[name.limit.0 as usize].to_string();
                let named = (limit.clone(), name.key().to_owned());
                let mut windows = vec![counter.window().id.0, counter.window_before().id.0];
                counter.show(Told::Everything, Unsent::ALL, own, |window, slots| {
                    windows.push(window.0);
                    for slot in slots {
                        let actor = roster.actor(slot.actor).expect("a named process");
                        let actor = (actor.region.to_string(), actor.incarnation);
                        let key = name.key().to_owned();
                        let id = (limit.clone(), key, counter.epoch, window.0, actor);
                        known.slots.insert(id, (slot.p, slot.n));
                    }
                });
                let ring = peers.iter().map(|peer| counter.known_by(*peer)).collect();
                known
                    .rings
                    .insert(named.clone(), (counter.window().id.0, ring));
                let counter = (counter.epoch, windows, counter.dead_at);
                known.counters.insert(named, counter);
            });
        }
        known
    }

    /// The rounds that each peer is taken to have merged.
    fn peers(&self, node: &Node) -> Vec<u64> {
        let regions = node.regions();
        (0..regions)
            .map(|peer| node.machine.acked_round(node.name_of(peer)))
            .collect()
    }

    fn all_known(&self, places: &[Place]) -> Vec<Option<Known>> {
        let nodes = places.iter().map(|place| place.node.as_ref());
        nodes
            .map(|node| node.map(|node| self.known(node)))
            .collect()
    }

    /// Processes or disks were lost: what is left now will be found.
    pub fn crashed(&mut self, places: &[Place]) {
        self.wiped_or_crashed += 1;
        let mut floor: BTreeMap<SlotId, Counts> = BTreeMap::new();
        let mut raise = |id: &SlotId, p: u64, n: u64| {
            let known = floor.entry(id.clone()).or_default();
            *known = (known.0.max(p), known.1.max(n));
        };
        for known in self.all_known(places).into_iter().flatten() {
            for (id, (p, n)) in &known.slots {
                raise(id, *p, *n);
            }
        }
        for place in places {
            let actors = place.disk.actors();
            for record in place.disk.records.values() {
                for (window, counter) in &record.windows {
                    for (actor, p, n) in slots(counter) {
                        let actor = &actors[actor.0 as usize];
                        let actor = (actor.region.to_string(), actor.incarnation);
                        let (limit, key) = (record.id.limit.to_string(), record.id.key.to_string());
                        raise(&(limit, key, record.epoch, window.0, actor), p, n);
                    }
                }
            }
        }
        self.floor = floor;
    }

    /// At any time.
    pub fn look(&mut self, places: &[Place], time: u64) {
        let all = self.all_known(places);
        for (region, known) in all.iter().enumerate() {
            let (Some(known), Some(node)) = (known, &places[region].node) else {
                continue;
            };
            for (id, (p, n)) in known.slots.iter().filter(|(id, _)| !is_slice(id.3)) {
                let (charged, given) = self.truth.get(id).copied().unwrap_or_default();
                assert!(
                    *p <= charged && *n <= given,
                    "A1: region {region} has {p}, {n} of {charged}, {given} in {id:?}"
                );
                if id.4.1 == node.incarnation {
                    assert_eq!((*p, *n), (charged, given), "A10: own use in {id:?}");
                }
            }
            self.bounded(node, known);
            for (peer, there) in all.iter().enumerate() {
                if let (Some(there), Some(process)) = (there, &places[peer].node)
                    && node.linked(peer) == Some(process.incarnation)
                {
                    let now = places[peer].clock.region_time(time);
                    self.acknowledged(node, process, (known, there), now);
                }
            }
        }
    }

    fn bounded(&self, node: &Node, known: &Known) {
        assert_eq!(node.refused, 0, "counts were refused");
        for peer in 0..node.regions() {
            if let Some(figures) = node.machine.figures(node.name_of(peer)) {
                assert!(figures.in_flight <= FLIGHTS_MAX, "{figures:?}");
                assert!(figures.flying_bytes <= FLYING_BYTES_MAX, "{figures:?}");
                let most = 2 * known.counters.len() + 100;
                assert!(figures.backlog <= most, "{figures:?}");
            }
        }
    }

    /// A7: what counts as acknowledged was merged, and what the ring takes for known is known.
    fn acknowledged(&mut self, node: &Node, peer: &Node, known: (&Known, &Known), now: Timestamp) {
        let (here, there) = known;
        let acked = node.machine.acked_round(node.name_of(peer.index));
        let pair = (node.incarnation, peer.incarnation);
        let verified = self.verified.entry(pair).or_default();
        for (round, slot) in node.gathered.iter().flatten().skip(*verified) {
            if *round > acked {
                break;
            }
            *verified += 1;
            let id = &slot.id;
            let counter = there.counters.get(&(id.0.clone(), id.1.clone()));
            // What can change no decision any more goes, and another counter of that name may have come since. So does
            // one of a newer epoch, after which a late word may make the old one anew.
            let is_over = is_over(&id.0, id.3, now)
                || slot.dead_at.plus(GRACE) <= now
                || told_as_over(node, id, now)
                || id.2 < node.epoch_of(&id.0).max(peer.epoch_of(&id.0))
                || match counter {
                    None => false,
                    Some((epoch, windows, _)) => {
                        let newer = windows.iter().filter(|window| **window > id.3);
                        let is_known = windows.contains(&id.3);
                        *epoch > id.2 || !is_slice(id.3) && !is_known && newer.count() > 0
                    }
                };
            let (p, n) = there.slots.get(id).copied().unwrap_or_default();
            assert!(
                is_over || id.4.1 == peer.incarnation || p >= slot.p && n >= slot.n,
                "A7: {now:?} {counter:?} {} has merged {p}, {n} of round {round} of {}: {slot:?}, acked {acked}",
                peer.index,
                node.index
            );
        }
        // What everybody else acknowledged while it was away counts as known to it too.
        let pair = (node.incarnation, peer.incarnation);
        let reached = self.reached.entry(pair).or_default();
        *reached = if node.reaches(peer.index) {
            *reached + 1
        } else {
            0
        };
        if *reached == 0 || self.has_loss {
            return;
        }
        let home = node.name_of(node.index).as_str();
        for (named, (window, ring)) in &here.rings {
            let (epoch, _, _) = &here.counters[named];
            let Some((known_epoch, windows, _)) = there.counters.get(named) else {
                continue;
            };
            // What is over is not kept where another window came first.
            if known_epoch != epoch
                || !windows.contains(window)
                || named.0 == "held"
                || is_over(&named.0, *window, now)
            {
                continue;
            }
            let slots = there.slots.iter().filter(|(id, _)| {
                id.0 == named.0 && id.1 == named.1 && id.3 == *window && id.4.0 == home
            });
            let n_counts = !self.has_refunds;
            let seen: i128 = slots
                .map(|(_, (p, n))| i128::from(*p) - i128::from(if n_counts { *n } else { 0 }))
                .sum();
            let taken = ring[peer.index];
            // What had come back to a bucket when it was told is not taken, if nobody asked there, and what has come back
            // since is forgotten. Of an earlier process of the region too.
            let has_come_back = || {
                let mut is_newest = true;
                let told = node.gathered.iter().flatten().rev();
                let mut told = told.map(|(_, slot)| slot).filter(|slot| {
                    let id = &slot.id;
                    (&id.0, &id.1, id.3, id.4.0.as_str()) == (&named.0, &named.1, *window, home)
                });
                named.0 == "bucket"
                    && told.any(|slot| {
                        let is_own = slot.id.4.1 == node.incarnation;
                        let counts = !is_own || std::mem::take(&mut is_newest);
                        let is_over = slot.dead_at.plus(GRACE) <= now;
                        counts && (is_over || told_as_over(node, &slot.id, now))
                    })
            };
            assert!(
                i128::from(taken) <= seen || has_come_back(),
                "A7: {} is taken to know {taken} of {}'s use of {named:?} and knows {seen}",
                peer.index,
                node.index
            );
        }
    }

    /// All has healed and nobody asked for a while.
    pub fn agreed(&mut self, places: &[Place], time: u64) {
        self.look(places, time);
        for (limit, rule) in self.catalogue.limits.iter().enumerate() {
            for key in ["a", "b"] {
                let used: Vec<(u64, u64)> = places
                    .iter()
                    .map(|place| {
                        let node = place.node.as_ref().expect("all are up");
                        let now = place.clock.region_time(time);
                        let item = node.item(limit, key, 0);
                        let standing = node.ledger.standing(&item, TENANT, now);
                        (standing.used, standing.remaining)
                    })
                    .collect();
                match rule.rule {
                    Rule::TokenBucket { .. } => self.levels(places, time, limit, key),
                    // Weighted by the time, which differs by region.
                    Rule::SlidingWindow { .. } => {}
                    Rule::Concurrency { .. } => {
                        assert!(used.iter().all(|(used, _)| *used == 0), "held: {used:?}");
                    }
                    _ => assert!(
                        used.iter().all(|one| *one == used[0]),
                        "{limit} {key}: {used:?}"
                    ),
                }
            }
        }
        let all = self.all_known(places);
        let live: Vec<u64> = places
            .iter()
            .filter_map(|place| place.node.as_ref().map(|node| node.incarnation))
            .collect();
        for (id, (charged, given)) in &self.truth {
            let epoch = places[0].node.as_ref().map(|node| {
                node.epochs[self.catalogue.names.get(&id.0).expect("known").0 as usize]
            });
            let ends = match id.0.as_str() {
                "hour" | "equal" | "open" | "most" => true,
                // The window before the running one.
                "slide" => {
                    id.3 >= places[0].clock.region_time(time).as_nanos() - 30 * SECOND as i64
                }
                _ => false,
            };
            if !ends || epoch.is_some_and(|epoch| id.2 < epoch) {
                continue;
            }
            let seen: Vec<Counts> = all
                .iter()
                .flatten()
                .map(|known| known.slots.get(id).copied().unwrap_or_default())
                .collect();
            assert!(
                seen.iter().all(|one| *one == seen[0]),
                "A1: {seen:?} in {id:?}"
            );
            let floor = if live.contains(&id.4.1) {
                (*charged, *given)
            } else {
                self.floor.get(id).copied().unwrap_or_default()
            };
            assert!(
                seen[0].0 >= floor.0 && seen[0].1 >= floor.1,
                "A1: {seen:?} where {floor:?} cannot be lost, of {charged}, {given} in {id:?}"
            );
        }
    }

    /// T1: no region's bucket is far from a common one.
    fn levels(&self, places: &[Place], time: u64, limit: usize, key: &str) {
        let rate = BUCKET.1 as f64 / 1.1;
        let Some(common) = self.buckets.get(key) else {
            return;
        };
        let common = bucket_at(Some(common), time);
        for place in places {
            let node = place.node.as_ref().expect("all are up");
            let now = place.clock.region_time(time);
            let level = node.level(limit, key, now);
            // What a region did not hear of within 16 s it may have thrown away meanwhile.
            assert!(
                level >= common.min(0.0) - 16.0 * rate,
                "T1: region {} is at {level}, a common bucket at {common}, {key}",
                node.index
            );
        }
    }

    /// What is left by what all regions agree on.
    pub fn left(&self, places: &[Place], time: u64, limit: usize, key: &str) -> u64 {
        let node = places[0].node.as_ref().expect("all are up");
        let now = places[0].clock.region_time(time);
        let item = node.item(limit, key, 0);
        node.ledger.standing(&item, TENANT, now).remaining
    }

    /// One region has asked for all that was left.
    pub fn used_up(&mut self, places: &[Place], time: u64) {
        for name in ["hour", "open", "most"] {
            let limit = self.catalogue.names.get(name).expect("known").0 as usize;
            let left = self.left(places, time, limit, "a");
            assert!(left == 0, "A5: {left} of {name} cannot be had");
        }
        let regions = places.len() as u64;
        let seconds = time / SECOND;
        let alone = BUCKET.0 + BUCKET.1 * seconds;
        let most = 2 * (regions * alone + self.wiped_or_crashed * BUCKET.0);
        if !self.has_refunds {
            assert!(
                self.bucket_units <= most,
                "T3: {} of {most}",
                self.bucket_units
            );
        }
    }
}

fn bucket_at(bucket: Option<&(f64, u64)>, time: u64) -> f64 {
    let full = BUCKET.0 as f64;
    let rate = BUCKET.1 as f64 / 1.1;
    bucket.map_or(full, |(level, at)| {
        (level + rate * (time.saturating_sub(*at)) as f64 / SECOND as f64).min(full)
    })
}

fn slot_id(node: &Node, receipt: &Receipt) -> SlotId {
    let actor = node.ledger.actors().own_actor();
    (
        receipt.counter.limit.to_string(),
        receipt.counter.key.to_string(),
        receipt.epoch,
        receipt.window.0,
        (actor.region.to_string(), actor.incarnation),
    )
}
