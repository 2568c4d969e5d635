//! Which counters are compared at the end, and whether the regions count alike.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use crate::domain::limit::Mode;

use super::record::Answer;
use super::record::Call;
use super::record::Counted;
use super::scenario::DrillLimit;
use super::scenario::Scenario;

/// Starts of windows of one limit that are compared, of all its keys: the newest ones.
const STARTS_MAX: usize = 60;
/// Windows of one limit that are compared. More would take longer to ask for than a drill waits.
const WINDOWS_MAX: usize = 10_000;

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
        // What a failure policy let through of a strict limit is outside of what that promises.
        let mode = scenario.limits.get(limit).map(DrillLimit::mode);
        if let Answer::Allowed(said) = &call.answer
            && load.limit == limit
            && !(mode == Some(Mode::Strict) && call.answer.is_by_policy())
            && let Some(start) = said.window_start_ms
        {
            *used
                .entry((load.tenant.clone(), call.key, said.epoch, start))
                .or_default() += call.cost;
        }
    }
    used
}

/// The windows of a strict limit that are compared: of the newest starts at which callers were allowed something.
pub fn strict_windows(scenario: &Scenario, calls: &[Call], limit: usize) -> Vec<Window> {
    let used = used_windows(scenario, calls, limit);
    let starts: BTreeSet<i64> = used.keys().map(|(.., start)| *start).collect();
    let first = starts.iter().rev().take(STARTS_MAX).next_back().copied();
    let mut windows: Vec<Window> = used.into_keys().collect();
    windows.retain(|(.., start)| Some(*start) >= first);
    windows.sort_by_key(|(.., start)| std::cmp::Reverse(*start));
    windows.truncate(WINDOWS_MAX);
    windows
}

/// Windows of a strict limit in which callers were allowed something, and which are not compared.
pub fn left_out(scenario: &Scenario, calls: &[Call], limit: usize) -> usize {
    let mode = scenario.limits.get(limit).map(DrillLimit::mode);
    if mode != Some(Mode::Strict) {
        return 0;
    }
    let used = used_windows(scenario, calls, limit).len();
    used - strict_windows(scenario, calls, limit).len()
}

/// Epoch, window and units as a region tells them of a counter; `None`: it does not.
pub type Told = Option<(u64, i64, u64)>;

