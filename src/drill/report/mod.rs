//! The report of a drill: one value, which is the JSON, and from which the page is written.

pub mod chart;
pub mod page;

use serde::Deserialize;
use serde::Serialize;

use super::record::Record;
use super::scenario::Scenario;
use super::scenario::Step;
use super::timeline;
use super::timeline::Timeline;
use super::verdict;
use super::verdict::Finding;
use super::verdict::figures;
use super::verdict::figures::Figures;

/// How a drill was run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// With regions of its own, each a process.
    Processes,
    /// Against a cluster that runs anyway, by its name.
    Cluster(String),
    /// In virtual time.
    Simulation,
}

/// What a simulation does not mean.
const OF_SIMULATIONS: [&str; 4] = [
    "Time was virtual and work took none of it: times of answers are those of waiting for units, for the log, for a disk or \
     for a region, and say nothing of how fast a machine answers.",
    "The replicated log was a model of the library below it: a leader is elected by a majority that can be reached, after the \
     product's times, and entries commit on a majority's disks.",
    "Links carried messages in order, with the delay, jitter and loss that the scenario and its steps say; connections \
     and their handshakes were not simulated.",
    "Units of strict limits that the failure policy lets through were not debited afterwards.",
];

impl Stage {
    /// In words.
    pub fn describe(&self) -> String {
        match self {
            Self::Processes => "regions of its own, as processes on one machine".to_owned(),
            Self::Cluster(name) => format!("the running cluster {name}"),
            Self::Simulation => "simulated regions, in virtual time".to_owned(),
        }
    }

    /// What must be known of figures that came this way.
    pub fn notes(&self) -> &'static [&'static str] {
        match self {
            Self::Processes | Self::Cluster(_) => &[],
            Self::Simulation => &OF_SIMULATIONS,
        }
    }
}

/// A drill and its verdict.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The scenario's name.
    pub scenario: String,
    /// What was rehearsed.
    pub title: String,
    /// What was done, and why.
    pub about: String,
    /// The program's version.
    pub version: String,
    /// How it was run.
    pub stage: Stage,
    /// What must be known of figures that came this way.
    pub notes: Vec<String>,
    /// What callers' calls follow from; in virtual time, all that happens.
    pub seed: u64,
    /// When callers began, in Unix milliseconds.
    pub began_unix_ms: i64,
    /// How long callers asked, in milliseconds.
    pub duration_ms: u64,
    /// The regions.
    pub regions: Vec<String>,
    /// The steps in words, as they were planned.
    pub steps: Vec<String>,
    /// Whether every expectation was met.
    pub is_passed: bool,
    /// Every expectation.
    pub findings: Vec<Finding>,
    /// Figures.
    pub figures: Figures,
    /// Everything over time.
    pub timeline: Timeline,
}

/// Judges a record and puts everything together.
pub fn report(scenario: &Scenario, record: &Record, stage: Stage, seed: u64) -> Report {
    let findings = verdict::judge(scenario, record);
    let planned = |step: &Step| {
        format!(
            "{}: {}",
            super::scenario::step::seconds(step.at_ms),
            step.describe(scenario)
        )
    };
    Report {
        scenario: scenario.name.clone(),
        title: scenario.title.clone(),
        about: scenario.about.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        notes: stage.notes().iter().map(ToString::to_string).collect(),
        stage,
        seed,
        began_unix_ms: record.began_unix_ms,
        duration_ms: scenario.duration_ms,
        regions: scenario.regions.clone(),
        steps: scenario.steps.iter().map(planned).collect(),
        is_passed: !findings.is_empty() && findings.iter().all(|finding| finding.is_met),
        findings,
        figures: figures::figures(scenario, record),
        timeline: timeline::timeline(scenario, record),
    }
}

impl Report {
    /// Expectations that were met, and all.
    pub fn met(&self) -> (usize, usize) {
        let met = self.findings.iter().filter(|finding| finding.is_met);
        (met.count(), self.findings.len())
    }
}
