//! Concurrency that is shared by regions: what is held, counted by when it ends.
//!
//! A lease lives in the region that gave it. What peers are told is how many units a region holds that end in the same
//! *slice* of time, as a PN-counter like any other: so a hold that is given back is told as N, and what a region held
//! that went down is free again when its slice ends, at most an eighth of the limit's ttl late. A slice is named by the
//! negative of its end, which no window of time is.
//!
//! The own slot follows the leases: after every change it is raised, P or N, until the region's slots of the slice say
//! what the leases say. Leases that came back from disk are in the slot of an earlier process, and are not
//! counted twice once peers have handed that back.

use crate::algorithm::Admission;
use crate::algorithm::Standing;
use crate::algorithm::concurrency::Leases;
use crate::domain::limit::Rule;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::domain::time::WindowId;
use crate::ledger::counter::Counter;
use crate::ledger::counter::State;
use crate::usage::actor::Site;
use crate::usage::window::Raise;
use crate::usage::window::Slot;
use crate::usage::window::WindowUse;

/// The shortest slice, as a power of two of nanoseconds: 0.13 s.
const SLICE_SHIFT_MIN: u32 = 27;
/// Slices of one counter that are kept.
const SLICES_MAX: usize = 4_096;

/// The slices of one counter that have not ended, the earliest first.
#[derive(Clone, Debug, Default)]
pub(super) struct Slices {
    kept: Vec<WindowUse>,
    /// The limit's, when the own slots followed the leases last.
    ttl: Option<Span>,
}

/// Whether a window's name is that of a slice.
pub(super) const fn is_slice(id: WindowId) -> bool {
    id.0 < 0 && id.0 != i64::MIN
}

const fn end(slice: &WindowUse) -> Timestamp {
    Timestamp::from_nanos(slice.id.0.saturating_neg())
}

/// The slice in which a lease of a limit with `ttl` ends.
fn slice_of(ttl: Span, expires_at: Timestamp) -> WindowId {
    let eighth = (ttl.as_nanos() / 8).max(1);
    let shift = (u64::BITS - 1 - eighth.leading_zeros()).max(SLICE_SHIFT_MIN);
    let mask = (1_i64 << shift.min(62)) - 1;
    WindowId(-(expires_at.as_nanos().saturating_add(mask) & !mask))
}

fn held_by(slice: &WindowUse, site: Site) -> i128 {
    let slots = slice.others().iter().filter(|slot| slot.site == site);
    slots
        .map(|slot| i128::from(slot.p) - i128::from(slot.n))
        .sum()
}

impl Slices {
    pub(super) fn iter(&self) -> impl Iterator<Item = &WindowUse> {
        self.kept.iter()
    }

    /// Drops the slices that have ended.
    fn advance(&mut self, now: Timestamp) {
        let live = self.kept.partition_point(|slice| end(slice) <= now);
        self.kept.drain(..live);
    }

    fn at(&mut self, id: WindowId) -> Option<&mut WindowUse> {
        // The earliest end first: names are the negatives.
        let place = self.kept.binary_search_by(|slice| id.cmp(&slice.id));
        let place = match place {
            Ok(place) => place,
            Err(_) if self.kept.len() >= SLICES_MAX => return None,
            Err(place) => {
                self.kept.insert(place, WindowUse::new(id));
                place
            }
        };
        self.kept.get_mut(place)
    }

    /// Drops what has ended as well: where nobody asks, nothing else would.
    pub(super) fn hear(&mut self, id: WindowId, slot: Slot, now: Timestamp) -> Raise {
        self.advance(now);
        if Timestamp::from_nanos(id.0.saturating_neg()) <= now {
            return Raise::default();
        }
        self.at(id)
            .map_or_else(Raise::default, |slice| slice.merge_slot(slot))
    }

    /// Units that another region holds.
    fn of(&self, site: Site) -> u64 {
        self.kept
            .iter()
            .map(|slice| slice.of(site))
            .fold(0, u64::saturating_add)
    }

    /// The regions that hold something, with how much.
    fn by_site(&self) -> Vec<(Site, u64)> {
        let slots = self.kept.iter().flat_map(WindowUse::others);
        let mut sites: Vec<Site> = slots.map(|slot| slot.site).collect();
        sites.sort_unstable();
        sites.dedup();
        let away = sites.into_iter().filter(|site| *site != Site::HOME);
        away.map(|site| (site, self.of(site))).collect()
    }

