//! Figures that belong in a report whether something is expected of them or not.

use serde::Deserialize;
use serde::Serialize;

use crate::domain::limit::Mode;
use crate::drill::record::Record;
use crate::drill::scenario::DrillLimit;
use crate::drill::scenario::Scenario;

use super::admitted;
use super::course;
use super::service::Sums;
use super::service::percentile_of;

/// Calls of one region to limits of one mode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Availability {
    /// The callers' region.
    pub region: String,
    /// `regional`, `approximate` or `strict`.
    pub mode: String,
    /// All calls.
    pub calls: u64,
    /// 200.
    pub allowed: u64,
    /// 429.
    pub refused: u64,
    /// 503.
    pub unavailable: u64,
    /// Without a right answer.
    pub unanswered: u64,
    /// Of the answers: those that said degraded.
    pub degraded: u64,
    /// Half of the answers came within, in milliseconds.
    pub p50_ms: u64,
    /// 99 of a hundred answers came within, in milliseconds.
    pub p99_ms: u64,
}

/// Windows of one limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Admitted {
    /// The limit.
    pub limit: String,
    /// `regional`, `approximate` or `strict`.
    pub mode: String,
    /// Units of a window.
    pub quota: u64,
    /// Windows of all keys.
    pub windows: u64,
    /// Of these, used up.
    pub full: u64,
    /// Units that were allowed.
    pub allowed: u64,
    /// The most units over the quota of a window.
    pub over_most: u64,
    /// Units that the failure policy let through.
    pub by_policy: u64,
    /// Units that ended processes took with them.
    pub stranded: u64,
}

/// Buckets of one limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Buckets {
    /// The limit.
    pub limit: String,
    /// `regional`, `approximate` or `strict`.
    pub mode: String,
    /// Units that a bucket holds.
    pub capacity: u64,
    /// Units that it earns.
    pub refill: u64,
    /// In so many milliseconds.
    pub per_ms: u64,
    /// Buckets of all keys that gave something.
    pub buckets: u64,
    /// Units that were allowed.
    pub allowed: u64,
    /// Calls that were refused.
    pub refused: u64,
    /// The most units over what a bucket holds and earns; absent where every region has one of its own.
    pub over_most: Option<u64>,
    /// Of the units, those that the failure policy let through.
    pub by_policy: u64,
}

/// What healed after a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Healing {
    /// The step in words.
    pub step: String,
    /// When it began.
    pub began_ms: u64,
    /// When it was over.
    pub ended_ms: Option<u64>,
    /// How long after its end all regions were well, before the next step or for good; `None`: they were not.
    pub well_after_ms: Option<u64>,
}

/// All of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// Calls.
    pub calls: u64,
    /// By region and mode.
    pub availability: Vec<Availability>,
    /// By limit with windows.
    pub admitted: Vec<Admitted>,
    /// By limit with buckets.
    #[serde(default)]
    pub buckets: Vec<Buckets>,
    /// Milliseconds until another region led; absent when no step took the lead away.
    pub new_leader_after_ms: Option<u64>,
    /// Milliseconds until all regions counted the same.
    pub converged_after_ms: Option<u64>,
    /// Milliseconds until all was well after the last step.
    pub healed_after_ms: Option<u64>,
    /// Milliseconds after the last step until every call that was sent was answered yes or no; absent: nobody asked
    /// after it.
    pub answered_after_ms: Option<u64>,
    /// The longest time that the drill itself stood still: answers may be late by as much through no fault of a region.
    pub stall_ms_max: u64,
    /// By step.
    pub healing: Vec<Healing>,
}

/// The mode's name in a catalogue.
pub const fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Regional => "regional",
        Mode::Approximate => "approximate",
        Mode::Strict => "strict",
    }
}

/// All figures of a record.
pub fn figures(scenario: &Scenario, record: &Record) -> Figures {
    let since = record.load_ended_ms.max(record.steps_ended_ms());
    let steps_ended = record.steps_ended_ms();
    Figures {
        calls: u64::try_from(record.calls.len()).unwrap_or(u64::MAX),
        availability: availability(scenario, record),
        admitted: admitted(scenario, record),
        buckets: buckets(scenario, record),
        new_leader_after_ms: course::new_leader_after(scenario, record)
            .flatten()
            .map(|(_, took)| took),
        converged_after_ms: record.converged_ms.map(|at| at.saturating_sub(since)),
        healed_after_ms: record
            .well_from(steps_ended, scenario.regions.len())
            .map(|at| at - steps_ended),
        answered_after_ms: answered_after_ms(record, steps_ended),
        stall_ms_max: record.stall_ms_max,
        healing: healing(scenario, record),
    }
}

