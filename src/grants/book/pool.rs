//! One window of one counter: who was granted how much, and what is left.
//!
//! `free + Σ (granted − returned) + Σ charged − Σ refunded + Σ withheld = quota` after every step.
//!
//! What is free changes with time in [`Pool::free_at`] alone, and is brought up to an entry's log time in
//! [`Pool::prepare`].
//!
//! A bucket is one window that never ends (file `bucket`): what it earned is added to its quota above, and
//! `free + outstanding ≤ quota`.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::Serialize;

use crate::domain::name::RegionName;
use crate::domain::time::Timestamp;
use crate::domain::time::Window;
use crate::domain::time::WindowId;
use crate::grants::account::Holder;
use crate::grants::account::PoolStanding;
use crate::grants::account::Quota;
use crate::grants::account::Totals;
use crate::grants::book::bucket::Bucket;
use crate::grants::book::regions::Regions;

/// Ended processes of one region that a window keeps apart; older ones are added up. A region that restarts
/// all day would otherwise make the window grow without a bound.
pub const ENDED_PER_REGION_MAX: usize = 16;

/// What one holder has had to do with one window. All cumulative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Units that it was granted.
    pub granted: u64,
    /// Of them, units that came back unspent.
    pub returned: u64,
    /// Of them, units that it told to have spent.
    pub spent: u64,
    /// Units that the leader charged for it, past its reservation.
    pub charged: u64,
    /// Units given back of what was spent or charged.
    pub refunded: u64,
    /// Buckets: units up to this total of `granted` count as spent unless they came back before, since a lease
    /// ended.
    pub lapsed_to: u64,
    /// Buckets: so many of the next units that are told to have come back may have done so before a lease
    /// ended, when they counted as spent: they stay spent.
    pub forfeit: u64,
}

/// When entries and looks come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment<'a> {
    /// Log time.
    pub(super) log: Timestamp,
    /// Log time less the time over which buckets earn nothing.
    pub(super) clock: Timestamp,
    /// Whose leases have ended.
    pub(super) regions: &'a Regions,
}

impl Tally {
    /// Units that left the pool and of which nothing is known: held, in flight, or spent since the last
    /// telling.
    pub const fn outstanding(&self) -> u64 {
        let known = self.returned.saturating_add(self.spent);
        let known = if known > self.lapsed_to {
            known
        } else {
            self.lapsed_to
        };
        self.granted.saturating_sub(known)
    }

    /// A lease ended: what is outstanding counts as spent from now on.
    pub(super) fn lapse(&mut self) {
        self.forfeit = self.forfeit.saturating_add(self.outstanding());
        self.lapsed_to = self.granted;
    }

    /// Takes in what the holder told, and says how many units came back to the pool.
    ///
    /// A process that keeps the rules never tells of more than it was granted, and its tellings grow
    /// together, so the greater of each total is its latest telling. From one that does not, no return is
    /// taken that does not fit beside what it spent: units that it may still hold stay its own.
    pub fn take(&mut self, said: Totals) -> u64 {
        let before = self.outstanding();
        let spent_max = self.granted.saturating_sub(self.returned);
        let returned = said.returned.max(self.returned);
        let spent = said.spent.max(self.spent);
        let rise = match spent.checked_add(returned) {
            Some(sum) if sum <= self.granted => returned - self.returned,
            _ => 0,
        };
        self.returned += rise;
        self.spent = spent.min(spent_max.saturating_sub(rise));
        let forfeited = rise.min(self.forfeit);
        self.forfeit -= forfeited;
        (rise - forfeited).min(before.saturating_sub(self.outstanding()))
    }

    /// How many units of this holder can still be given back.
    pub fn refundable(&self) -> u64 {
        let used = u128::from(self.spent) + u128::from(self.charged);
        let left = used.saturating_sub(u128::from(self.refunded));
        u64::try_from(left).unwrap_or(u64::MAX)
    }

    fn add(&mut self, other: &Self) {
        // What lapsed is spent here: ended processes are told of by one sum.
        let spent = other.granted - other.returned - other.outstanding();
        self.granted = self.granted.saturating_add(other.granted);
        self.returned = self.returned.saturating_add(other.returned);
        self.spent = self.spent.saturating_add(spent);
        self.charged = self.charged.saturating_add(other.charged);
        self.refunded = self.refunded.saturating_add(other.refunded);
    }

    /// Units that are out of the pool because of this holder.
    fn debit(&self) -> i128 {
        i128::from(self.granted) - i128::from(self.returned) + i128::from(self.charged)
            - i128::from(self.refunded)
    }
}

/// Units of an earlier epoch that may still be spent beside this window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Withheld {
    until: Timestamp,
    units: u64,
}

/// One holder and the order in which it came to this window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Row {
    tally: Tally,
    arrival: u64,
    /// Lapses of the holder's lease that the tally knows of.
    lapses: u64,
}

