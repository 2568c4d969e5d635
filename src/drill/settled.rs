//! Which counters are compared at the end, and whether the regions count alike.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use crate::domain::limit::Mode;

use super::record::Answer;
use super::record::Call;
use super::record::Counted;
use super::scenario::Scenario;

/// Strict windows of one limit that are compared: the newest ones.
const WINDOWS_MAX: usize = 60;

/// A window of a counter: tenant, key, epoch, start.
pub type Window = (String, u32, u64, i64);

/// The key that callers bring for key number `key`.
pub fn key_name(key: u32) -> String {
    format!("user {key}")
}

/// Units that callers were told as allowed, by strict window.
pub fn used_windows(scenario: &Scenario, calls: &[Call], limit: usize) -> BTreeMap<Window, u64> {
    let mut used = BTreeMap::new();
    for call in calls {
        let Some(load) = scenario.loads.get(call.load) else {
            continue;
        };
        if let Answer::Allowed(said) = &call.answer
            && load.limit == limit
            && let Some(start) = said.window_start_ms
        {
            *used
                .entry((load.tenant.clone(), call.key, said.epoch, start))
                .or_default() += call.cost;
        }
    }
    used
}

/// The windows of a strict limit that are compared: the newest that callers were allowed something in.
pub fn strict_windows(scenario: &Scenario, calls: &[Call], limit: usize) -> Vec<Window> {
    let used = used_windows(scenario, calls, limit);
    let mut windows: Vec<Window> = used.into_keys().collect();
    windows.sort_by_key(|(.., start)| std::cmp::Reverse(*start));
    windows.truncate(WINDOWS_MAX);
    windows
}

/// The counters of a limit that callers asked for: tenant and key.
pub fn counters<'a>(
    scenario: &'a Scenario,
    calls: &[Call],
    limit: usize,
) -> BTreeSet<(&'a str, u32)> {
    let mut counters = BTreeSet::new();
    for call in calls {
        let load = scenario.loads.get(call.load);
        if let Some(load) = load.filter(|load| load.limit == limit) {
            counters.insert((load.tenant.as_str(), call.key));
        }
    }
    counters
}

/// Units that callers were told of strict limits, by window.
#[derive(Clone, Debug, Default)]
pub struct Told(Vec<BTreeMap<Window, u64>>);

impl Told {
    /// What callers were told.
    pub fn new(scenario: &Scenario, calls: &[Call]) -> Self {
        let limits = scenario.limits.iter().enumerate();
        let told = limits.map(|(at, limit)| match limit.mode() {
            Mode::Strict => used_windows(scenario, calls, at),
            Mode::Approximate | Mode::Regional => BTreeMap::new(),
        });
        Self(told.collect())
    }

    /// The first counter that the regions do not count alike, or of which units that callers were told have not been told
    /// to the leader yet; `None`: all is settled.
    pub fn difference(&self, scenario: &Scenario, counted: &[Counted]) -> Option<String> {
        counted.iter().find_map(|one| {
            let first = one.used.first().copied().flatten();
            let place = (one.tenant.clone(), one.key, one.epoch, one.window_start_ms);
            let least = self.0.get(one.limit).and_then(|told| told.get(&place));
            let least = least.copied().unwrap_or(0);
            let is_same = first.is_some() && one.used.iter().all(|used| *used == first);
            let most = first.unwrap_or(0) + one.stranded + one.held;
            let is_settled = is_same && most >= least;
            let name = scenario.limits.get(one.limit).map_or("?", |limit| &limit.name);
            (!is_settled).then(|| {
                format!(
                    "{name}, tenant {}, key {}: the regions count {:?}, {} stranded, {} held, where callers were told {least}",
                    one.tenant, one.key, one.used, one.stranded, one.held
                )
            })
        })
    }
}
