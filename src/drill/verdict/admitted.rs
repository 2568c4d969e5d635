//! Units that were admitted, by window, against the quota.

use std::collections::BTreeMap;

use crate::domain::limit::OnPartition;
use crate::domain::limit::Split;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::domain::time::Window;

use super::Found;
use super::STALL_MS;
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
use crate::drill::scenario::step::seconds;

/// A bucket earns by the regions' clocks, which may go faster than the drill's by so many millionths, and the drill's
/// times are whole milliseconds.
const FAST_PPM: u64 = 600;
const ROUNDING_MS: u64 = 5;
/// A region notices within a second that it does not hear another; what was told takes two rounds, and the machine that
/// runs the drill may be busy for as long again.
const UNSEEN_MS: u64 = 1_700;
/// A fault is still felt for so long after it is over.
const FELT_MS: u64 = 3_000;

/// A window of a counter: tenant, key and start. Not the epoch: no drill resets a counter, and a leader that began a new
/// one by mistake would admit the quota twice.
pub type Place<'a> = (&'a str, u32, i64);

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
    /// Units that the limit itself admitted.
    pub const fn net(&self) -> u64 {
        self.allowed.saturating_sub(self.by_policy)
    }

    /// Whether the limit itself was asked for more than this.
    const fn is_pressed(&self, quota: u64) -> bool {
        self.asked.saturating_sub(self.by_policy) > quota
    }

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
        let tally = windows.entry((tenant, call.key, start)).or_default();
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

/// Units that were asked for and not decided, by the windows in which they were sent.
fn undecided<'a>(
    scenario: &'a Scenario,
    record: &'a Record,
    limit: usize,
    length_ms: u64,
) -> BTreeMap<Place<'a>, u64> {
    let mut undecided: BTreeMap<Place<'a>, u64> = BTreeMap::new();
    let calls = calls_of(scenario, record, limit);
    for (call, tenant) in calls.filter(|(call, _)| call.answer.said().is_none()) {
        let at_ms = record.began_unix_ms.saturating_add(signed(call.sent_ms));
        let window = Window::aligned(Timestamp::from_unix_ms(at_ms), Span::from_ms(length_ms));
        *undecided
            .entry((tenant, call.key, window.start.as_unix_ms()))
            .or_default() += call.cost;
    }
    undecided
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
    let (tenant, key, start) = place;
    let after = start - record.began_unix_ms;
    format!("tenant {tenant}, key {key}, the window that began at {after} ms of the drill")
}

/// No window, or bucket, of a strict limit admitted more than it may. What the failure policy let through is counted
/// apart: it says so in its answers. Where nobody asked for more than there was, a limit that admits all would pass.
pub(super) fn never_exceeded(scenario: &Scenario, record: &Record, scope: &Scope) -> Found {
    let wanted = "0 units over".to_owned();
    let Some((at, limit)) = limit_of(scenario, scope) else {
        return Found::nothing(wanted, "no limit");
    };
    if let Some(flow) = limit.bucket() {
        return bucket(scenario, record, at, flow);
    }
    let quota = limit.window().map_or(0, |(quota, _)| quota);
    let windows = windows(scenario, record, at);
    let count = |is_meant: &dyn Fn(&Tally) -> bool| {
        let meant = windows.values().filter(|tally| is_meant(tally));
        meant.count()
    };
    let pressed = count(&|tally| tally.is_pressed(quota));
    let full = count(&|tally| tally.net() >= quota);
    let admitted: u64 = windows.values().map(Tally::net).sum();
    let by_policy: u64 = windows.values().map(|tally| tally.by_policy).sum();
    let worst = windows.iter().max_by_key(|(_, tally)| tally.net());
    let Some((place, tally)) = worst else {
        return Found::nothing(wanted, "nothing was decided");
    };
    let over = tally.net().saturating_sub(quota);
    if over > 0 {
        let net = tally.net();
        return Found {
            is_met: false,
            found: format!("{over} units over the quota of {quota}"),
            wanted,
            note: format!(
                "{net} of {quota} units were allowed: {}",
                place_name(place, record)
            ),
        };
    }
    if admitted == 0 {
        return Found::nothing(wanted, &none_admitted(by_policy));
    }
    if pressed == 0 {
        let why = format!("no window was asked for more than its quota of {quota}");
        return Found::nothing(wanted, &why);
    }
    Found {
        is_met: true,
        found: "0 units over".to_owned(),
        wanted,
        note: format!(
            "{admitted} units in {} windows, {pressed} of them asked for more than their quota of {quota}, {full} full; \
             {by_policy} units by the failure policy",
            windows.len()
        ),
    }
}

fn none_admitted(by_policy: u64) -> String {
    if by_policy == 0 {
        return "nothing was admitted".to_owned();
    }
    format!("all {by_policy} units were let through by the failure policy")
}

