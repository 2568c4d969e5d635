//! What regions count, against each other and against what callers were told.

use super::Found;
use crate::drill::record::Answer;
use crate::drill::record::Call;
use crate::drill::record::Counted;
use crate::drill::record::Record;
use crate::drill::scenario::Scenario;
use crate::drill::scenario::Scope;
use crate::drill::scenario::step::seconds;
use crate::drill::settled;

use super::admitted::calls_of;
use super::admitted::signed;

/// What was sent may be charged so long after its caller gave up, by a clock that is off by as much.
const LATE_MS: u64 = 5_000;

/// Whether a call may have been charged to the window.
fn may_be_of(scenario: &Scenario, record: &Record, counted: &Counted, call: &Call) -> bool {
    let window = scenario
        .limits
        .get(counted.limit)
        .and_then(|limit| limit.window());
    let length_ms = window.map_or(0, |(_, length_ms)| length_ms);
    let start = counted.window_start_ms.saturating_sub(record.began_unix_ms);
    let end = start.saturating_add(signed(length_ms));
    signed(call.sent_ms) - signed(LATE_MS) < end && signed(call.heard_ms + LATE_MS) > start
}

/// Units of one counter: told as allowed, and those that may have been charged without being told.
fn told(scenario: &Scenario, record: &Record, counted: &Counted) -> (u64, u64) {
    let (mut sure, mut doubtful) = (0, 0);
    let calls = calls_of(scenario, record, counted.limit)
        .filter(|(call, tenant)| call.key == counted.key && *tenant == counted.tenant);
    for (call, _) in calls {
        // A failure policy lets through what is debited afterwards as far as there is something left, or never.
        if call.answer.is_by_policy() {
            doubtful += call.cost * u64::from(may_be_of(scenario, record, counted, call));
            continue;
        }
        match &call.answer {
            // In whatever epoch: no drill resets a counter, and what a new epoch forgot is missing.
            Answer::Allowed(said) if said.window_start_ms == Some(counted.window_start_ms) => {
                sure += call.cost;
            }
            answer if answer.is_in_doubt() && may_be_of(scenario, record, counted, call) => {
                doubtful += call.cost;
            }
            _ => {}
        }
    }
    (sure, doubtful)
}

fn counter_name(counted: &Counted) -> String {
    format!("tenant {}, key {}", counted.tenant, counted.key)
}

/// All counters of the limit: each region counts the same, and what was told, give or take so many units.
fn compare(scenario: &Scenario, record: &Record, scope: &Scope, units: u64, wanted: &str) -> Found {
    let wanted = wanted.to_owned();
    let of_limit = |counted: &&Counted| Some(counted.limit) == scope.limit;
    let counters: Vec<&Counted> = record.counted.iter().filter(of_limit).collect();
    let (mut sure, mut doubtful, mut stranded, mut held) = (0, 0, 0, 0);
    let mut wrong: Vec<String> = Vec::new();
    for counted in &counters {
        let (least, more) = told(scenario, record, counted);
        sure += least;
        doubtful += more;
        stranded += counted.stranded;
        held += counted.held;
        let differ = |used: &Option<u64>| *used != counted.used.first().copied().flatten();
        let silent = counted.used.iter().any(Option::is_none);
        let used = counted.used.first().copied().flatten().unwrap_or(0);
        let most = used + counted.stranded + counted.held;
        let is_right = most + units >= least && used <= least + more + units;
        if silent || counted.used.iter().any(differ) {
            wrong.push(format!(
                "{}: the regions count {}",
                counter_name(counted),
                by_region(scenario, counted)
            ));
        } else if !is_right {
            wrong.push(format!(
                "{}: {used} units are counted, {} stranded and {} held, where callers were told {least}, and {more} more are \
                 in doubt",
                counter_name(counted),
                counted.stranded,
                counted.held
            ));
        }
    }
    if sure == 0 {
        return Found::nothing(wanted, "no counter was compared that callers had used");
    }
    let found = format!("{} of {} counters differ", wrong.len(), counters.len());
    let mut note = match wrong.first() {
        Some(first) => first.clone(),
        None => format!(
            "{sure} units told, {doubtful} in doubt, {stranded} stranded, {held} held; the same in {} regions",
            scenario.regions.len()
        ),
    };
    let left_out = scope
        .limit
        .map_or(0, |at| settled::left_out(scenario, &record.calls, at));
    if left_out > 0 {
        note.push_str(&format!("; {left_out} older windows were not compared"));
    }
    Found {
        is_met: wrong.is_empty(),
        found,
        wanted,
        note,
    }
}

fn by_region(scenario: &Scenario, counted: &Counted) -> String {
    let told: Vec<String> = counted
        .used
        .iter()
        .enumerate()
        .map(|(region, used)| {
            let used = used.map_or_else(|| "nothing".to_owned(), |used| used.to_string());
            format!("{used} in {}", scenario.region(region))
        })
        .collect();
    told.join(", ")
}

/// What was allowed under keys is counted once: never twice, and never forgotten.
pub(super) fn charged_once(scenario: &Scenario, record: &Record, scope: &Scope) -> Found {
    compare(
        scenario,
        record,
        scope,
        0,
        "every allowed call counted once",
    )
}

/// All regions count the same, and what callers were told.
pub(super) fn agree(scenario: &Scenario, record: &Record, scope: &Scope, units: u64) -> Found {
    let wanted = if units == 0 {
        "all regions count what callers were told".to_owned()
    } else {
        format!("all regions count what callers were told, {units} units more or less")
    };
    compare(scenario, record, scope, units, &wanted)
}

/// All regions count the same within a time after the last call and the last step.
pub(super) fn converged(record: &Record, within_ms: u64) -> Found {
    let wanted = format!("within {}", seconds(within_ms));
    let since = record.load_ended_ms.max(record.steps_ended_ms());
    if record.counted.is_empty() {
        return Found::nothing(wanted, "no counter was compared");
    }
    match record.converged_ms {
        None => Found {
            is_met: false,
            found: "never".to_owned(),
            wanted,
            note: format!(
                "the regions still differed {} after the last call",
                seconds(record.ended_ms.saturating_sub(since))
            ),
        },
        Some(at) => {
            let took = at.saturating_sub(since);
            Found {
                is_met: took <= within_ms,
                found: seconds(took),
                wanted,
                note: format!("{} counters in all regions", record.counted.len()),
            }
        }
    }
}