    fn held_elsewhere(&self) -> u64 {
        let held = self.by_site().into_iter().map(|(_, units)| units);
        held.fold(0, u64::saturating_add)
    }

    fn first_end_elsewhere(&self) -> Option<Timestamp> {
        let busy = |slice: &&WindowUse| slice.others().iter().any(|slot| slot.site != Site::HOME);
        self.kept.iter().find(busy).map(end)
    }

    fn last_end(&self) -> Option<Timestamp> {
        self.kept.last().map(end)
    }

    /// Lets the own slots say what the leases say.
    fn follow(&mut self, leases: &Leases, ttl: Span) {
        self.ttl = Some(ttl);
        let mut wanted: std::collections::BTreeMap<WindowId, i128> =
            self.kept.iter().map(|slice| (slice.id, 0)).collect();
        for (expires_at, units) in leases.ends() {
            *wanted.entry(slice_of(ttl, expires_at)).or_default() += i128::from(units);
        }
        for (id, units) in wanted {
            let Some(slice) = self.at(id) else {
                continue;
            };
            let (p, n) = slice.own();
            let told = i128::from(p) - i128::from(n) + held_by(slice, Site::HOME);
            let missing = units - told;
            let magnitude = u64::try_from(missing.unsigned_abs()).unwrap_or(u64::MAX);
            if missing > 0 {
                slice.charge(magnitude);
            } else if missing < 0 {
                slice.give_back(magnitude);
            }
        }
    }
}

impl Counter {
    /// Brings the slices of a shared concurrency limit to `now`.
    pub(super) fn prepare_slices(&mut self, now: Timestamp) {
        if let Some(seldom) = self.seldom_mut() {
            seldom.slices.advance(now);
        }
    }

    /// Lets peers be told what is held; `ttl` is the limit's.
    pub(super) fn tell_leases(&mut self, rule: &Rule) {
        let Rule::Concurrency { ttl, .. } = rule else {
            return;
        };
        let State::Leases(leases) = &self.state else {
            return;
        };
        if self.is_shared {
            let afar = self.afar.get_or_insert_default();
            afar.seldom_or_new().slices.follow(leases, *ttl);
        }
    }

    /// A peer handed back what an earlier process of this region held: leases that came back from disk were told as
    /// this process's until then, and would be counted twice.
    pub(super) fn tell_leases_anew(&mut self) {
        if let State::Leases(leases) = &self.state
            && self.is_shared
            && let Some(afar) = &mut self.afar
            && let Some(ttl) = afar.seldom_or_new().slices.ttl
        {
            afar.seldom_or_new().slices.follow(leases, ttl);
        }
    }

    /// Units that other regions hold.
    fn held_elsewhere(&self) -> u64 {
        match self.seldom() {
            Some(seldom) if self.is_shared => seldom.slices.held_elsewhere(),
            _ => 0,
        }
    }

    /// When the last hold anywhere ends, as far as it is known here.
    pub(super) fn last_lease_end(&self, leases: &Leases) -> Option<Timestamp> {
        let seldom = self.seldom().filter(|_| self.is_shared);
        let elsewhere = seldom.and_then(|seldom| seldom.slices.last_end());
        leases.last_end().max(elsewhere)
    }

    /// May `asked` units be held besides those that all regions hold?
    pub(super) fn lease_admission(
        &self,
        leases: &Leases,
        quota: u64,
        asked: u64,
        now: Timestamp,
    ) -> Admission {
        let left = quota.saturating_sub(self.held_elsewhere());
        if asked <= left || asked > quota {
            let quota = if asked > quota { quota } else { left };
            return leases.admission(quota, asked, now);
        }
        let elsewhere = self.seldom();
        let first = elsewhere.and_then(|seldom| seldom.slices.first_end_elsewhere());
        Admission::Wait {
            retry_after: first.map_or(Span::ZERO, |first| first.since(now)),
        }
    }

    /// How the key stands, all regions together.
    pub(super) fn lease_standing(&self, leases: &Leases, quota: u64) -> Standing {
        let own = leases.standing(quota);
        let used = own.used.saturating_add(self.held_elsewhere());
        Standing {
            used,
            remaining: quota.saturating_sub(used),
            ..own
        }
    }

    /// Units that each other region holds of a shared concurrency limit.
    pub(super) fn held_by_site(&self) -> Vec<(Site, u64)> {
        let seldom = self.seldom().filter(|_| self.is_shared);
        seldom.map_or_else(Vec::new, |seldom| seldom.slices.by_site())
    }
}
