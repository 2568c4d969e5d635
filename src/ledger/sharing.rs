//! Sharing of one approximate counter: what this region may still admit when others use the same quota.
//!
//! Far from the limit a region admits freely: what the others may have used unheard by now is guarded by what
//! they were seen to want. Near it, a region may hold use that somebody does not know of yet only up to its
//! share of what is left; shares follow the demand that regions tell each other of.
//!
//! Files: `demand` (what is wanted here and elsewhere), `gossip` (how it is told), `ring` (what others know of
//! the own use), `allot` (dealing out whole units).
//!
//! Both rules come down to one number, up to which the own use may grow while nothing is heard and for at
//! most 10 ms, so most judgements are one comparison.

mod allot;
mod demand;
mod gossip;
mod ring;

pub use self::gossip::Gossip;

use crate::domain::limit::OnPartition;
use crate::domain::limit::Split;
use crate::domain::time::NANOS_PER_SECOND;
use crate::domain::time::Span;
use crate::ledger::mesh::Mesh;
use crate::ledger::mesh::Peer;
use crate::ledger::sharing::allot::Weights;
use crate::ledger::sharing::allot::allotted;
use crate::ledger::sharing::demand::Demand;
use crate::ledger::sharing::demand::Told;
use crate::ledger::sharing::demand::Wanted;
use crate::ledger::sharing::gossip::FRACTION_BITS;
use crate::ledger::sharing::ring::Ring;
use crate::usage::actor::Site;

/// A peer is allowed for with so many times what it is expected to have used unheard.
const UNHEARD_FACTOR: u64 = 2;
/// A peer that was not heard for longer is not expected to have used more.
const UNHEARD_MAX: Span = Span::from_seconds(1);
/// One unit in so many of a peer's peak is allowed for.
const PEAK_PART: u64 = 2;
/// Weight of a region: its demand in 300 ms and a quarter of its peak, in parts of a twentieth.
const DEMAND_WEIGHT: u64 = 6;
const PEAK_WEIGHT: u64 = 5;
/// The guard of a bucket is at most one in so many of its capacity.
const BUCKET_GUARD_PART: u64 = 4;
/// A counter is pushed when what the others do not know passes one in so many of a region's part of what is left.
const PUSH_PART: u64 = 4;
/// A counter is pushed at most once in this time.
pub const PUSH_GAP: Span = Span::from_ms(20);
/// A bucket stays near its limit for long, so it is pushed less often.
pub const BUCKET_PUSH_GAP: Span = Span::from_ms(50);
/// Time between two regular rounds.
pub const ROUND_EVERY: Span = Span::from_ms(100);
/// When a judgement is made up anew although nothing was heard.
const JUDGED_FOR: u32 = 10;
/// Times kept here are counted in 2^20 ns, about a millisecond.
const TICK_BITS: u32 = 20;
/// Units that are kept for cut-off regions: how long to wait until they may be free.
const RESERVED_RETRY: Span = Span::from_seconds(1);

/// What a judgement rests on.
#[derive(Clone, Copy, Debug)]
pub struct Position<'a> {
    /// Time since boot.
    pub boot: Span,
    /// The other regions.
    pub mesh: &'a Mesh,
    /// The own region's net use in the window.
    pub own: u64,
    /// Whole units left by all that is known of the own use and the others'.
    pub remaining: u64,
    /// The limit's quota.
    pub quota: u64,
    /// How the remainder is shared.
    pub split: Split,
    /// What happens when a region is cut off.
    pub on_partition: OnPartition,
    /// A bucket's capacity; none for windows.
    pub bucket: Option<u64>,
}

/// Whether units may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shared {
    /// They may.
    Granted,
    /// The share is used up, or nothing is left.
    Refused {
        /// After what time more may be free, whatever the window; [`Span::MAX`] when nothing is left.
        retry_after: Span,
    },
    /// This is the smaller side of a partition, and the limit wants a majority.
    Minority,
}

const NOTHING_LEFT: Shared = Shared::Refused {
    retry_after: Span::MAX,
};

/// Units kept for regions that are cut off, for the running window.
#[derive(Clone, Debug, Default)]
struct Reserves {
    by_site: Vec<(Site, u64)>,
}

/// The state of one counter.
#[derive(Clone, Debug)]
pub struct Sharing {
    demand: Demand,
    ring: Ring,
    /// By site, from the first peer on.
    told: Box<[Told]>,
    reserves: Option<Box<Reserves>>,
    /// Up to here the own use may grow.
    cap: u64,
    /// When `cap` was made up, in ticks.
    judged_at: u32,
    /// When the counter was pushed, in ticks.
    pushed_at: u32,
    is_stale: bool,
    is_near: bool,
    is_minority: bool,
    is_degraded: bool,
}

fn ticks(boot: Span) -> u32 {
    (boot.as_nanos() >> TICK_BITS) as u32
}

