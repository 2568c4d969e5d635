//! All open counters: their epochs, their windows, and which of them ends first.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use compact_str::CompactString;
use serde::Deserialize;
use serde::Serialize;

use crate::domain::name::LimitName;
use crate::domain::time::Timestamp;
use crate::domain::time::Window;
use crate::domain::time::WindowId;
use crate::grants::account::Account;
use crate::grants::account::Holder;
use crate::grants::account::Quota;
use crate::grants::account::Totals;
use crate::grants::book::Bounds;
use crate::grants::book::NotTaken;
use crate::grants::book::PREFETCH_MAX;
use crate::grants::book::Preview;
use crate::grants::book::WINDOWS_PER_COUNTER_MAX;
use crate::grants::book::bucket::NAMED_WITHIN;
use crate::grants::book::pool::Moment;
use crate::grants::book::pool::Pool;

/// A counter without its epoch.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Name {
    tenant: CompactString,
    limit: LimitName,
    key: CompactString,
}

impl Name {
    fn of(account: &Account) -> Self {
        Self {
            tenant: account.tenant.clone(),
            limit: account.limit.clone(),
            key: account.key.clone(),
        }
    }

    fn account(&self, epoch: u64) -> Account {
        Account {
            tenant: self.tenant.clone(),
            limit: self.limit.clone(),
            key: self.key.clone(),
            epoch,
        }
    }
}

/// The open windows of one counter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Counter {
    /// The newest epoch that had a window while this counter was open.
    newest: u64,
    /// By epoch and window.
    pools: BTreeMap<(u64, WindowId), Pool>,
}

impl Counter {
    fn epoch(&self, epoch: u64) -> impl Iterator<Item = &Pool> {
        self.pools
            .range((epoch, WindowId(i64::MIN))..=(epoch, WindowId(i64::MAX)))
            .map(|(_, pool)| pool)
    }

    /// `window` cut to what the account's other windows leave: two leaders may have different tables of
    /// time zones, and no instant belongs to two windows.
    fn cut(&self, epoch: u64, window: Window) -> Window {
        let mut cut = window;
        for other in self.epoch(epoch).map(Pool::window) {
            if other.id < window.id {
                cut.start = cut.start.max(other.end);
            } else {
                cut.end = cut.end.min(other.start);
            }
        }
        cut
    }

    /// Units of earlier epochs that may be spent beside `window`, window by window.
    fn beside(&self, epoch: u64, window: Window) -> impl Iterator<Item = (u64, &Pool, u64)> {
        self.pools
            .range(..(epoch, WindowId(i64::MIN)))
            .filter(move |(_, pool)| {
                pool.window().start < window.end && window.start < pool.window().end
            })
            .map(|((epoch, _), pool)| (*epoch, pool, pool.outstanding()))
    }
}

fn check_running(log: Timestamp, window: Window) -> Result<(), NotTaken> {
    let is_one = window.start < window.end;
    if is_one && log < window.end && window.start <= log.plus(PREFETCH_MAX) {
        Ok(())
    } else {
        Err(NotTaken::WindowClosed)
    }
}

/// As [`check_running`], for a window that is not open. The name of a bucket must be young: an entry that
/// comes late must not give a name again that was forgotten.
fn check_new(log: Timestamp, window: Window) -> Result<(), NotTaken> {
    if window.is_endless() && log.since(window.start) > NAMED_WITHIN {
        return Err(NotTaken::WindowClosed);
    }
    check_running(log, window)
}

/// All open counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Counters {
    counters: BTreeMap<Name, Counter>,
    by_tenant: BTreeMap<CompactString, usize>,
    ends: BTreeSet<(Timestamp, Name, u64, WindowId)>,
}

impl Counters {
    /// All that cannot be worked out from the rest.
    pub(super) const fn parts(&self) -> &BTreeMap<Name, Counter> {
        &self.counters
    }

