//! One window of one counter: who was granted how much, and what is left.
//!
//! `free + Σ (granted − returned) + Σ charged − Σ refunded + Σ withheld = quota` after every step.
//!
//! What is free changes with time in [`Pool::free_at`] alone, and is brought up to an entry's log time in
//! [`Pool::prepare`].

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::Serialize;

use crate::domain::name::RegionName;
use crate::domain::time::Timestamp;
use crate::domain::time::Window;
use crate::domain::time::WindowId;
use crate::grants::account::Holder;
use crate::grants::account::PoolStanding;
use crate::grants::account::Totals;

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
}

impl Tally {
    /// Units that left the pool and of which nothing is known: held, in flight, or spent since the last
    /// telling.
    pub const fn outstanding(&self) -> u64 {
        self.granted
            .saturating_sub(self.returned)
            .saturating_sub(self.spent)
    }

    /// Takes in what the holder told, and says how many units came back.
    ///
    /// A process that keeps the rules never tells of more than it was granted, and its tellings grow
    /// together, so the greater of each total is its latest telling. From one that does not, no return is
    /// taken that does not fit beside what it spent: units that it may still hold stay its own.
    pub fn take(&mut self, said: Totals) -> u64 {
        let spent_max = self.granted.saturating_sub(self.returned);
        let returned = said.returned.max(self.returned);
        let spent = said.spent.max(self.spent);
        let rise = match spent.checked_add(returned) {
            Some(sum) if sum <= self.granted => returned - self.returned,
            _ => 0,
        };
        self.returned += rise;
        self.spent = spent.min(spent_max.saturating_sub(rise));
        rise
    }

    /// How many units of this holder can still be given back.
    pub fn refundable(&self) -> u64 {
        let used = u128::from(self.spent) + u128::from(self.charged);
        let left = used.saturating_sub(u128::from(self.refunded));
        u64::try_from(left).unwrap_or(u64::MAX)
    }

    fn add(&mut self, other: &Self) {
        self.granted = self.granted.saturating_add(other.granted);
        self.returned = self.returned.saturating_add(other.returned);
        self.spent = self.spent.saturating_add(other.spent);
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
}

/// One window of one counter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Pool {
    window: Window,
    quota: u64,
    quota_max: u64,
    /// Below zero when a lowered quota left less than what is out.
    free: i128,
    rows: BTreeMap<Holder, Row>,
    arrivals: u64,
    /// Sums over ended processes that are no longer kept apart.
    ended: BTreeMap<RegionName, Tally>,
    /// By epoch and window.
    withheld: BTreeMap<(u64, WindowId), Withheld>,
}

impl Pool {
    pub(super) fn new(window: Window, quota: u64) -> Self {
        Self {
            window,
            quota,
            quota_max: quota,
            free: i128::from(quota),
            rows: BTreeMap::new(),
            arrivals: 0,
            ended: BTreeMap::new(),
            withheld: BTreeMap::new(),
        }
    }

    pub(super) const fn window(&self) -> Window {
        self.window
    }

    pub(super) const fn quota(&self) -> u64 {
        self.quota
    }

    pub(super) const fn quota_max(&self) -> u64 {
        self.quota_max
    }

    pub(super) const fn free(&self) -> i128 {
        self.free
    }

    /// What is free at `log` under `quota`, if an entry came now.
    pub(super) fn free_at(&self, log: Timestamp, quota: u64) -> i128 {
        let released: u128 = self
            .withheld
            .values()
            .filter(|withheld| withheld.until <= log)
            .map(|withheld| u128::from(withheld.units))
            .sum();
        self.free + released as i128 + i128::from(quota) - i128::from(self.quota)
    }

    /// Notes the quota in force, and gives free what an ended window of an earlier epoch kept back.
    pub(super) fn prepare(&mut self, log: Timestamp, quota: u64) {
        self.free = self.free_at(log, quota);
        self.withheld.retain(|_, withheld| withheld.until > log);
        self.quota = quota;
        self.quota_max = self.quota_max.max(quota);
    }

    /// Keeps back `units` that another window let out and that may still be spent.
    pub(super) fn withhold(&mut self, epoch: u64, other: &Self, units: u64) {
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
        let rise = row.tally.take(said);
        self.free += i128::from(rise);
        rise
    }

    /// Grants up to the cumulative total `to`, as far as the pool goes; the new total. The holder must be
    /// its region's newest process.
    pub(super) fn grant(&mut self, holder: &Holder, to: u64) -> u64 {
        let free = u64::try_from(self.free.max(0)).unwrap_or(u64::MAX);
        let granted = self.tally(holder).granted;
        let units = to.saturating_sub(granted).min(free);
        if units > 0 {
            self.row(holder).tally.granted += units;
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
    pub(super) fn charge(&mut self, holder: &Holder, units: u64) {
        if units > 0 {
            self.row(holder).tally.charged += units;
            self.free -= i128::from(units);
        }
    }

    /// Gives back at most `units` of what `holder` used; how many.
    pub(super) fn refund(&mut self, holder: &Holder, units: u64) -> u64 {
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
        refunded
    }

    fn row(&mut self, holder: &Holder) -> &mut Row {
        if !self.rows.contains_key(holder) {
            self.fold_ended(&holder.region);
        }
        let arrivals = &mut self.arrivals;
        self.rows.entry(holder.clone()).or_insert_with(|| {
            *arrivals += 1;
            Row {
                tally: Tally::default(),
                arrival: *arrivals,
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
            quota: self.quota,
            free: u64::try_from(self.free.max(0)).unwrap_or(u64::MAX),
            used: self.used(),
            used_by_holder: holder.map_or(0, |holder| self.tally(holder).spent),
            stranded,
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
        self.free + debit + withheld - i128::from(self.quota)
    }
}
