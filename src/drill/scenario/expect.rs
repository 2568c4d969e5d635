//! Expectations: what must come of a drill. Each is met or not, with a figure.

use super::Scenario;

/// Which calls an expectation is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// Of this limit; `None`: of all.
    pub limit: Option<usize>,
    /// Asked in these regions; empty: in all.
    pub regions: Vec<usize>,
    /// Sent from here on.
    pub from_ms: u64,
    /// Sent before.
    pub until_ms: u64,
}

/// What is expected. Shares are in hundredths of a percent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum That {
    /// Strict: no window admitted more than its quota, no bucket more than it holds and earns.
    NeverExceeded,
    /// What was allowed under keys is counted exactly once, everywhere.
    ChargedOnce,
    /// At the end all regions count the same, and what callers were told.
    CountersAgree {
        /// They may count so many units more or less than callers were told, of each key.
        units: u64,
    },
    /// Approximate: no window admitted more over its quota than so much.
    Overshoot {
        /// Units; `None`: what the README states for this load.
        units: Option<u64>,
    },
    /// No window left more of its quota unused while it was asked for.
    Undershoot {
        /// Share of the quota.
        share: u64,
    },
    /// At least this share of calls was answered yes or no.
    Answered {
        /// Of all calls.
        share: u64,
    },
    /// At least this share of calls was allowed.
    Allowed {
        /// Of all calls.
        share: u64,
    },
    /// At most this share of calls was answered 503.
    Unavailable {
        /// Of all calls.
        share: u64,
    },
    /// At most this share of calls was decided by the failure policy.
    Degraded {
        /// Of all calls.
        share: u64,
    },
    /// So many of a hundred answers came within.
    Latency {
        /// Of a hundred.
        percentile: u8,
        /// The time.
        within_ms: u64,
    },
    /// Another region leads within, after the first step that takes the lead away.
    NewLeader {
        /// The time.
        within_ms: u64,
    },
    /// No leader changed.
    SameLeader,
    /// After each step that silences a region, another one says so within.
    Detected {
        /// The time.
        within_ms: u64,
    },
    /// All regions count the same within, after the last call and the last step.
    Converged {
        /// The time.
        within_ms: u64,
    },
    /// Every region is ready, linked and free of faults within, after the last step, and nobody lent a hand.
    Healed {
        /// The time.
        within_ms: u64,
    },
}

/// Words of a scenario file.
pub const WORDS: [&str; 15] = [
    "never-exceeded",
    "charged-once",
    "counters-agree",
    "overshoot",
    "undershoot",
    "answered",
    "allowed",
    "unavailable",
    "degraded",
    "latency",
    "new-leader",
    "same-leader",
    "detected",
    "converged",
    "healed",
];

impl That {
    /// The word in a scenario file.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::NeverExceeded => "never-exceeded",
            Self::ChargedOnce => "charged-once",
            Self::CountersAgree { .. } => "counters-agree",
            Self::Overshoot { .. } => "overshoot",
            Self::Undershoot { .. } => "undershoot",
            Self::Answered { .. } => "answered",
            Self::Allowed { .. } => "allowed",
            Self::Unavailable { .. } => "unavailable",
            Self::Degraded { .. } => "degraded",
            Self::Latency { .. } => "latency",
            Self::NewLeader { .. } => "new-leader",
            Self::SameLeader => "same-leader",
            Self::Detected { .. } => "detected",
            Self::Converged { .. } => "converged",
            Self::Healed { .. } => "healed",
        }
    }
}

/// One expectation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expectation {
    /// Where it stands in the file, from 1.
    pub line: usize,
    /// What.
    pub that: That,
    /// Of which calls.
    pub scope: Scope,
}

impl Expectation {
    /// In words, as in `answered: exports, in us-east-1, from 5 s`.
    pub fn describe(&self, scenario: &Scenario) -> String {
        let mut text = self.that.name().to_owned();
        let mut parts = Vec::new();
        if let Some(limit) = self.scope.limit.and_then(|at| scenario.limits.get(at)) {
            parts.push(limit.name.clone());
        }
        if !self.scope.regions.is_empty() {
            let names: Vec<&str> = self
                .scope
                .regions
                .iter()
                .map(|region| scenario.region(*region))
                .collect();
            parts.push(format!("in {}", names.join(" and ")));
        }
        if self.scope.from_ms > 0 {
            parts.push(format!("from {}", super::step::seconds(self.scope.from_ms)));
        }
        if self.scope.until_ms < scenario.duration_ms {
            parts.push(format!(
                "until {}",
                super::step::seconds(self.scope.until_ms)
            ));
        }
        if !parts.is_empty() {
            text.push_str(": ");
            text.push_str(&parts.join(", "));
        }
        text
    }
}