    pub(super) fn from_parts(counters: BTreeMap<Name, Counter>) -> Self {
        let mut by_tenant = BTreeMap::new();
        let mut ends = BTreeSet::new();
        for (name, counter) in &counters {
            *by_tenant.entry(name.tenant.clone()).or_default() += 1;
            for ((epoch, id), pool) in &counter.pools {
                ends.insert((pool.look_at(), name.clone(), *epoch, *id));
            }
        }
        Self {
            counters,
            by_tenant,
            ends,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.counters.len()
    }

    pub(super) fn contains(&self, tenant: &str, limit: &LimitName, key: &str) -> bool {
        self.counters.contains_key(&Name {
            tenant: tenant.into(),
            limit: limit.clone(),
            key: key.into(),
        })
    }

    pub(super) fn contains_tenant(&self, tenant: &str) -> bool {
        self.by_tenant.contains_key(tenant)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Account, &Pool)> {
        self.counters.iter().flat_map(|(name, counter)| {
            let pools = counter.pools.iter();
            pools.map(|((epoch, _), pool)| (name.account(*epoch), pool))
        })
    }

    pub(super) fn windows(&self, account: &Account) -> impl Iterator<Item = Window> + '_ {
        let epoch = account.epoch;
        self.counters
            .get(&Name::of(account))
            .into_iter()
            .flat_map(move |counter| counter.epoch(epoch).map(Pool::window))
    }

    /// The window of a counter that contains `at`; of several epochs the newest one's.
    pub(super) fn at(
        &self,
        tenant: &str,
        limit: &str,
        key: &str,
        at: Timestamp,
    ) -> Option<(Account, &Pool)> {
        let name = Name {
            tenant: CompactString::new(tenant),
            limit: LimitName::new(limit).ok()?,
            key: CompactString::new(key),
        };
        let pools = self.counters.get(&name)?.pools.iter();
        let ((epoch, _), pool) = pools.rev().find(|(_, pool)| {
            let window = pool.window();
            (window.start..window.end).contains(&at)
        })?;
        Some((name.account(*epoch), pool))
    }

    pub(super) fn pool(&self, account: &Account, window: WindowId) -> Option<&Pool> {
        let counter = self.counters.get(&Name::of(account))?;
        counter.pools.get(&(account.epoch, window))
    }

    pub(super) fn pool_mut(&mut self, account: &Account, window: WindowId) -> Option<&mut Pool> {
        let counter = self.counters.get_mut(&Name::of(account))?;
        counter.pools.get_mut(&(account.epoch, window))
    }

    /// Counts what `holder` told; what came back also pays newer epochs that it was withheld from.
    pub(super) fn take(
        &mut self,
        now: &Moment<'_>,
        account: &Account,
        window: WindowId,
        holder: &Holder,
        said: Totals,
    ) {
        let epoch = account.epoch;
        let Some(counter) = self.counters.get_mut(&Name::of(account)) else {
            return;
        };
        let Some(pool) = counter.pools.get_mut(&(epoch, window)) else {
            return;
        };
        pool.catch_up(now);
        let returned = pool.take(holder, said);
        if returned > 0 && epoch < counter.newest {
            let newer = (epoch.saturating_add(1), WindowId(i64::MIN))..;
            for pool in counter.pools.range_mut(newer).map(|(_, pool)| pool) {
                pool.pay_back(epoch, window, returned);
            }
        }
    }

    fn check_room(&self, bounds: &Bounds, name: &Name) -> Result<(), NotTaken> {
        let is_full = match self.counters.get(name) {
            Some(counter) => counter.pools.len() >= WINDOWS_PER_COUNTER_MAX,
            None => {
                let of_tenant = self.by_tenant.get(&name.tenant).copied().unwrap_or(0);
                of_tenant >= bounds.counters_per_tenant_max
                    || self.counters.len() >= bounds.counters_max
            }
        };
        if is_full {
            Err(NotTaken::Capacity)
        } else {
            Ok(())
        }
    }