/// One window of one counter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Pool {
    window: Window,
    quota: Quota,
    quota_max: u64,
    /// Below zero when a lowered quota left less than what is out.
    free: i128,
    rows: BTreeMap<Holder, Row>,
    arrivals: u64,
    /// Sums over ended processes that are no longer kept apart.
    ended: BTreeMap<RegionName, Tally>,
    /// By epoch and window.
    withheld: BTreeMap<(u64, WindowId), Withheld>,
    bucket: Bucket,
}

impl Pool {
    pub(super) fn new(window: Window, quota: Quota, now: &Moment<'_>) -> Self {
        Self {
            window,
            quota,
            quota_max: quota.units(),
            free: i128::from(quota.units()),
            rows: BTreeMap::new(),
            arrivals: 0,
            ended: BTreeMap::new(),
            withheld: BTreeMap::new(),
            bucket: Bucket::new(now),
        }
    }

    pub(super) const fn window(&self) -> Window {
        self.window
    }

    pub(super) const fn quota(&self) -> Quota {
        self.quota
    }

    pub(super) const fn quota_max(&self) -> u64 {
        self.quota_max
    }

    pub(super) const fn free(&self) -> i128 {
        self.free
    }

    pub(super) const fn free_mut(&mut self) -> &mut i128 {
        &mut self.free
    }

    pub(super) const fn bucket(&self) -> &Bucket {
        &self.bucket
    }

    pub(super) const fn bucket_mut(&mut self) -> &mut Bucket {
        &mut self.bucket
    }

    /// The holders, and how many lapses of their leases their tallies know of.
    pub(super) fn lapses(&self) -> impl Iterator<Item = (&Holder, u64)> {
        self.rows.iter().map(|(holder, row)| (holder, row.lapses))
    }

    /// The lease of `holder` has ended, for the `count`th time.
    pub(super) fn note_lapse(&mut self, holder: &Holder, count: u64) {
        if let Some(row) = self.rows.get_mut(holder) {
            row.tally.lapse();
            row.lapses = count;
        }
    }

