//! The auditor knows every admitted unit and what the log says. It panics on the first violation; what it
//! counted makes the tables.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use highwater::domain::time::Timestamp;
use highwater::domain::time::WindowId;
use highwater::grants::account::Account;
use highwater::grants::book::PREFETCH_MAX;

use super::bucket::BucketAudit;
use super::bucket::Happens;
use super::replica::counter_of;

/// What is known of one window of one account.
#[derive(Clone, Debug, Default)]
pub struct WindowAudit {
    /// Spent from reservations.
    pub spent: u64,
    /// Charged by the leader.
    pub charged: u64,
    /// Given back through the log.
    pub refunded: u64,
    /// Whether all of the largest quota in force was used at some time.
    pub is_filled: bool,
    /// Spent and charged before the book opened a newer epoch of the same window; `None` in the newest.
    pub when_superseded: Option<u64>,
}

impl WindowAudit {
    pub fn used(&self) -> u64 {
        let used = self.spent + self.charged;
        assert!(self.refunded <= used, "S7: more given back than used");
        used - self.refunded
    }

    /// All of the newest epoch, and of others what was used beside it.
    fn used_beside_newest(&self) -> u64 {
        self.when_superseded.map_or(self.used(), |then| {
            (self.spent + self.charged).saturating_sub(then)
        })
    }
}

/// Everything that happened.
#[derive(Clone, Debug, Default)]
pub struct Audit {
    pub windows: BTreeMap<(Account, WindowId), WindowAudit>,
    /// By counter, those that are buckets.
    pub buckets: BTreeMap<usize, BucketAudit>,
    /// Those that gave all that they had when it was asked for at the end.
    pub emptied: BTreeSet<usize>,
    /// By counter: since when, which quota.
    quotas: BTreeMap<usize, Vec<(Timestamp, u64)>>,
    /// The newest epoch that the book has in a window of a counter.
    newest: BTreeMap<(usize, WindowId), u64>,
    pub checks: u64,
    pub local: u64,
    pub granted: u64,
    pub granted_local: u64,
    pub granted_units: u64,
    pub refused: u64,
    pub refused_early: u64,
    pub out_of_reach: u64,
    pub unavailable: u64,
    pub keyed: u64,
    pub keyed_charged: u64,
    pub refunds: u64,
    pub entries: u64,
    pub faults: BTreeMap<&'static str, u64>,
    /// Waits in ms of all checks, and of granted ones.
    pub waits: Vec<u32>,
    pub grant_waits: Vec<u32>,
    /// Units that were asked for, by window with traffic.
    pub wanted: BTreeMap<u64, u64>,
    /// Checks that came while no leader was there, and those of them granted at once.
    pub leaderless: (u64, u64),
}

impl Audit {
    pub fn fault(&mut self, kind: &'static str) {
        *self.faults.entry(kind).or_default() += 1;
    }

    /// The log puts `quota` in force for a counter.
    pub fn in_force(&mut self, log: Timestamp, account: &Account, quota: u64) {
        let history = self.quotas.entry(counter_of(account)).or_default();
        history.push((log, quota));
    }

    /// The book knows a window of an account. Of older epochs it keeps back what may still be spent there.
    pub fn opened(&mut self, account: &Account, window: WindowId) {
        let counter = counter_of(account);
        let newest = self.newest.entry((counter, window)).or_default();
        if account.epoch <= *newest {
            return;
        }
        *newest = account.epoch;
        for ((known, id), audit) in &mut self.windows {
            if counter_of(known) == counter && *id == window && known.epoch < account.epoch {
                audit.when_superseded = Some(audit.spent + audit.charged);
            }
        }
    }

    /// The largest quota that was in force while units of a window could be granted.
    pub fn quota_max(&self, counter: usize, window: WindowId) -> u64 {
        let opens = Timestamp::from_nanos(window.0).minus(PREFETCH_MAX);
        let mut most = 0;
        for (since, quota) in self.quotas[&counter].iter().rev() {
            most = most.max(*quota);
            if *since <= opens {
                break;
            }
        }
        most
    }

    /// Something happens to a counter, if it is a bucket; whether it is. `at`: by the time that buckets earn by.
    pub fn bucket(&mut self, at: u64, account: &Account, what: Happens) -> bool {
        let Some(bucket) = self.buckets.get_mut(&counter_of(account)) else {
            return false;
        };
        let is_old = account.epoch < bucket.epoch();
        // What went back to an epoch that is over is of no use to anybody.
        if !(is_old && matches!(what, Happens::Credit(_))) {
            bucket.happens(at, what);
        }
        true
    }

    pub fn window(&mut self, account: &Account, window: WindowId) -> &mut WindowAudit {
        let newest = self.newest.get(&(counter_of(account), window));
        let is_superseded = newest.is_some_and(|newest| account.epoch < *newest);
        self.windows
            .entry((account.clone(), window))
            .or_insert_with(|| WindowAudit {
                when_superseded: is_superseded.then_some(0),
                ..WindowAudit::default()
            })
    }

    /// S2, S7 and design 2.2, after units of a window were used.
    pub fn assert_within(&mut self, account: &Account, window: WindowId) {
        let counter = counter_of(account);
        let quota = self.quota_max(counter, window);
        let own = &self.windows[&(account.clone(), window)];
        assert!(
            own.used() <= quota,
            "S2: {} of {quota} used in {account:?} {window:?}",
            own.used(),
        );
        let mut together = 0;
        for ((known, id), audit) in &self.windows {
            if counter_of(known) == counter && *id == window {
                together += audit.used_beside_newest();
            }
        }
        assert!(
            together <= quota,
            "S2: {together} of {quota} used by the newest epoch of {counter} and beside it in {window:?}"
        );
        if quota > 0 && together == quota {
            self.window(account, window).is_filled = true;
        }
    }

    /// Units that nobody used of a window, as things are.
    pub fn unused(&self, account: &Account, window: WindowId) -> u64 {
        let used = self
            .windows
            .get(&(account.clone(), window))
            .map_or(0, WindowAudit::used);
        self.quota_max(counter_of(account), window)
            .saturating_sub(used)
    }

    pub fn waited(&mut self, nanos: u64, is_granted: bool) {
        let ms = u32::try_from(nanos.div_ceil(1_000_000)).unwrap_or(u32::MAX);
        // Less than the way to the own region and back is no wait.
        let ms = if nanos < 100_000 { 0 } else { ms };
        self.waits.push(ms);
        if is_granted {
            self.grant_waits.push(ms);
        }
    }
}

/// The value below which `percent` of `values` lie.
pub fn percentile(values: &mut [u32], percent: u32) -> u32 {
    if values.is_empty() {
        return 0;
    }
    values.sort_unstable();
    let place = (values.len() - 1) * percent as usize / 100;
    values[place]
}