impl Sharing {
    /// A counter that nothing is known of.
    pub fn new(boot: Span) -> Self {
        Self {
            demand: Demand::new(boot),
            ring: Ring::default(),
            told: Box::default(),
            reserves: None,
            cap: 0,
            judged_at: ticks(boot),
            pushed_at: ticks(boot.minus(Span::from_seconds(1))),
            is_stale: true,
            is_near: false,
            is_minority: false,
            is_degraded: false,
        }
    }

    /// `units` are asked for, whether they will be allowed or not.
    pub fn attempt(&mut self, boot: Span, units: u64) {
        self.demand.add(boot, units);
    }

    /// What to tell the others of the demand here.
    pub fn gossip(&mut self, boot: Span) -> Gossip {
        self.demand.gossip(boot)
    }

    /// A peer told of its demand.
    pub fn hear(&mut self, boot: Span, from: Site, gossip: Gossip) {
        if from == Site::HOME || from.0 >= Site::MAX {
            return;
        }
        let place = usize::from(from.0) - 1;
        if place >= self.told.len() {
            let mut longer = std::mem::take(&mut self.told).into_vec();
            longer.resize(place + 1, Told::default());
            self.told = longer.into_boxed_slice();
        }
        self.told[place] = Told::new(boot, gossip);
        self.is_stale = true;
    }

    /// Something was merged: the next judgement looks at everything.
    pub const fn news(&mut self) {
        self.is_stale = true;
    }

    /// The counter entered another window. What is counted in it already is not taken to be known to anybody.
    pub fn enter(&mut self) {
        self.ring = Ring::default();
        self.reserves = None;
        self.is_stale = true;
        self.is_near = false;
    }

    /// The own net use was `own` when the counter was gathered for `round`.
    pub fn gathered(&mut self, round: u64, own: u64) {
        self.ring.gathered(round, own);
    }

    /// The least that a region may take the own use for that has merged every round up to `round`.
    pub fn known_by(&self, round: u64) -> u64 {
        self.ring.known_by(round)
    }

    /// Whether the last judgement counted a member as cut off.
    pub const fn is_degraded(&self) -> bool {
        self.is_degraded
    }

    /// Whether the counter is near its limit: then third parties' counts travel with it, and a reply to it
    /// brings the replier's own.
    pub const fn is_near(&self, own: u64) -> bool {
        self.is_near || (!self.is_stale && own >= self.cap)
    }

    /// Keeps a part of what is left for each member that is newly cut off, once per window, and lets go of it
    /// when the member is back.
    ///
    /// To be called before anything is merged while a member is cut off: the part is one of what was left at
    /// the cut, and what this side of it uses meanwhile must not lessen it.
    pub fn reserve(&mut self, at: &Position<'_>) {
        let is_kept = at.on_partition == OnPartition::Share;
        let is_cut = |peer: &&Peer| is_kept && !peer.is_reachable;
        if self.reserves.is_none() && !at.mesh.peers.iter().any(|peer| is_cut(&peer)) {
            return;
        }
        let mut reserves = self.reserves.take().unwrap_or_default();
        let cut = |site: Site| {
            at.mesh
                .peers
                .iter()
                .any(|peer| peer.site == site && is_cut(&peer))
        };
        reserves.by_site.retain(|(site, _)| cut(*site));
        for peer in at.mesh.peers.iter().filter(is_cut) {
            if reserves.by_site.iter().all(|(site, _)| *site != peer.site) {
                let unknown = at.own.saturating_sub(self.ring.known_by(peer.acked_round));
                let part = at.remaining.saturating_add(unknown) / u64::from(at.mesh.regions).max(1);
                reserves.by_site.push((peer.site, part));
            }
        }
        self.reserves = (!reserves.by_site.is_empty()).then_some(reserves);
    }

    /// Whether `units` more may pass.
    pub fn judge(&mut self, at: &Position<'_>, units: u64) -> Shared {
        let wanted = at.own.saturating_add(units);
        let is_fresh = !self.is_stale && ticks(at.boot).wrapping_sub(self.judged_at) < JUDGED_FOR;
        if is_fresh && !self.is_minority {
            if units > at.remaining {
                return NOTHING_LEFT;
            }
            if wanted <= self.cap {
                return Shared::Granted;
            }
        }
        self.look(at, units);
        if self.is_minority {
            return Shared::Minority;
        }
        if units > at.remaining {
            return NOTHING_LEFT;
        }
        if wanted <= self.cap {
            return Shared::Granted;
        }
        let free = at.remaining.saturating_sub(self.reserved());
        Shared::Refused {
            retry_after: if units > free {
                RESERVED_RETRY
            } else {
                round_trip(at.mesh)
            },
        }
    }