/// When the last call was sent that got no yes and no no, after the last step.
fn answered_after_ms(record: &Record, steps_ended: u64) -> Option<u64> {
    let mut later = record
        .calls
        .iter()
        .filter(|call| call.sent_ms >= steps_ended)
        .peekable();
    later.peek()?;
    let failed = later.filter(|call| call.answer.said().is_none());
    let last = failed.map(|call| call.sent_ms).max();
    Some(last.map_or(0, |last| last - steps_ended))
}

fn availability(scenario: &Scenario, record: &Record) -> Vec<Availability> {
    let mut rows = Vec::new();
    for (index, region) in scenario.regions.iter().enumerate() {
        for mode in [Mode::Strict, Mode::Approximate, Mode::Regional] {
            let calls = record.calls.iter().filter(|call| {
                let load = scenario.loads.get(call.load);
                let limit = load.and_then(|load| scenario.limits.get(load.limit));
                call.home == index && limit.is_some_and(|limit| limit.mode() == mode)
            });
            let mut sums = Sums::default();
            let mut took = Vec::new();
            for call in calls {
                sums.add(&call.answer);
                if call.answer.said().is_some() {
                    took.push(call.heard_ms.saturating_sub(call.sent_ms));
                }
            }
            if sums.calls > 0 {
                rows.push(Availability {
                    region: region.clone(),
                    mode: mode_name(mode).to_owned(),
                    calls: sums.calls,
                    allowed: sums.allowed,
                    refused: sums.refused,
                    unavailable: sums.unavailable,
                    unanswered: sums.unanswered,
                    degraded: sums.degraded,
                    p50_ms: percentile_of(&mut took, 50).unwrap_or(0),
                    p99_ms: percentile_of(&mut took, 99).unwrap_or(0),
                });
            }
        }
    }
    rows
}

fn admitted(scenario: &Scenario, record: &Record) -> Vec<Admitted> {
    let mut rows = Vec::new();
    for (at, limit) in scenario.limits.iter().enumerate() {
        let Some((quota, _)) = limit.window() else {
            continue;
        };
        let windows = admitted::windows(scenario, record, at);
        let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        rows.push(Admitted {
            limit: limit.name.clone(),
            mode: mode_name(limit.mode()).to_owned(),
            quota,
            windows: count(windows.len()),
            full: count(
                windows
                    .values()
                    .filter(|tally| tally.allowed >= quota)
                    .count(),
            ),
            allowed: windows.values().map(|tally| tally.allowed).sum(),
            over_most: windows
                .values()
                .map(|tally| tally.net().saturating_sub(quota))
                .max()
                .unwrap_or(0),
            by_policy: windows.values().map(|tally| tally.by_policy).sum(),
            stranded: record
                .counted
                .iter()
                .filter(|counted| counted.limit == at)
                .map(|counted| counted.stranded)
                .sum(),
        });
    }
    rows
}

fn buckets(scenario: &Scenario, record: &Record) -> Vec<Buckets> {
    let limits = scenario.limits.iter().enumerate();
    let row = |(at, limit): (usize, &DrillLimit)| {
        let (capacity, refill, per_ms) = limit.bucket()?;
        let flow = admitted::flow(scenario, record, at, (capacity, refill, per_ms));
        Some(Buckets {
            limit: limit.name.clone(),
            mode: mode_name(limit.mode()).to_owned(),
            capacity,
            refill,
            per_ms,
            buckets: u64::try_from(flow.buckets).unwrap_or(u64::MAX),
            allowed: flow.units + flow.by_policy,
            refused: flow.refused,
            over_most: (limit.mode() != Mode::Regional).then(|| flow.over_most()),
            by_policy: flow.by_policy,
        })
    };
    limits.filter_map(row).collect()
}

fn healing(scenario: &Scenario, record: &Record) -> Vec<Healing> {
    let regions = scenario.regions.len();
    let row = |done: &crate::drill::record::Done| {
        let step = scenario.steps.get(done.step)?;
        if step.action.is_instant() {
            return None;
        }
        let well_after_ms = done.ended_ms.and_then(|ended| {
            // The first moment after the end at which each region's next look was a good one.
            let samples = &record.samples;
            let from = samples.partition_point(|sample| sample.at_ms < ended);
            (0..regions)
                .map(|region| {
                    let mut looks = samples[from..].iter().filter(|one| one.region == region);
                    let first = looks.find(|sample| record.is_well(sample, regions))?;
                    Some(first.at_ms - ended)
                })
                .try_fold(0, |latest: u64, well| Some(latest.max(well?)))
        });
        Some(Healing {
            step: step.describe(scenario),
            began_ms: done.began_ms,
            ended_ms: done.ended_ms,
            well_after_ms,
        })
    };
    record.steps.iter().filter_map(row).collect()
}