    /// The pool as an entry would find it that came at `now`.
    pub(super) fn at(&self, now: &Moment<'_>, quota: Quota) -> std::borrow::Cow<'_, Self> {
        if self.window.is_endless() {
            let mut then = self.clone();
            then.prepare(now, quota);
            return std::borrow::Cow::Owned(then);
        }
        std::borrow::Cow::Borrowed(self)
    }

    /// What is free at `log` under `quota`, if an entry came now; of a bucket that is caught up.
    pub(super) fn free_at(&self, log: Timestamp, quota: Quota) -> i128 {
        let released: u128 = self
            .withheld
            .values()
            .filter(|withheld| withheld.until <= log)
            .map(|withheld| u128::from(withheld.units))
            .sum();
        self.free + released as i128 + i128::from(quota.units()) - i128::from(self.quota.units())
    }

    /// Notes the quota in force, and gives free what an ended window of an earlier epoch kept back.
    pub(super) fn prepare(&mut self, now: &Moment<'_>, quota: Quota) {
        let log = now.log;
        self.catch_up(now);
        self.free = self.free_at(log, quota);
        self.withheld.retain(|_, withheld| withheld.until > log);
        self.bucket.scale(&self.quota, &quota);
        self.quota = quota;
        self.quota_max = self.quota_max.max(quota.units());
    }

    /// Keeps back `units` that another window let out and that may still be spent.
    pub(super) fn withhold(&mut self, epoch: u64, other: &Self, units: u64) {
        if self.window.is_endless() {
            // A bucket takes them for spent: it earns them back by itself.
            self.draw(units);
            return;
        }
        let withheld = Withheld {
            until: other.window.end,
            units,
        };
        if units > 0
            && self
                .withheld
                .insert((epoch, other.window.id), withheld)
                .is_none()
        {
            self.free -= i128::from(units);
        }
    }

    /// `units` came back to the window that they were withheld for.
    pub(super) fn pay_back(&mut self, epoch: u64, window: WindowId, units: u64) {
        if let Some(withheld) = self.withheld.get_mut(&(epoch, window)) {
            let paid = units.min(withheld.units);
            withheld.units -= paid;
            self.free += i128::from(paid);
        }
    }

    pub(super) fn withheld(&self) -> u64 {
        self.withheld
            .values()
            .fold(0, |sum, withheld| sum.saturating_add(withheld.units))
    }

    /// All that may still be spent of this window's units without the book knowing.
    pub(super) fn outstanding(&self) -> u64 {
        self.tallies()
            .fold(0, |sum, tally| sum.saturating_add(tally.outstanding()))
    }

    fn tallies(&self) -> impl Iterator<Item = &Tally> {
        let rows = self.rows.values().map(|row| &row.tally);
        rows.chain(self.ended.values())
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = (&Holder, &Tally)> {
        self.rows.iter().map(|(holder, row)| (holder, &row.tally))
    }

    pub(super) fn ended(&self) -> impl Iterator<Item = (&RegionName, &Tally)> {
        self.ended.iter()
    }

    pub(super) fn tally(&self, holder: &Holder) -> Tally {
        self.rows
            .get(holder)
            .map_or_else(Tally::default, |row| row.tally)
    }

    /// Counts what a holder told. Of one that the window does not know nothing is taken.
    pub(super) fn take(&mut self, holder: &Holder, said: Totals) -> u64 {
        let Some(row) = self.rows.get_mut(holder) else {
            return 0;
        };
        let before = row.tally.returned;
        let credit = row.tally.take(said);
        let kept = row.tally.returned - before - credit;
        self.free += i128::from(credit);
        self.bucket.lose(kept);
        credit
    }

    /// Grants up to the cumulative total `to`, as far as the pool goes; the new total. The holder must be
    /// its region's newest process.
    pub(super) fn grant(&mut self, holder: &Holder, to: u64, lapses: u64) -> u64 {
        let free = u64::try_from(self.free.max(0)).unwrap_or(u64::MAX);
        let granted = self.tally(holder).granted;
        let units = to.saturating_sub(granted).min(free);
        if units > 0 {
            self.row(holder, lapses).tally.granted += units;
            self.free -= i128::from(units);
        }
        granted + units
    }

    /// Whether `units` can be charged for `holder`.
    pub(super) fn fits(&self, holder: &Holder, units: u128) -> bool {
        let charged = u128::from(self.tally(holder).charged);
        i128::try_from(units).is_ok_and(|units| units <= self.free.max(0))
            && charged.saturating_add(units) <= u128::from(u64::MAX)
    }

    /// Charges what [`Pool::fits`].
    pub(super) fn charge(&mut self, holder: &Holder, units: u64, lapses: u64) {
        if units > 0 {
            self.row(holder, lapses).tally.charged += units;
            self.free -= i128::from(units);
        }
    }

    /// Gives back at most `units` of what `holder` used; how many.
    pub(super) fn refund(&mut self, holder: &Holder, units: u64) -> u64 {
        let units = self.room_for_refund().map_or(units, |room| units.min(room));
        let tally = match self.rows.get_mut(holder) {
            Some(row) => &mut row.tally,
            None => match self.ended.get_mut(&holder.region) {
                Some(tally) => tally,
                None => return 0,
            },
        };
        let refunded = units.min(tally.refundable()).min(u64::MAX - tally.refunded);
        tally.refunded += refunded;
        self.free += i128::from(refunded);
        self.spill();
        refunded
    }

    fn row(&mut self, holder: &Holder, lapses: u64) -> &mut Row {
        if !self.rows.contains_key(holder) {
            self.fold_ended(&holder.region);
        }
        let arrivals = &mut self.arrivals;
        self.rows.entry(holder.clone()).or_insert_with(|| {
            *arrivals += 1;
            Row {
                tally: Tally::default(),
                arrival: *arrivals,
                lapses,
            }
        })
    }

    /// Makes room for one more process of `region` by adding up its oldest.
    fn fold_ended(&mut self, region: &RegionName) {
        let own = |holder: &&Holder| holder.region == *region;
        if self.rows.keys().filter(own).count() <= ENDED_PER_REGION_MAX {
            return;
        }
        let oldest = self
            .rows
            .iter()
            .filter(|(holder, _)| holder.region == *region)
            .min_by_key(|(_, row)| row.arrival)
            .map(|(holder, _)| holder.clone());
        if let Some((holder, row)) = oldest.and_then(|holder| self.rows.remove_entry(&holder)) {
            self.ended.entry(holder.region).or_default().add(&row.tally);
        }
    }

    pub(super) fn used(&self) -> u64 {
        if let Some(used) = self.drawn_units() {
            return used;
        }
        let used: i128 = self
            .tallies()
            .map(|tally| {
                i128::from(tally.spent) + i128::from(tally.charged) - i128::from(tally.refunded)
            })
            .sum();
        u64::try_from(used.max(0)).unwrap_or(u64::MAX)
    }

    pub(super) fn standing(&self, holder: Option<&Holder>, stranded: u64) -> PoolStanding {
        PoolStanding {
            quota: self.quota.units(),
            free: u64::try_from(self.free.max(0)).unwrap_or(u64::MAX),
            used: self.used(),
            used_by_holder: holder.map_or(0, |holder| self.tally(holder).spent),
            stranded,
            drawn: self.drawn().unwrap_or(0),
        }
    }

    /// What the identity in the header leaves; zero, always.
    pub(super) fn imbalance(&self) -> i128 {
        let debit: i128 = self.tallies().map(Tally::debit).sum();
        let withheld: i128 = self
            .withheld
            .values()
            .map(|withheld| i128::from(withheld.units))
            .sum();
        let quota = i128::from(self.quota.units()) + self.bucket.earned();
        self.free + debit + withheld - quota + self.overfull()
    }
}
