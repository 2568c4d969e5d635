//! How calls were answered, and how fast.

use super::Found;
use super::percent;
use super::share_of;
use crate::drill::record::Answer;
use crate::drill::record::Call;
use crate::drill::record::Record;
use crate::drill::scenario::Scenario;
use crate::drill::scenario::Scope;

/// Calls by what came of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// All.
    pub calls: u64,
    /// 200.
    pub allowed: u64,
    /// 429.
    pub refused: u64,
    /// 503.
    pub unavailable: u64,
    /// Without an answer, or with one that is never right.
    pub unanswered: u64,
    /// Decided by the failure policy, or while some region was not heard.
    pub degraded: u64,
}

impl Sums {
    /// Counts one call.
    pub fn add(&mut self, answer: &Answer) {
        self.calls += 1;
        match answer {
            Answer::Allowed(said) => {
                self.allowed += 1;
                self.degraded += u64::from(said.is_degraded);
            }
            Answer::Refused(said) => {
                self.refused += 1;
                self.degraded += u64::from(said.is_degraded);
            }
            Answer::Unavailable { .. } => self.unavailable += 1,
            Answer::Wrong(_) | Answer::Nothing { .. } => self.unanswered += 1,
        }
    }

    /// Calls that were answered yes or no.
    pub const fn answered(&self) -> u64 {
        self.allowed + self.refused
    }
}

/// Calls that a scope is about.
fn calls<'a>(
    scenario: &'a Scenario,
    record: &'a Record,
    scope: &'a Scope,
) -> impl Iterator<Item = &'a Call> {
    record.calls.iter().filter(move |call| {
        let limit = scenario.loads.get(call.load).map(|load| load.limit);
        (scope.limit.is_none() || limit == scope.limit)
            && (scope.regions.is_empty() || scope.regions.contains(&call.home))
            && (scope.from_ms..scope.until_ms).contains(&call.sent_ms)
    })
}

fn sums(scenario: &Scenario, record: &Record, scope: &Scope) -> Sums {
    let mut sums = Sums::default();
    for call in calls(scenario, record, scope) {
        sums.add(&call.answer);
    }
    sums
}

fn note(sums: &Sums) -> String {
    format!(
        "{} calls: {} allowed, {} refused, {} unavailable, {} without a right answer, {} degraded",
        sums.calls, sums.allowed, sums.refused, sums.unavailable, sums.unanswered, sums.degraded
    )
}

fn at_least(sums: &Sums, part: u64, share: u64) -> Found {
    let wanted = format!("at least {}", percent(share));
    if sums.calls == 0 {
        return Found::nothing(wanted, "nobody asked");
    }
    let found = share_of(part, sums.calls);
    Found {
        is_met: found >= share,
        found: percent(found),
        wanted,
        note: note(sums),
    }
}

fn at_most(sums: &Sums, part: u64, share: u64) -> Found {
    let wanted = format!("at most {}", percent(share));
    if sums.calls == 0 {
        return Found::nothing(wanted, "nobody asked");
    }
    let found = share_of(part, sums.calls);
    // Rounded down, the share of one call in very many would be none.
    let is_met = found <= share && (share > 0 || part == 0);
    Found {
        is_met,
        found: percent(found),
        wanted,
        note: note(sums),
    }
}

pub(super) fn answered(scenario: &Scenario, record: &Record, scope: &Scope, share: u64) -> Found {
    let sums = sums(scenario, record, scope);
    at_least(&sums, sums.answered(), share)
}

pub(super) fn allowed(scenario: &Scenario, record: &Record, scope: &Scope, share: u64) -> Found {
    let sums = sums(scenario, record, scope);
    at_least(&sums, sums.allowed, share)
}

pub(super) fn unavailable(
    scenario: &Scenario,
    record: &Record,
    scope: &Scope,
    share: u64,
) -> Found {
    let sums = sums(scenario, record, scope);
    at_most(&sums, sums.unavailable, share)
}

pub(super) fn degraded(scenario: &Scenario, record: &Record, scope: &Scope, share: u64) -> Found {
    let sums = sums(scenario, record, scope);
    at_most(&sums, sums.degraded, share)
}

pub(super) fn latency(
    scenario: &Scenario,
    record: &Record,
    scope: &Scope,
    percentile: u8,
    within_ms: u64,
) -> Found {
    let wanted = format!("{percentile} % within {within_ms} ms");
    let answered = calls(scenario, record, scope).filter(|call| call.answer.said().is_some());
    let mut took: Vec<u64> = answered
        .map(|call| call.heard_ms.saturating_sub(call.sent_ms))
        .collect();
    let Some(found) = percentile_of(&mut took, percentile) else {
        return Found::nothing(wanted, "no call was answered");
    };
    Found {
        is_met: found <= within_ms,
        found: format!("{found} ms"),
        wanted,
        note: format!(
            "{} answers, the slowest after {} ms",
            took.len(),
            took.last().copied().unwrap_or(0)
        ),
    }
}

/// The value that so many of a hundred do not exceed; sorts them.
pub fn percentile_of(values: &mut [u64], percentile: u8) -> Option<u64> {
    values.sort_unstable();
    let last = values.len().checked_sub(1)?;
    let at = (values.len() * usize::from(percentile)).div_ceil(100);
    values.get(at.saturating_sub(1).min(last)).copied()
}