/// What regions tell of one counter as of one window: epoch, start, and units by region, absent where a region tells
/// nothing or of another window. The window is that of the first region that tells one; when none does nothing is told of
/// window 0, so that the counter is not taken for one on which all agree.
pub fn one_window(told: &[Told]) -> (u64, i64, Vec<Option<u64>>) {
    let first = told.iter().flatten().next();
    let (epoch, start, _) = first.copied().unwrap_or_default();
    let of_window = |told: &Told| {
        let (its_epoch, its_start, used) = (*told)?;
        ((its_epoch, its_start) == (epoch, start)).then_some(used)
    };
    (epoch, start, told.iter().map(of_window).collect())
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

/// So long the regions must have counted alike when that is fewer units than callers were told of an approximate
/// limit: longer than what was admitted last is on its way. Units that a region lost when it died never come.
const SHORT_MS: u64 = 2_000;

/// Compares what the regions count until that is settled.
#[derive(Clone, Debug)]
pub struct Settling {
    /// Units that callers were told, by limit and window.
    told: Vec<BTreeMap<Window, u64>>,
    /// Since when the regions count alike, and fewer units than callers were told.
    short_from_ms: Option<u64>,
}

/// How the regions count one window.
enum Count {
    /// Alike, and all that callers were told.
    Whole,
    /// Alike, and fewer.
    Short,
    /// Not alike, or of strict units not all that callers were told.
    Apart,
}

impl Settling {
    /// For what callers were told.
    pub fn new(scenario: &Scenario, calls: &[Call]) -> Self {
        let limits = scenario.limits.iter().enumerate();
        let told = limits.map(|(at, limit)| match limit.mode() {
            Mode::Strict | Mode::Approximate => used_windows(scenario, calls, at),
            Mode::Regional => BTreeMap::new(),
        });
        Self {
            told: told.collect(),
            short_from_ms: None,
        }
    }

    /// Compares once more, at `now_ms`. Gives since when everything is settled.
    ///
    /// # Errors
    /// Says what is not settled yet.
    pub fn compare(
        &mut self,
        now_ms: u64,
        scenario: &Scenario,
        counted: &[Counted],
    ) -> Result<u64, String> {
        let mut short = None;
        for one in counted {
            match self.count(scenario, one) {
                Count::Whole => {}
                Count::Short => short = short.or(Some(one)),
                Count::Apart => {
                    self.short_from_ms = None;
                    return Err(self.say(scenario, one));
                }
            }
        }
        let Some(short) = short else {
            return Ok(now_ms);
        };
        let from_ms = *self.short_from_ms.get_or_insert(now_ms);
        if now_ms < from_ms + SHORT_MS {
            return Err(self.say(scenario, short));
        }
        Ok(from_ms)
    }

    fn told(&self, one: &Counted) -> u64 {
        let place = (one.tenant.clone(), one.key, one.epoch, one.window_start_ms);
        let told = self.told.get(one.limit).and_then(|told| told.get(&place));
        told.copied().unwrap_or(0)
    }

    fn count(&self, scenario: &Scenario, one: &Counted) -> Count {
        let Some(first) = one.used.first().copied().flatten() else {
            return Count::Apart;
        };
        let is_whole = first + one.stranded + one.held >= self.told(one);
        let mode = scenario.limits.get(one.limit).map(DrillLimit::mode);
        if one.used.iter().any(|used| *used != Some(first)) {
            Count::Apart
        } else if is_whole {
            Count::Whole
        } else if mode == Some(Mode::Approximate) {
            Count::Short
        } else {
            Count::Apart
        }
    }

    fn say(&self, scenario: &Scenario, one: &Counted) -> String {
        let used: Vec<String> = one
            .used
            .iter()
            .map(|used| used.map_or_else(|| "nothing".to_owned(), |used| used.to_string()))
            .collect();
        let name = scenario
            .limits
            .get(one.limit)
            .map_or("?", |limit| &limit.name);
        format!(
            "{name}, tenant {}, key {}: the regions count {}, {} stranded, {} held, where callers were told {}",
            one.tenant,
            one.key,
            used.join(", "),
            one.stranded,
            one.held,
            self.told(one)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drill::record::Said;

    const SCENARIO: &str = r#"
title    = "Two regions"
regions  = ["a-1", "b-1"]
duration = "5s"
expect   = [{ that = "converged", within = "5s" }]
[limits]
loose = { algorithm = "fixed_window", quota = 9, window = "1d", mode = "approximate" }
tight = { algorithm = "fixed_window", quota = 9, window = "1d", mode = "strict" }
[[load]]
limit = "loose"
rate  = 1
[[load]]
limit = "tight"
rate  = 1
"#;

    /// Callers were told of so many units of the limit with this number.
    fn settling(scenario: &Scenario, limit: usize, units: u64) -> Settling {
        let said = Said {
            epoch: 1,
            window_start_ms: Some(0),
            ..Said::default()
        };
        let call = Call {
            load: limit,
            home: 0,
            region: 0,
            key: 0,
            cost: units,
            sent_ms: 0,
            heard_ms: 1,
            tries: 1,
            answer: Answer::Allowed(said),
        };
        Settling::new(scenario, &[call])
    }

    fn counted(scenario: &Scenario, limit: usize, used: [Option<u64>; 2]) -> [Counted; 1] {
        [Counted {
            limit,
            tenant: scenario.loads[limit].tenant.clone(),
            key: 0,
            epoch: 1,
            window_start_ms: 0,
            used: used.to_vec(),
            stranded: 0,
            held: 0,
        }]
    }

    #[test]
    fn regions_that_count_alike_what_callers_were_told_are_settled_at_once() {
        let scenario = Scenario::parse("two", SCENARIO).expect("a scenario");
        for limit in [0, 1] {
            let mut settling = settling(&scenario, limit, 5);
            let apart = counted(&scenario, limit, [Some(5), Some(4)]);
            assert!(settling.compare(10, &scenario, &apart).is_err());
            let silent = counted(&scenario, limit, [Some(5), None]);
            assert!(settling.compare(20, &scenario, &silent).is_err());
            let alike = counted(&scenario, limit, [Some(5), Some(5)]);
            assert_eq!(settling.compare(30, &scenario, &alike), Ok(30));
        }
    }

    /// Calls that were allowed a unit each: of this key, in the window that began then.
    fn allowed(limit: usize, windows: impl Iterator<Item = (u32, i64)>) -> Vec<Call> {
        let call = |(key, start): (u32, i64)| Call {
            load: limit,
            home: 0,
            region: 0,
            key,
            cost: 1,
            sent_ms: 0,
            heard_ms: 1,
            tries: 1,
            answer: Answer::Allowed(Said {
                window_start_ms: Some(start),
                ..Said::default()
            }),
        };
        windows.map(call).collect()
    }

    #[test]
    fn all_keys_of_the_newest_windows_are_compared() {
        let scenario = Scenario::parse("two", SCENARIO).expect("a scenario");
        let keys = allowed(1, (0..500).map(|key| (key, 0)));
        assert_eq!(strict_windows(&scenario, &keys, 1).len(), 500);
        assert_eq!(left_out(&scenario, &keys, 1), 0);
        let both = (0..70).flat_map(|start| [(0, start), (1, start)]);
        let many = allowed(1, both);
        let compared = strict_windows(&scenario, &many, 1);
        assert_eq!(compared.len(), 2 * STARTS_MAX);
        assert!(compared.iter().all(|(.., start)| *start >= 10));
        assert_eq!(left_out(&scenario, &many, 1), 20);
        let keys = u32::try_from(WINDOWS_MAX + 5).expect("small");
        let huge = allowed(1, (0..keys).map(|key| (key, 0)));
        assert_eq!(strict_windows(&scenario, &huge, 1).len(), WINDOWS_MAX);
        assert_eq!(left_out(&scenario, &huge, 1), 5);
    }

    #[test]
    fn a_region_that_tells_no_window_does_not_agree() {
        let told = [Some((1, 60, 5)), Some((1, 60, 6)), Some((1, 0, 5))];
        assert_eq!(one_window(&told), (1, 60, vec![Some(5), Some(6), None]));
        let silent = [None, Some((1, 60, 5)), Some((1, 60, 5))];
        assert_eq!(one_window(&silent), (1, 60, vec![None, Some(5), Some(5)]));
        assert_eq!(one_window(&[None, None]), (0, 0, vec![None, None]));
    }

    /// Each region lacks what another admitted last: they count alike by chance.
    #[test]
    fn regions_that_count_alike_by_chance_are_not_settled() {
        let scenario = Scenario::parse("two", SCENARIO).expect("a scenario");
        let mut settling = settling(&scenario, 0, 5);
        let short = counted(&scenario, 0, [Some(4), Some(4)]);
        assert_eq!(
            settling.compare(10, &scenario, &short),
            Err("loose, tenant a, key 0: the regions count 4, 4, 0 stranded, 0 held, where callers were told 5".to_owned())
        );
        let whole = counted(&scenario, 0, [Some(5), Some(5)]);
        assert_eq!(settling.compare(110, &scenario, &whole), Ok(110));
    }

    /// A region that died took units of an approximate limit with it.
    #[test]
    fn units_that_never_come_are_waited_for_only_so_long() {
        let scenario = Scenario::parse("two", SCENARIO).expect("a scenario");
        let mut settling = settling(&scenario, 0, 5);
        let short = counted(&scenario, 0, [Some(4), Some(4)]);
        let apart = counted(&scenario, 0, [Some(5), Some(4)]);
        assert!(settling.compare(10, &scenario, &short).is_err());
        assert!(settling.compare(1_000, &scenario, &apart).is_err());
        assert!(settling.compare(1_100, &scenario, &short).is_err());
        assert!(settling.compare(3_000, &scenario, &short).is_err());
        assert_eq!(settling.compare(3_100, &scenario, &short), Ok(1_100));
        // Strict units are never forgotten.
        let mut settling = self::settling(&scenario, 1, 5);
        let short = counted(&scenario, 1, [Some(4), Some(4)]);
        assert!(settling.compare(10, &scenario, &short).is_err());
        assert!(settling.compare(60_000, &scenario, &short).is_err());
    }
}
