//! The verdict: of each expectation, whether it was met and by which figure.
//!
//! Files: `admitted` (units against quotas), `counts` (what regions count against what callers were told), `service`
//! (availability and latency), `course` (leaders, detection, healing), `figures` (numbers that nothing is expected of).

pub mod admitted;
mod counts;
mod course;
pub mod figures;
pub mod service;
#[cfg(test)]
mod tests;

use serde::Deserialize;
use serde::Serialize;

use super::record::Record;
use super::scenario::Expectation;
use super::scenario::Scenario;
use super::scenario::That;

/// A drill that stood still for less has asked as it was to, and looked in time. When it was longer, the report says so,
/// and some bounds are wider for it.
pub const STALL_MS: u64 = 100;

/// Whether one expectation was met.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Line of the expectation in the scenario's file, from 1.
    pub line: usize,
    /// The expectation in words.
    pub expectation: String,
    /// Whether it was met.
    pub is_met: bool,
    /// What was found, with its unit.
    pub found: String,
    /// What was wanted, with its unit.
    pub wanted: String,
    /// Where to look when it was not met; else what the figure rests on.
    pub note: String,
}

/// What was found of one expectation.
#[derive(Debug)]
struct Found {
    is_met: bool,
    found: String,
    wanted: String,
    note: String,
}

impl Found {
    /// Not met, because there is nothing to judge by.
    fn nothing(wanted: String, note: &str) -> Self {
        Self {
            is_met: false,
            found: "nothing to judge by".to_owned(),
            wanted,
            note: note.to_owned(),
        }
    }
}

/// Judges every expectation.
pub fn judge(scenario: &Scenario, record: &Record) -> Vec<Finding> {
    let judge_one = |expectation: &Expectation| {
        let found = found(scenario, record, expectation);
        Finding {
            line: expectation.line,
            expectation: expectation.describe(scenario),
            is_met: found.is_met,
            found: found.found,
            wanted: found.wanted,
            note: found.note,
        }
    };
    scenario.expectations.iter().map(judge_one).collect()
}

fn found(scenario: &Scenario, record: &Record, expectation: &Expectation) -> Found {
    let scope = &expectation.scope;
    match &expectation.that {
        That::NeverExceeded => admitted::never_exceeded(scenario, record, scope),
        That::Overshoot { units } => admitted::overshoot(scenario, record, scope, *units),
        That::Undershoot { share } => admitted::undershoot(scenario, record, scope, *share),
        That::ChargedOnce => counts::charged_once(scenario, record, scope),
        That::CountersAgree { units } => counts::agree(scenario, record, scope, *units),
        That::Converged { within_ms } => counts::converged(record, *within_ms),
        That::Answered { share } => service::answered(scenario, record, scope, *share),
        That::Allowed { share } => service::allowed(scenario, record, scope, *share),
        That::Unavailable { share } => service::unavailable(scenario, record, scope, *share),
        That::Degraded { share } => service::degraded(scenario, record, scope, *share),
        That::Latency {
            percentile,
            within_ms,
        } => service::latency(scenario, record, scope, *percentile, *within_ms),
        That::NewLeader { within_ms } => course::new_leader(scenario, record, *within_ms),
        That::SameLeader => course::same_leader(record),
        That::Detected { within_ms } => course::detected(scenario, record, *within_ms),
        That::Healed { within_ms } => course::healed(scenario, record, *within_ms),
    }
}

/// A share in hundredths of a percent, as `99.5 %`.
pub fn percent(share: u64) -> String {
    let (whole, rest) = (share / 100, share % 100);
    if rest == 0 {
        return format!("{whole} %");
    }
    let digits = format!("{rest:02}");
    format!("{whole}.{} %", digits.trim_end_matches('0'))
}

/// `part` of `all` in hundredths of a percent, rounded down.
pub fn share_of(part: u64, all: u64) -> u64 {
    if all == 0 {
        return 0;
    }
    let share = u128::from(part) * 10_000 / u128::from(all);
    u64::try_from(share).unwrap_or(u64::MAX)
}