/// What all buckets of a limit gave.
#[derive(Debug, Default)]
pub struct Flow {
    /// Buckets: one for each tenant and key.
    pub buckets: usize,
    /// Units that the limit itself admitted.
    pub units: u64,
    /// Units that the failure policy let through.
    pub by_policy: u64,
    /// Calls that the limit itself refused.
    pub refused: u64,
    /// The most units over what a bucket holds and earns, and where.
    worst: Option<(u64, String)>,
}

impl Flow {
    /// The most units that were given over what a bucket holds and earns.
    pub fn over_most(&self) -> u64 {
        self.worst.as_ref().map_or(0, |(over, _)| *over)
    }
}

/// What the buckets of a limit gave, which holds, refills by, and does so in so many milliseconds.
pub fn flow(
    scenario: &Scenario,
    record: &Record,
    limit: usize,
    (capacity, refill, per_ms): (u64, u64, u64),
) -> Flow {
    let mut flow = Flow::default();
    let mut counters: BTreeMap<(&str, u32), Vec<&Call>> = BTreeMap::new();
    for (call, tenant) in calls_of(scenario, record, limit) {
        match &call.answer {
            Answer::Allowed(said) if said.decided_by == "fallback" => flow.by_policy += call.cost,
            Answer::Allowed(_) => {
                flow.units += call.cost;
                counters.entry((tenant, call.key)).or_default().push(call);
            }
            Answer::Refused(said) => flow.refused += u64::from(said.decided_by != "fallback"),
            _ => {}
        }
    }
    flow.buckets = counters.len();
    for ((tenant, key), calls) in &mut counters {
        calls.sort_unstable_by_key(|call| call.heard_ms);
        for (place, first) in calls.iter().enumerate() {
            let mut sum: u64 = 0;
            // What was heard before it was sent was sent before it.
            let since = calls[..place].partition_point(|call| call.heard_ms < first.sent_ms);
            let later = calls[since..].iter();
            for call in later.filter(|call| call.sent_ms >= first.sent_ms) {
                sum += call.cost;
                let ms = call.heard_ms.saturating_sub(first.sent_ms);
                let ms = ms + ms * FAST_PPM / 1_000_000 + ROUNDING_MS;
                let earned = u128::from(refill) * u128::from(ms) / u128::from(per_ms.max(1));
                let earned = u64::try_from(earned).unwrap_or(u64::MAX);
                // It was full again since: what came later is looked at from there.
                if sum.saturating_add(capacity.saturating_mul(2)) < earned {
                    break;
                }
                let over = sum.saturating_sub(capacity.saturating_add(earned));
                if over > flow.over_most() {
                    let note = format!(
                        "tenant {tenant}, key {key}: {sum} units between {} and {} ms",
                        first.sent_ms, call.heard_ms
                    );
                    flow.worst = Some((over, note));
                }
            }
        }
    }
    flow
}

/// Over any stretch of time a bucket gives no more than it holds and earns.
fn bucket(scenario: &Scenario, record: &Record, limit: usize, rule: (u64, u64, u64)) -> Found {
    let wanted = "0 units over".to_owned();
    let flow = flow(scenario, record, limit, rule);
    if let Some((over, note)) = flow.worst {
        return Found {
            is_met: false,
            found: format!("{over} units over what it holds and earns"),
            wanted,
            note,
        };
    }
    if flow.units == 0 {
        return Found::nothing(wanted, &none_admitted(flow.by_policy));
    }
    if flow.refused == 0 {
        return Found::nothing(wanted, "no bucket was asked for more than it had");
    }
    Found {
        is_met: true,
        found: "0 units over".to_owned(),
        wanted,
        note: format!(
            "{} units of {} buckets, {} calls refused; {} units by the failure policy",
            flow.units, flow.buckets, flow.refused, flow.by_policy
        ),
    }
}

