//! Units that were admitted, by window, against the quota.

use std::collections::BTreeMap;

use crate::domain::limit::OnPartition;
use crate::domain::limit::Split;

use super::Found;
use super::percent;
use super::share_of;
use crate::drill::record::Answer;
use crate::drill::record::Call;
use crate::drill::record::Record;
use crate::drill::scenario::Action;
use crate::drill::scenario::DrillLimit;
use crate::drill::scenario::Scenario;
use crate::drill::scenario::Scope;
use crate::drill::scenario::Shape;

/// A bucket earns by the regions' clocks, which may go faster than the drill's by so many millionths, and the drill's
/// times are whole milliseconds.
const FAST_PPM: u64 = 600;
const ROUNDING_MS: u64 = 5;
/// A region notices within a second that it does not hear another; what was told takes two rounds, and the machine that
/// runs the drill may be busy for as long again.
const UNSEEN_MS: u64 = 1_700;
/// A drill whose callers stood still for less has asked as it was to.
const STALL_MS: u64 = 100;
/// A fault is still felt for so long after it is over.
const FELT_MS: u64 = 3_000;

/// A window of a counter: tenant, key, epoch and start.
pub type Place<'a> = (&'a str, u32, u64, i64);

/// What was asked and admitted in a window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Units that were asked for and decided.
    pub asked: u64,
    /// Units that were allowed.
    pub allowed: u64,
    /// Of these, decided by the failure policy.
    pub by_policy: u64,
    /// Of all that was asked: when, and how much.
    asks: Vec<(u64, u64)>,
}

impl Tally {
    /// The most units that were asked for within so long.
    fn most_within(&self, span_ms: u64) -> u64 {
        let mut asks = self.asks.clone();
        asks.sort_unstable();
        let (mut first, mut sum, mut most) = (0, 0, 0);
        for (at, units) in &asks {
            sum += units;
            while let Some((early, gone)) = asks.get(first)
                && early + span_ms < *at
            {
                sum -= gone;
                first += 1;
            }
            most = most.max(sum);
        }
        most
    }
}

/// Windows of a limit and what was admitted in them.
pub fn windows<'a>(
    scenario: &'a Scenario,
    record: &'a Record,
    limit: usize,
) -> BTreeMap<Place<'a>, Tally> {
    let mut windows: BTreeMap<Place<'a>, Tally> = BTreeMap::new();
    for (call, tenant) in calls_of(scenario, record, limit) {
        let Some(said) = call.answer.said() else {
            continue;
        };
        let Some(start) = said.window_start_ms else {
            continue;
        };
        let tally = windows
            .entry((tenant, call.key, said.epoch, start))
            .or_default();
        tally.asked += call.cost;
        tally.asks.push((call.sent_ms, call.cost));
        if matches!(call.answer, Answer::Allowed(_)) {
            tally.allowed += call.cost;
            // Of an approximate limit `degraded` says only that a region is not heard; the count goes on.
            if said.decided_by == "fallback" {
                tally.by_policy += call.cost;
            }
        }
    }
    windows
}

/// Calls for a limit, and whose they are.
pub fn calls_of<'a>(
    scenario: &'a Scenario,
    record: &'a Record,
    limit: usize,
) -> impl Iterator<Item = (&'a Call, &'a str)> {
    record.calls.iter().filter_map(move |call| {
        let load = scenario.loads.get(call.load)?;
        (load.limit == limit).then_some((call, load.tenant.as_str()))
    })
}

fn limit_of<'a>(scenario: &'a Scenario, scope: &Scope) -> Option<(usize, &'a DrillLimit)> {
    let at = scope.limit?;
    Some((at, scenario.limits.get(at)?))
}

/// In words which window it is.
fn place_name(place: &Place<'_>, record: &Record) -> String {
    let (tenant, key, epoch, start) = place;
    let after = start - record.began_unix_ms;
    format!(
        "tenant {tenant}, key {key}, epoch {epoch}, the window that began at {after} ms of the drill"
    )
}

