//! The record over time, in equal steps: what the curves of a report are drawn from.

use serde::Deserialize;
use serde::Serialize;

use crate::domain::limit::Mode;

use super::record::Answer;
use super::record::Record;
use super::scenario::Scenario;
use super::verdict::figures::mode_name;
use super::verdict::service::Sums;
use super::verdict::service::percentile_of;
use super::verdict::share_of;

/// About so many points are drawn.
const POINTS: u64 = 80;
/// The shortest step.
const STEP_MS_MIN: u64 = 250;

/// Curves of one region; one value for each step of time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Curves {
    /// The region.
    pub region: String,
    /// Units that its callers were allowed, a second.
    pub units_per_s: Vec<u64>,
    /// Calls that were answered yes or no, in hundredths of a percent; absent: nobody asked.
    pub answered: Vec<Option<u64>>,
    /// 99 of a hundred answers came within, in milliseconds; absent: none came.
    pub p99_ms: Vec<Option<u64>>,
    /// How long counts had been waiting for a peer, in milliseconds; absent: it did not say.
    pub lag_ms: Vec<Option<u64>>,
    /// Whether it led.
    pub leads: Vec<bool>,
}

/// Availability of limits of one mode, in all regions; one value for each step of time, in hundredths of a percent;
/// absent: nobody asked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModeCurves {
    /// `strict`, `approximate` or `regional`.
    pub mode: String,
    /// Calls that were answered yes or no.
    pub answered: Vec<Option<u64>>,
    /// Calls that were answered 503.
    pub unavailable: Vec<Option<u64>>,
    /// Calls whose answers said degraded.
    pub degraded: Vec<Option<u64>>,
}

/// A step, for the bars over the curves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bar {
    /// What it is, in words.
    pub step: String,
    /// The region.
    pub region: String,
    /// Whether something was wrong, rather than done on purpose.
    pub is_fault: bool,
    /// When it began.
    pub from_ms: u64,
    /// When it was over.
    pub until_ms: u64,
}

/// The whole drill over time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timeline {
    /// From one value to the next.
    pub step_ms: u64,
    /// When the last value ends.
    pub end_ms: u64,
    /// By region.
    pub curves: Vec<Curves>,
    /// By mode; those that were asked for.
    pub modes: Vec<ModeCurves>,
    /// Steps.
    pub bars: Vec<Bar>,
}

/// The timeline of a record.
pub fn timeline(scenario: &Scenario, record: &Record) -> Timeline {
    let end_ms = record.ended_ms.max(scenario.duration_ms);
    let step_ms = (end_ms / POINTS).max(STEP_MS_MIN);
    let points = usize::try_from(end_ms.div_ceil(step_ms)).unwrap_or(0);
    let at = |ms: u64| usize::try_from(ms / step_ms).unwrap_or(usize::MAX);
    let curves = scenario.regions.iter().enumerate();
    Timeline {
        step_ms,
        end_ms,
        curves: curves
            .map(|(region, name)| curves_of(record, region, name, points, step_ms, at))
            .collect(),
        modes: modes(scenario, record, points, at),
        bars: bars(scenario, record),
    }
}

fn modes(
    scenario: &Scenario,
    record: &Record,
    points: usize,
    at: impl Fn(u64) -> usize,
) -> Vec<ModeCurves> {
    let mut curves = Vec::new();
    for mode in [Mode::Strict, Mode::Approximate, Mode::Regional] {
        let mut sums = vec![Sums::default(); points];
        for call in &record.calls {
            let load = scenario.loads.get(call.load);
            let limit = load.and_then(|load| scenario.limits.get(load.limit));
            if limit.is_some_and(|limit| limit.mode() == mode)
                && let Some(sum) = sums.get_mut(at(call.sent_ms))
            {
                sum.add(&call.answer);
            }
        }
        if sums.iter().all(|sum| sum.calls == 0) {
            continue;
        }
        let share = |part: fn(&Sums) -> u64| -> Vec<Option<u64>> {
            sums.iter()
                .map(|sum| (sum.calls > 0).then(|| share_of(part(sum), sum.calls)))
                .collect()
        };
        curves.push(ModeCurves {
            mode: mode_name(mode).to_owned(),
            answered: share(Sums::answered),
            unavailable: share(|sum| sum.unavailable),
            degraded: share(|sum| sum.degraded),
        });
    }
    curves
}

fn curves_of(
    record: &Record,
    region: usize,
    name: &str,
    points: usize,
    step_ms: u64,
    at: impl Fn(u64) -> usize,
) -> Curves {
    let mut units = vec![0_u64; points];
    let mut calls = vec![(0_u64, 0_u64); points];
    let mut took: Vec<Vec<u64>> = vec![Vec::new(); points];
    for call in record.calls.iter().filter(|call| call.home == region) {
        let place = at(call.sent_ms);
        let is_decided = call.answer.said().is_some();
        if let Some((all, decided)) = calls.get_mut(place) {
            *all += 1;
            *decided += u64::from(is_decided);
        }
        if let (Answer::Allowed(_), Some(sum)) = (&call.answer, units.get_mut(place)) {
            *sum += call.cost;
        }
        if let (true, Some(took)) = (is_decided, took.get_mut(place)) {
            took.push(call.heard_ms.saturating_sub(call.sent_ms));
        }
    }
    let mut lag_ms = vec![None; points];
    let mut leads = vec![false; points];
    for sample in record.samples.iter().filter(|one| one.region == region) {
        let place = at(sample.at_ms);
        let Some(seen) = &sample.seen else { continue };
        if let Some(lag) = lag_ms.get_mut(place) {
            *lag = (*lag).max(Some(seen.lag_ms));
        }
        if let Some(led) = leads.get_mut(place) {
            *led |= seen.leads;
        }
    }
    Curves {
        region: name.to_owned(),
        units_per_s: units
            .iter()
            .map(|units| units.saturating_mul(1_000) / step_ms)
            .collect(),
        answered: calls
            .iter()
            .map(|(all, decided)| (*all > 0).then(|| share_of(*decided, *all)))
            .collect(),
        p99_ms: took
            .iter_mut()
            .map(|took| percentile_of(took, 99))
            .collect(),
        lag_ms,
        leads,
    }
}

fn bars(scenario: &Scenario, record: &Record) -> Vec<Bar> {
    let bar = |done: &super::record::Done| {
        let step = scenario.steps.get(done.step)?;
        Some(Bar {
            step: step.describe(scenario),
            region: scenario.region(done.region).to_owned(),
            is_fault: step.action.is_fault(),
            from_ms: done.began_ms,
            until_ms: done.ended_ms.unwrap_or(record.ended_ms),
        })
    };
    record.steps.iter().filter_map(bar).collect()
}