    /// As [`Counters::open`], without opening.
    pub(super) fn preview(
        &self,
        bounds: &Bounds,
        now: &Moment<'_>,
        account: &Account,
        window: Window,
        quota: Quota,
    ) -> Result<Preview, NotTaken> {
        let log = now.log;
        let name = Name::of(account);
        let epoch = account.epoch;
        let Some(counter) = self.counters.get(&name) else {
            check_new(log, window)?;
            self.check_room(bounds, &name)?;
            return Ok(Preview {
                window,
                free: i128::from(quota.units()),
                next_in: None,
                is_full: true,
            });
        };
        if epoch < counter.newest {
            return Err(NotTaken::Superseded);
        }
        if let Some(pool) = counter.pools.get(&(epoch, window.id)) {
            check_running(log, pool.window())?;
            let pool = pool.at(now, quota);
            return Ok(Preview {
                window: pool.window(),
                free: pool.free_at(log, quota),
                next_in: pool.next_in(),
                is_full: pool.drawn() == Some(0),
            });
        }
        let window = counter.cut(epoch, window);
        check_new(log, window)?;
        self.check_room(bounds, &name)?;
        let withheld: i128 = counter
            .beside(epoch, window)
            .filter(|(_, other, _)| other.window().end > log)
            .map(|(_, _, units)| i128::from(units))
            .sum();
        Ok(Preview {
            window,
            free: i128::from(quota.units()) - withheld,
            next_in: None,
            is_full: true,
        })
    }

    /// The pool of a window that runs at `log` or is about to, under `quota`; opened if need be.
    pub(super) fn open(
        &mut self,
        bounds: &Bounds,
        now: &Moment<'_>,
        account: &Account,
        window: Window,
        quota: Quota,
    ) -> Result<&mut Pool, NotTaken> {
        let window = self.preview(bounds, now, account, window, quota)?.window;
        let name = Name::of(account);
        let place = (account.epoch, window.id);
        if !self.counters.contains_key(&name) {
            *self.by_tenant.entry(name.tenant.clone()).or_default() += 1;
        }
        let ends = &mut self.ends;
        let counter = self.counters.entry(name.clone()).or_default();
        counter.newest = counter.newest.max(account.epoch);
        if !counter.pools.contains_key(&place) {
            let mut pool = Pool::new(window, quota, now);
            for (epoch, other, units) in counter.beside(account.epoch, window) {
                pool.withhold(epoch, other, units);
            }
            ends.insert((pool.look_at(), name, account.epoch, window.id));
            counter.pools.insert(place, pool);
        }
        let pool = counter
            .pools
            .get_mut(&place)
            .ok_or(NotTaken::WindowClosed)?;
        pool.prepare(now, quota);
        Ok(pool)
    }

    /// Takes out the first window that ended at `by` or before, or bucket that nobody needs any more. Looks at
    /// `budget` windows at most, and takes what it looked at from it.
    pub(super) fn close_ended(
        &mut self,
        by: Timestamp,
        now: &Moment<'_>,
        budget: &mut usize,
    ) -> Option<(Account, Pool)> {
        while *budget > 0 && self.ends.first()?.0 <= by {
            *budget -= 1;
            let (_, name, epoch, id) = self.ends.pop_first()?;
            let counter = self.counters.get_mut(&name)?;
            let is_newest = epoch == counter.newest;
            let pool = counter.pools.get_mut(&(epoch, id))?;
            if !pool.is_over(now, is_newest) {
                self.ends.insert((pool.look_at(), name, epoch, id));
                continue;
            }
            let pool = counter.pools.remove(&(epoch, id))?;
            if counter.pools.is_empty() {
                self.counters.remove(&name);
                if let Some(count) = self.by_tenant.get_mut(&name.tenant) {
                    *count -= 1;
                    if *count == 0 {
                        self.by_tenant.remove(&name.tenant);
                    }
                }
            }
            return Some((name.account(epoch), pool));
        }
        None
    }
}