/// No window, or bucket, of a strict limit admitted more than it may. What the failure policy let through is counted
/// apart: it says so in its answers.
pub(super) fn never_exceeded(scenario: &Scenario, record: &Record, scope: &Scope) -> Found {
    let wanted = "0 units over".to_owned();
    let Some((at, limit)) = limit_of(scenario, scope) else {
        return Found::nothing(wanted, "no limit");
    };
    if let Some((capacity, refill, per_ms)) = limit.bucket() {
        return bucket(scenario, record, at, (capacity, refill, per_ms));
    }
    let quota = limit.window().map_or(0, |(quota, _)| quota);
    let windows = windows(scenario, record, at);
    let admitted: u64 = windows.values().map(|tally| tally.allowed).sum();
    if admitted == 0 {
        return Found::nothing(wanted, "nothing was admitted");
    }
    let net = |tally: &Tally| tally.allowed - tally.by_policy;
    let full = windows.values().filter(|tally| net(tally) >= quota).count();
    let worst = windows.iter().max_by_key(|(_, tally)| net(tally));
    let Some((place, tally)) = worst else {
        return Found::nothing(wanted, "no window");
    };
    let over = net(tally).saturating_sub(quota);
    let by_policy: u64 = windows.values().map(|tally| tally.by_policy).sum();
    let note = if over > 0 {
        format!(
            "{} of {quota} units were allowed: {}",
            net(tally),
            place_name(place, record)
        )
    } else {
        format!(
            "{admitted} units in {} windows, {full} of them full; {by_policy} units by the failure policy",
            windows.len()
        )
    };
    Found {
        is_met: over == 0,
        found: format!("{over} units over"),
        wanted,
        note,
    }
}

/// Over any stretch of time a bucket gives no more than it holds and earns.
fn bucket(scenario: &Scenario, record: &Record, limit: usize, flow: (u64, u64, u64)) -> Found {
    let wanted = "0 units over".to_owned();
    let (capacity, refill, per_ms) = flow;
    let mut counters: BTreeMap<(&str, u32, u64), Vec<&Call>> = BTreeMap::new();
    for (call, tenant) in calls_of(scenario, record, limit) {
        if let Answer::Allowed(said) = &call.answer
            && said.decided_by != "fallback"
        {
            let counter = (tenant, call.key, said.epoch);
            counters.entry(counter).or_default().push(call);
        }
    }
    let mut worst: Option<(u64, String)> = None;
    let mut units = 0;
    for ((tenant, key, _), calls) in &mut counters {
        calls.sort_unstable_by_key(|call| call.heard_ms);
        units += calls.iter().map(|call| call.cost).sum::<u64>();
        for (place, first) in calls.iter().enumerate() {
            let mut sum = 0;
            // What was heard before it was sent was sent before it.
            let since = calls[..place].partition_point(|call| call.heard_ms < first.sent_ms);
            let later = calls[since..].iter();
            for call in later.filter(|call| call.sent_ms >= first.sent_ms) {
                sum += call.cost;
                let ms = call.heard_ms.saturating_sub(first.sent_ms);
                let ms = ms + ms * FAST_PPM / 1_000_000 + ROUNDING_MS;
                let earned = refill * ms / per_ms.max(1);
                // It was full again since: what came later is looked at from there.
                if sum + 2 * capacity < earned {
                    break;
                }
                let over = sum.saturating_sub(capacity + earned);
                if over > worst.as_ref().map_or(0, |(over, _)| *over) {
                    let note = format!(
                        "tenant {tenant}, key {key}: {sum} units between {} and {} ms",
                        first.sent_ms, call.heard_ms
                    );
                    worst = Some((over, note));
                }
            }
        }
    }
    if units == 0 {
        return Found::nothing(wanted, "nothing was admitted");
    }
    let note = format!("{units} units of {} buckets", counters.len());
    let (over, note) = worst.unwrap_or((0, note));
    Found {
        is_met: over == 0,
        found: format!("{over} units over"),
        wanted,
        note,
    }
}

/// No window of an approximate limit admitted more over its quota than is stated.
pub(super) fn overshoot(
    scenario: &Scenario,
    record: &Record,
    scope: &Scope,
    units: Option<u64>,
) -> Found {
    let nothing = || Found::nothing("a bounded overshoot".to_owned(), "nothing was admitted");
    let Some((at, limit)) = limit_of(scenario, scope) else {
        return nothing();
    };
    let Some((quota, length_ms)) = limit.window() else {
        return nothing();
    };
    let all = windows(scenario, record, at);
    let judged = all
        .iter()
        .filter(|(place, _)| is_within(place, length_ms, scope, record, false));
    // The window that is worst for its own bound.
    let worst = judged
        .map(|(place, tally)| {
            let over = tally.allowed.saturating_sub(quota);
            let most = units.unwrap_or_else(|| {
                stated(scenario, record, at, limit, (place.3, length_ms), tally)
            });
            (over.saturating_sub(most), over, most, place)
        })
        .max_by_key(|(beyond, over, ..)| (*beyond, *over));
    let Some((beyond, over, most, place)) = worst else {
        return nothing();
    };
    let full = all.values().filter(|tally| tally.allowed >= quota).count();
    let note = if beyond > 0 {
        place_name(place, record)
    } else {
        format!("{} windows, {full} of them full", all.len())
    };
    Found {
        is_met: beyond == 0,
        found: format!("{over} units over {quota}"),
        wanted: format!("at most {most} units over"),
        note,
    }
}

