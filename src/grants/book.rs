//! The book: whom the strict limits' units were given to. Replicated; every member applies the same entries
//! in the same order and has the same book.
//!
//! A *counter* is one (tenant, limit, key). It has an account per epoch, an account has one pool
//! per open window. The rules, whatever an entry says:
//!
//! - `free + Σ (granted − returned) + Σ charged − Σ refunded + withheld = quota` after every entry, and
//!   `free ≥ 0` unless the quota was lowered. Grants are clamped here, when an entry is applied: what its
//!   proposer knew does not matter. A total that was granted once is granted by no second entry.
//! - A return never exceeds what its holder was granted and did not spend. From a process that the window
//!   does not know nothing comes back, and to one that is not its region's newest nothing is granted; what an
//!   ended process gave back in time still counts when it is told late.
//! - Only the newest epoch of a counter is granted. What earlier epochs have outstanding in windows that
//!   overlap is withheld from it, until it comes back or the earlier window ends.
//! - Log time never falls. A window is granted from [`PREFETCH_MAX`] before its start until its end, and
//!   forgotten [`KEPT_AFTER_END`] later.
//! - A bucket is one window without an end that earns by log time, but nothing over the time between two
//!   terms ([`Book::skip`]); its level and what is outstanding never exceed its capacity. What a holder did not
//!   tell of counts as spent when its lease ends ([`Book::lapse`]) or its process is replaced. It is forgotten
//!   when it is full, nothing of it is held and nobody has touched it for a minute; the next one has another name.
//!
//! Shown by `tests` (each rule) and `laws` (random entries, processes that spend all they are told of).

mod bucket;
mod counters;
mod pool;
mod proof;
mod regions;
mod snapshot;

#[cfg(test)]
mod laws;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::Serialize;
use thiserror::Error;

use crate::domain::name::LimitName;
use crate::domain::name::RegionName;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::domain::time::Window;
use crate::domain::time::WindowId;
use crate::grants::account::Account;
use crate::grants::account::Holder;
use crate::grants::account::PoolStanding;
use crate::grants::account::Quota;
use crate::grants::account::Totals;
use crate::grants::account::Transfer;
use crate::grants::book::counters::Counters;
use crate::grants::book::pool::Moment;
use crate::grants::book::pool::Pool;
use crate::grants::book::regions::Regions;

pub use crate::grants::book::pool::ENDED_PER_REGION_MAX;
pub use crate::grants::book::pool::Tally;
pub use crate::grants::book::proof::Proof;
pub use crate::grants::book::proof::ProofRow;
pub use crate::grants::book::regions::RESTARTING_WITHIN;

/// A window may be granted this long before it begins.
pub const PREFETCH_MAX: Span = Span::from_seconds(5);
/// A window is kept this long after its end, for what is told late.
pub const KEPT_AFTER_END: Span = Span::from_seconds(10);
/// Most open windows of one counter, over all its epochs.
pub const WINDOWS_PER_COUNTER_MAX: usize = 64;

/// How much a book holds. Part of the replicated state: it must be the same in every member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bounds {
    /// Most open counters of one tenant.
    pub counters_per_tenant_max: usize,
    /// Most open counters of all tenants.
    pub counters_max: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            counters_per_tenant_max: 10_000,
            counters_max: 200_000,
        }
    }
}

/// Why an entry granted or charged nothing. What it told of returned and spent units was counted all the
/// same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum NotTaken {
    /// The window has ended, begins too far ahead, or is none.
    #[error("the window has ended or begins too far ahead")]
    WindowClosed,
    /// The tenant, or all tenants together, have too many open strict counters.
    #[error("too many open strict counters")]
    Capacity,
    /// The counter has a newer epoch.
    #[error("the counter has a newer epoch")]
    Superseded,
    /// The process is not the one that its region enrolled last.
    #[error("the process is not the newest of its region")]
    NotEnrolled,
    /// The pool has fewer units than were to be charged.
    #[error("the pool has too few units")]
    Empty,
}

/// What a [`Transfer`] came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transferred {
    /// The window as the book knows it; the entry may have told other bounds.
    pub window: Window,
    /// The cumulative totals of those that the entry named in `grants`, in its order.
    pub granted: Vec<(Holder, u64)>,
    /// How the window stands after the entry.
    pub standing: PoolStanding,
}

/// Units that the leader charges for a region: of a keyed check, or of a check decided by the leader.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Charge {
    /// The counter.
    pub account: Account,
    /// The window, as the leader found it by the limit's definition.
    pub window: Window,
    /// For whom.
    pub holder: Holder,
    /// What it did with its units; among `returned` those that it gave back for this charge.
    pub totals: Totals,
    /// How many.
    pub units: u64,
}