/// No window of an approximate limit admitted more over its quota than is stated. What the failure policy let through is
/// counted apart, as of strict limits.
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
    let judged: Vec<Judged<'_>> = all
        .iter()
        .filter(|(place, _)| is_within(place, length_ms, scope, record, false))
        .map(|(place, tally)| {
            let window = (place.2, length_ms);
            let (most, is_wider) = units.map_or_else(
                || stated(scenario, record, at, limit, window, tally),
                |units| (units, false),
            );
            Judged {
                place,
                over: tally.net().saturating_sub(quota),
                most,
                is_wider,
                can_fail: tally.is_pressed(quota.saturating_add(most)),
            }
        })
        .collect();
    // The window that is worst for its own bound.
    let worst = judged.iter().max_by_key(|one| (one.beyond(), one.over));
    let Some(worst) = worst else {
        return nothing();
    };
    let wanted = format!("at most {} units over", worst.most);
    let can_fail = judged.iter().filter(|one| one.can_fail).count();
    if can_fail == 0 {
        let why = format!(
            "no window was asked for more than its quota of {quota} and the units that may be over it"
        );
        return Found::nothing(wanted, &why);
    }
    let full = all.values().filter(|tally| tally.net() >= quota).count();
    let by_policy: u64 = all.values().map(|tally| tally.by_policy).sum();
    let mut note = if worst.beyond() > 0 {
        place_name(worst.place, record)
    } else {
        format!(
            "{} windows, {full} of them full, {can_fail} asked for more than may be over; {by_policy} units by the failure \
             policy",
            all.len()
        )
    };
    if worst.is_wider {
        note.push_str(&format!(
            "; the drill stood still for {}, and the bound is wider for it",
            seconds(record.stall_ms_max)
        ));
    }
    Found {
        is_met: worst.beyond() == 0,
        found: format!("{} units over the quota of {quota}", worst.over),
        wanted,
        note,
    }
}

/// A window of an approximate limit against its bound.
struct Judged<'a> {
    place: &'a Place<'a>,
    /// Units that were admitted over the quota.
    over: u64,
    /// Units that may be.
    most: u64,
    /// Whether these are more because the drill stood still.
    is_wider: bool,
    /// Whether more were asked for.
    can_fail: bool,
}

impl Judged<'_> {
    const fn beyond(&self) -> u64 {
        self.over.saturating_sub(self.most)
    }
}

/// What the README states for a window of this limit under this load, and whether it is more because the drill stood
/// still.
fn stated(
    scenario: &Scenario,
    record: &Record,
    at: usize,
    limit: &DrillLimit,
    (start, length_ms): (i64, u64),
    tally: &Tally,
) -> (u64, bool) {
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
    let calm = calm.saturating_mul(cost);
    let is_hit_at_once = scenario
        .loads
        .iter()
        .any(|load| load.limit == at && load.shape == Shape::Bursty);
    if is_hit_at_once && limit.limit.split != Split::Equal {
        return (others.saturating_mul(quota), false);
    }
    let mut most = calm;
    if limit.limit.split == Split::None {
        most = most.saturating_add(tally.most_within(scenario.delay_ms_max() + 150));
    }
    // What was to be spread over time comes at once when callers stand still and go on.
    let is_wider = record.stall_ms_max >= STALL_MS;
    if is_wider {
        most = most.saturating_add(tally.most_within(scenario.delay_ms_max() + 150));
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
        let unseen = tally.most_within(UNSEEN_MS + scenario.delay_ms_max());
        most = most.max(calm.saturating_add(unseen));
    }
    if is_cut && limit.limit.on_partition == OnPartition::Open {
        most = most.max(others.saturating_mul(quota));
    }
    (most, is_wider)
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
    let from = place.2.saturating_sub(record.began_unix_ms);
    let until = from.saturating_add(signed(length_ms));
    let (scope_from, scope_until) = (signed(scope.from_ms), signed(scope.until_ms));
    if is_whole {
        from >= scope_from && until <= scope_until
    } else {
        from < scope_until && until > scope_from
    }
}

/// No whole window left more of its quota unused, while it was asked for, than this share. What was not decided was asked
/// for too: else a window in which nobody got an answer would pass.
pub(super) fn undershoot(scenario: &Scenario, record: &Record, scope: &Scope, share: u64) -> Found {
    let wanted = format!("at most {} of the quota unused", percent(share));
    let Some((at, limit)) = limit_of(scenario, scope) else {
        return Found::nothing(wanted, "no limit");
    };
    let Some((quota, length_ms)) = limit.window() else {
        return Found::nothing(wanted, "no windows");
    };
    let decided = windows(scenario, record, at);
    let undecided = undecided(scenario, record, at, length_ms);
    let mut places: Vec<&Place<'_>> = decided.keys().chain(undecided.keys()).collect();
    places.sort_unstable();
    places.dedup();
    places.retain(|place| is_within(place, length_ms, scope, record, true));
    let under = |place: &Place<'_>| {
        let (asked, allowed) = decided
            .get(place)
            .map_or((0, 0), |tally| (tally.asked, tally.allowed));
        let asked = asked + undecided.get(place).copied().unwrap_or(0);
        quota.min(asked).saturating_sub(allowed)
    };
    let worst = places
        .iter()
        .map(|place| (under(place), *place))
        .max_by_key(|(under, _)| *under);
    let Some((under, place)) = worst else {
        return Found::nothing(wanted, "no whole window lies in this time");
    };
    let found = share_of(under, quota);
    let is_met = found <= share;
    let note = if is_met {
        format!("{} whole windows", places.len())
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