/// What the README states for a window of this limit under this load.
fn stated(
    scenario: &Scenario,
    record: &Record,
    at: usize,
    limit: &DrillLimit,
    (start, length_ms): (i64, u64),
    tally: &Tally,
) -> u64 {
    let (quota, _) = limit.window().unwrap_or((0, 1));
    let others = u64::try_from(scenario.regions.len().saturating_sub(1)).unwrap_or(0);
    let calm = others.max(quota.div_ceil(500));
    // A call of several units passes, or does not, as a whole.
    let cost = scenario
        .loads
        .iter()
        .filter(|load| load.limit == at)
        .map(|load| load.cost.1)
        .max()
        .unwrap_or(1);
    let calm = calm * cost;
    let is_hit_at_once = scenario
        .loads
        .iter()
        .any(|load| load.limit == at && load.shape == Shape::Bursty);
    if is_hit_at_once && limit.limit.split != Split::Equal {
        return others * quota;
    }
    let mut most = calm;
    if limit.limit.split == Split::None {
        most += tally.most_within(scenario.delay_ms_max() + 150);
    }
    // What was to be spread over time comes at once when callers stand still and go on.
    if record.stall_ms_max >= STALL_MS {
        most += tally.most_within(scenario.delay_ms_max() + 150);
    }
    let from = start - record.began_unix_ms;
    let is_felt = |from_ms: u64, until_ms: u64| {
        let (began, ended) = (signed(from_ms), signed(until_ms + FELT_MS));
        began < from.saturating_add(signed(length_ms)) && ended > from
    };
    let troubles = record.steps.iter().filter(|done| {
        let step = scenario.steps.get(done.step);
        step.is_some_and(|step| step.action.is_fault())
            && is_felt(done.began_ms, done.ended_ms.unwrap_or(record.ended_ms))
    });
    let mut is_cut = false;
    for done in troubles {
        let step = scenario.steps.get(done.step);
        is_cut |= step.is_some_and(|step| matches!(step.action, Action::Cut { .. }));
        let unseen = calm + tally.most_within(UNSEEN_MS + scenario.delay_ms_max());
        most = most.max(unseen);
    }
    if is_cut && limit.limit.on_partition == OnPartition::Open {
        most = most.max(others * quota);
    }
    most
}

/// Milliseconds that may be subtracted.
pub(super) fn signed(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX)
}

/// Whether a window lies in the time of the scope, wholly or in part.
fn is_within(
    place: &Place<'_>,
    length_ms: u64,
    scope: &Scope,
    record: &Record,
    is_whole: bool,
) -> bool {
    let from = place.3 - record.began_unix_ms;
    let until = from.saturating_add(signed(length_ms));
    let (scope_from, scope_until) = (signed(scope.from_ms), signed(scope.until_ms));
    if is_whole {
        from >= scope_from && until <= scope_until
    } else {
        from < scope_until && until > scope_from
    }
}

/// No whole window left more of its quota unused, while it was asked for, than this share.
pub(super) fn undershoot(scenario: &Scenario, record: &Record, scope: &Scope, share: u64) -> Found {
    let wanted = format!("at most {} of the quota unused", percent(share));
    let Some((at, limit)) = limit_of(scenario, scope) else {
        return Found::nothing(wanted, "no limit");
    };
    let Some((quota, length_ms)) = limit.window() else {
        return Found::nothing(wanted, "no windows");
    };
    let all = windows(scenario, record, at);
    let judged = all
        .iter()
        .filter(|(place, _)| is_within(place, length_ms, scope, record, true));
    let worst = judged
        .clone()
        .map(|(place, tally)| (quota.min(tally.asked).saturating_sub(tally.allowed), place))
        .max_by_key(|(under, _)| *under);
    let Some((under, place)) = worst else {
        return Found::nothing(wanted, "no whole window lies in this time");
    };
    let found = share_of(under, quota);
    let is_met = found <= share;
    let note = if is_met {
        format!("{} whole windows", judged.count())
    } else {
        place_name(place, record)
    };
    Found {
        is_met,
        found: format!("{} ({under} of {quota} units)", percent(found)),
        wanted,
        note,
    }
}