/// How a window would take an entry that came now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preview {
    /// The window as the book knows it, or would open it.
    pub window: Window,
    /// Free units; below zero when the quota was lowered below what is out.
    pub free: i128,
    /// A bucket that is not full: the time until a unit is free.
    pub next_in: Option<Span>,
    /// A bucket that earns nothing: all of its units are in it or in the field.
    pub is_full: bool,
}

/// The replicated half of strict limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Book {
    bounds: Bounds,
    log: Timestamp,
    /// By how much the clock of buckets is behind log time.
    skipped: Span,
    regions: Regions,
    counters: Counters,
}

impl Book {
    /// An empty book.
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            ..Self::default()
        }
    }

    /// The latest log time that an entry carried.
    pub const fn log_time(&self) -> Timestamp {
        self.log
    }

    fn advance(&mut self, log: Timestamp) -> Timestamp {
        self.log = self.log.max(log);
        self.log
    }

    fn moment(&self, log: Timestamp) -> Moment<'_> {
        let log = log.max(self.log);
        Moment {
            log,
            clock: log.minus(self.skipped),
            regions: &self.regions,
        }
    }

    /// Splits off the counters, to change them at the newest log time.
    fn counters_now(&mut self) -> (&mut Counters, Moment<'_>) {
        let moment = Moment {
            log: self.log,
            clock: self.log.minus(self.skipped),
            regions: &self.regions,
        };
        (&mut self.counters, moment)
    }

    /// Log time goes on to `log`, and buckets earn nothing over it: a term has begun.
    pub fn skip(&mut self, log: Timestamp) {
        self.skipped = self.skipped.plus(log.since(self.log));
        self.advance(log);
    }

    // Regions.

    /// `holder` is its region's process from now on: what earlier ones hold is stranded until its window
    /// ends. Enrolling again, or late, a process that was replaced changes nothing.
    pub fn enroll(&mut self, log: Timestamp, holder: &Holder) {
        let log = self.advance(log);
        let clock = log.minus(self.skipped);
        self.regions.enroll(log, clock, holder);
    }

    /// `region` is no member any more: nothing is granted to it, and what it holds is stranded.
    pub fn depart(&mut self, log: Timestamp, region: &RegionName) {
        self.advance(log);
        self.regions.depart(region);
    }

    /// The lease of `holder` on units of buckets has ended: what it did not tell of counts as spent.
    pub fn lapse(&mut self, log: Timestamp, holder: &Holder) {
        let log = self.advance(log);
        self.regions.note_lapse(log.minus(self.skipped), holder);
    }

    /// Processes whose leases may run: the newest of every region, and of regions that departed.
    pub fn leased(&self) -> impl Iterator<Item = Holder> + '_ {
        self.regions.leased()
    }

    /// The process that `region` enrolled last.
    pub fn newest(&self, region: &RegionName) -> Option<u64> {
        self.regions.newest(region)
    }

    /// Whether `holder` is the process that its region enrolled last.
    pub fn is_newest(&self, holder: &Holder) -> bool {
        self.regions.is_newest(holder)
    }

    /// Whether `region` enrolled twice within [`RESTARTING_WITHIN`] before `log`.
    pub fn is_restarting(&self, region: &RegionName, log: Timestamp) -> bool {
        self.regions.is_restarting(region, log.max(self.log))
    }

    /// The newest process of every region, by region.
    pub fn enrolled(&self) -> impl Iterator<Item = Holder> + '_ {
        self.regions.iter()
    }

    // Entries.

    /// Applies `transfer`: counts what came back, then grants in order, each as far as the pool goes.
    /// `quota` is the one in force by the catalogue at this entry. An entry without grants for an open window
    /// is taken at any time: it notes the quota and what was told.
    ///
    /// # Errors
    /// Why nothing was granted; what was told is counted all the same.
    pub fn transfer(
        &mut self,
        log: Timestamp,
        transfer: &Transfer,
        quota: impl Into<Quota>,
    ) -> Result<Transferred, NotTaken> {
        let account = &transfer.account;
        let id = transfer.window.id;
        self.returns(log, account, id, &transfer.returns);
        let bounds = self.bounds;
        let only_tells = transfer.grants.is_empty();
        let (counters, now) = self.counters_now();
        let opened = counters.open(&bounds, &now, account, transfer.window, quota.into());
        let pool = match opened {
            Ok(pool) => pool,
            Err(why) if only_tells => counters.pool_mut(account, id).ok_or(why)?,
            Err(why) => return Err(why),
        };
        let mut granted = Vec::with_capacity(transfer.grants.len());
        for (holder, to) in &transfer.grants {
            let total = if now.regions.is_newest(holder) {
                pool.grant(holder, *to, now.regions.lapses(holder))
            } else {
                pool.tally(holder).granted
            };
            granted.push((holder.clone(), total));
        }
        let window = pool.window();
        let standing = self.standing(account, id, None).unwrap_or_default();
        Ok(Transferred {
            window,
            granted,
            standing,
        })
    }

    /// Counts what holders told of one window, in order; for entries that came too late to grant anything.
    /// Windows and holders that are not known change nothing.
    pub fn returns(
        &mut self,
        log: Timestamp,
        account: &Account,
        window: WindowId,
        said: &[(Holder, Totals)],
    ) {
        self.advance(log);
        let (counters, now) = self.counters_now();
        for (holder, totals) in said {
            counters.take(&now, account, window, holder, *totals);
        }
    }

    /// Whether all `parts`, each with the quota in force, could be charged together. Counts what the parts
    /// tell and opens their windows.
    ///
    /// # Errors
    /// The first part that cannot be charged, by its place, and why.
    pub fn charge_fits<Q: Copy + Into<Quota>>(
        &mut self,
        log: Timestamp,
        parts: &[(&Charge, Q)],
    ) -> Result<(), (usize, NotTaken)> {
        let log = self.advance(log);
        let bounds = self.bounds;
        let (counters, now) = self.counters_now();
        for (part, _) in parts {
            let Charge {
                account,
                window,
                holder,
                totals,
                ..
            } = part;
            counters.take(&now, account, window.id, holder, *totals);
        }
        let mut sums: BTreeMap<(&Account, WindowId), u128> = BTreeMap::new();
        for (place, (part, quota)) in parts.iter().enumerate() {
            if !now.regions.is_newest(&part.holder) {
                return Err((place, NotTaken::NotEnrolled));
            }
            let quota: Quota = (*quota).into();
            let pool = counters
                .open(&bounds, &now, &part.account, part.window, quota)
                .map_err(|why| (place, why))?;
            if pool.window().start > log {
                return Err((place, NotTaken::WindowClosed));
            }
            let sum = sums.entry((&part.account, part.window.id)).or_default();
            *sum = sum.saturating_add(u128::from(part.units));
            if !pool.fits(&part.holder, *sum) {
                return Err((place, NotTaken::Empty));
            }
        }
        Ok(())
    }

    /// Charges all `parts`, each with the quota in force, or none. How their windows stand then, seen by
    /// their holders. A charge's window must be running, not only ahead.
    ///
    /// # Errors
    /// As [`Book::charge_fits`]; nothing was charged then.
    pub fn charge<Q: Copy + Into<Quota>>(
        &mut self,
        log: Timestamp,
        parts: &[(&Charge, Q)],
    ) -> Result<Vec<PoolStanding>, (usize, NotTaken)> {
        self.charge_fits(log, parts)?;
        for (part, _) in parts {
            if let Some(pool) = self.counters.pool_mut(&part.account, part.window.id) {
                let lapses = self.regions.lapses(&part.holder);
                pool.charge(&part.holder, part.units, lapses);
            }
        }
        let standing = |(part, _): &(&Charge, Q)| {
            self.standing(&part.account, part.window.id, Some(&part.holder))
                .unwrap_or_default()
        };
        Ok(parts.iter().map(standing).collect())
    }

    /// Gives back at most `units` of what `holder` spent or was charged in a window that the book still
    /// knows, and says how many. `totals` is what is known of the holder's use by now. The caller remembers
    /// which refunds it has seen.
    pub fn refund(
        &mut self,
        log: Timestamp,
        account: &Account,
        window: WindowId,
        holder: &Holder,
        totals: Totals,
        units: u64,
    ) -> u64 {
        self.advance(log);
        let (counters, now) = self.counters_now();
        counters.take(&now, account, window, holder, totals);
        counters
            .pool_mut(account, window)
            .map_or(0, |pool| pool.refund(holder, units))
    }

    /// Looks at `budget` windows at most, and forgets those that ended [`KEPT_AFTER_END`] ago, the earliest first, and
    /// buckets that are like new ones and were not touched for a while; hands out how they were used.
    pub fn expire(&mut self, log: Timestamp, budget: usize) -> Vec<Proof> {
        let log = self.advance(log);
        let mut closed = Vec::new();
        let mut budget = budget;
        let (counters, now) = self.counters_now();
        while let Some((account, pool)) =
            counters.close_ended(log.minus(KEPT_AFTER_END), &now, &mut budget)
        {
            closed.push(Proof::of(account, &pool, now.regions));
        }
        closed
    }

    // Views.

    /// What an entry for `window` would find at `log` under `quota`.
    ///
    /// # Errors
    /// Why such an entry would be granted nothing.
    pub fn preview(
        &self,
        log: Timestamp,
        account: &Account,
        window: Window,
        quota: impl Into<Quota>,
    ) -> Result<Preview, NotTaken> {
        let now = self.moment(log);
        self.counters
            .preview(&self.bounds, &now, account, window, quota.into())
    }

    /// An open window's bounds and the quota that was last in force there.
    pub fn window(&self, account: &Account, window: WindowId) -> Option<(Window, Quota)> {
        let pool = self.counters.pool(account, window)?;
        Some((pool.window(), pool.quota()))
    }

    /// What `holder` has had to do with a window; nothing when it is not known there.
    pub fn tally(&self, account: &Account, window: WindowId, holder: &Holder) -> Tally {
        self.counters
            .pool(account, window)
            .map_or_else(Tally::default, |pool| pool.tally(holder))
    }

    /// Up to which total of what it was granted the units of `holder` count as spent, by the leases that have
    /// ended.
    pub fn lapsed_to(&self, account: &Account, window: WindowId, holder: &Holder) -> u64 {
        let Some(pool) = self.counters.pool(account, window) else {
            return 0;
        };
        let pool = pool.at(&self.moment(self.log), pool.quota());
        pool.tally(holder).lapsed_to
    }

    /// All holders of a window that are kept apart, by region and process.
    pub fn tallies(
        &self,
        account: &Account,
        window: WindowId,
    ) -> impl Iterator<Item = (&Holder, &Tally)> {
        self.counters
            .pool(account, window)
            .into_iter()
            .flat_map(Pool::rows)
    }

    /// How an open window stands, seen by `holder`.
    pub fn standing(
        &self,
        account: &Account,
        window: WindowId,
        holder: Option<&Holder>,
    ) -> Option<PoolStanding> {
        self.standing_at(self.log, account, window, holder)
    }

    /// How an open window would stand at log time `log`, seen by `holder`.
    pub fn standing_at(
        &self,
        log: Timestamp,
        account: &Account,
        window: WindowId,
        holder: Option<&Holder>,
    ) -> Option<PoolStanding> {
        let pool = self.counters.pool(account, window)?;
        let pool = pool.at(&self.moment(log), pool.quota());
        Some(pool.standing(holder, self.stranded(&pool)))
    }

    /// How an open window was used so far.
    pub fn proof(&self, account: &Account, window: WindowId) -> Option<Proof> {
        let pool = self.counters.pool(account, window)?;
        Some(Proof::of(account.clone(), pool, &self.regions))
    }

    /// How the open window of a counter was used so far that contains `at`; of several epochs the newest
    /// one's.
    pub fn proof_at(&self, tenant: &str, limit: &str, key: &str, at: Timestamp) -> Option<Proof> {
        let (account, pool) = self.counters.at(tenant, limit, key, at)?;
        Some(Proof::of(account, pool, &self.regions))
    }

    /// Open counters, over all tenants.
    pub fn counters(&self) -> usize {
        self.counters.len()
    }

    /// Whether any window of a counter is open, whatever its epoch.
    pub fn counts(&self, tenant: &str, limit: &LimitName, key: &str) -> bool {
        self.counters.contains(tenant, limit, key)
    }

    /// Whether any window of a tenant's counters is open.
    pub fn counts_tenant(&self, tenant: &str) -> bool {
        self.counters.contains_tenant(tenant)
    }

    /// The account of every open window, in order.
    pub fn accounts(&self) -> impl Iterator<Item = Account> + '_ {
        self.counters.iter().map(|(account, _)| account)
    }

    /// Open windows of an account, in order.
    pub fn windows(&self, account: &Account) -> impl Iterator<Item = Window> + '_ {
        self.counters.windows(account)
    }

    fn stranded(&self, pool: &Pool) -> u64 {
        let ended = pool.ended().map(|(_, tally)| tally);
        pool.rows()
            .filter(|(holder, _)| !self.regions.is_newest(holder))
            .map(|(_, tally)| tally)
            .chain(ended)
            .fold(pool.withheld(), |sum, tally| {
                sum.saturating_add(tally.outstanding())
            })
    }

    /// Every window whose units do not add up, by how many; none, always. For the laws and the simulator.
    pub fn imbalances(&self) -> Vec<(Account, WindowId, i128)> {
        self.counters
            .iter()
            .map(|(account, pool)| (account, pool.window().id, pool.imbalance()))
            .filter(|(_, _, imbalance)| *imbalance != 0)
            .collect()
    }
}