    /// After an attempt: whether the counter must be sent to the others at once.
    pub fn wants_push(&mut self, at: &Position<'_>) -> bool {
        let unsent = at.own.saturating_sub(self.ring.sent());
        if unsent == 0 {
            return false;
        }
        let regions = u64::from(at.mesh.regions).max(1);
        let left = at.remaining.saturating_sub(self.reserved());
        if unsent.saturating_add(1).saturating_mul(PUSH_PART * regions) <= left {
            return false;
        }
        let gap = if at.bucket.is_some() {
            BUCKET_PUSH_GAP
        } else {
            PUSH_GAP
        };
        let now = ticks(at.boot);
        if now.wrapping_sub(self.pushed_at) <= ticks(gap) + 1 {
            return false;
        }
        self.pushed_at = now;
        true
    }

    fn reserved(&self) -> u64 {
        let reserves = self.reserves.iter().flat_map(|reserves| &reserves.by_site);
        reserves.fold(0, |sum: u64, (_, units)| sum.saturating_add(*units))
    }

    /// Makes up the cap from all that is known.
    fn look(&mut self, at: &Position<'_>, units: u64) {
        self.is_stale = false;
        self.judged_at = ticks(at.boot);
        self.reserve(at);
        let reachable = at.mesh.reachable();
        self.is_degraded = reachable < usize::from(at.mesh.regions);
        self.is_minority = at.on_partition == OnPartition::Majority
            && 2 * reachable <= usize::from(at.mesh.regions);
        if self.is_minority {
            self.cap = 0;
            return;
        }
        let left = at.remaining.saturating_sub(self.reserved());
        let mut guard = 0_u64;
        let mut acked = u64::MAX;
        let mut weights = Weights::new();
        let mut own_place = 0;
        let own = self.own_weight(at);
        for (place, peer) in at.mesh.peers.iter().enumerate() {
            if place == usize::from(at.mesh.order) {
                own_place = weights.len();
                weights.push(own);
            }
            if peer.is_in_touch {
                acked = acked.min(peer.acked_round);
            }
            if !peer.is_reachable {
                continue;
            }
            let wanted = self.wanted(at.boot, peer.site);
            guard = guard.saturating_add(unheard(at.boot, peer, wanted));
            weights.push(weight(wanted));
        }
        if weights.len() < reachable {
            own_place = weights.len();
            weights.push(own);
        }
        let free = match at.split {
            Split::Equal => 0,
            Split::None => left,
            Split::Adaptive => {
                let guard = rounded_up(guard);
                let guard = match at.bucket {
                    Some(capacity) => guard.min(capacity / BUCKET_GUARD_PART),
                    None => guard,
                };
                self.is_near = left <= guard.saturating_mul(2);
                left.saturating_sub(guard)
            }
        };
        if at.split == Split::Equal {
            weights.iter_mut().for_each(|weight| *weight = 0);
            self.is_near = true;
        }
        // Asked for each time: the ring keeps up with what is acknowledged.
        let known = if acked == u64::MAX {
            at.own
        } else {
            self.ring.known(acked).min(at.own)
        };
        self.cap = at.own.saturating_add(free);
        if units <= free {
            return;
        }
        let base = left.saturating_add(at.own - known);
        // Calls of several units are dealt out whole, or small parts would never come to one.
        let each = units.max(1);
        let share = each * allotted(base / each, &weights, own_place);
        self.cap = self.cap.max(known.saturating_add(share));
    }

    fn wanted(&self, boot: Span, site: Site) -> Wanted {
        let place = usize::from(site.0).wrapping_sub(1);
        self.told
            .get(place)
            .map_or_else(Wanted::default, |told| told.now(boot))
    }

    /// Rounded as the others hear it, so that all regions deal out alike.
    fn own_weight(&mut self, at: &Position<'_>) -> u64 {
        weight(Wanted::from(self.demand.gossip(at.boot)))
    }
}

/// What `peer` may have used unheard, in sixteenths of a unit.
fn unheard(boot: Span, peer: &Peer, wanted: Wanted) -> u64 {
    let silent = boot.minus(peer.heard).min(UNHEARD_MAX).as_nanos();
    // Demand is below 2^32, a second below 2^30.
    let meanwhile = UNHEARD_FACTOR * wanted.demand * silent / NANOS_PER_SECOND;
    let burst = wanted.peak.saturating_sub(1 << FRACTION_BITS) / PEAK_PART;
    meanwhile.max(burst)
}

fn rounded_up(sixteenths: u64) -> u64 {
    sixteenths.div_ceil(1 << FRACTION_BITS)
}

const fn weight(wanted: Wanted) -> u64 {
    DEMAND_WEIGHT * wanted.demand + PEAK_WEIGHT * wanted.peak
}

/// Until the others' word on what is used now can be here.
fn round_trip(mesh: &Mesh) -> Span {
    let reachable = mesh.peers.iter().filter(|peer| peer.is_reachable);
    let latency = reachable
        .map(|peer| peer.latency)
        .max()
        .unwrap_or(Span::ZERO);
    latency.plus(latency).plus(ROUND_EVERY)
}

#[cfg(test)]
mod laws;
#[cfg(test)]
mod tests;
