//! What callers were told and what was seen: the only thing that a verdict is made of.
//!
//! All times are milliseconds since callers began, by the clock of whoever ran the drill.

use serde::Deserialize;
use serde::Serialize;

/// What a limit said in an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Said {
    /// The limit's epoch.
    pub epoch: u64,
    /// The window, in Unix milliseconds, when the limit has one.
    pub window_start_ms: Option<i64>,
    /// Who decided: `local`, `reservation`, `leader`, `fallback`.
    pub decided_by: String,
    /// Whether it rests on a region's failure policy, or on reports that are missing.
    pub is_degraded: bool,
}

/// What came of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// 200.
    Allowed(Said),
    /// 429.
    Refused(Said),
    /// 503.
    Unavailable {
        /// It may have been charged all the same.
        may_be_charged: bool,
    },
    /// Any other status: never right.
    Wrong(u16),
    /// No answer came.
    Nothing {
        /// It may have been charged all the same: it was sent.
        may_be_charged: bool,
    },
}

impl Answer {
    /// What the limit said, when it decided.
    pub const fn said(&self) -> Option<&Said> {
        match self {
            Self::Allowed(said) | Self::Refused(said) => Some(said),
            Self::Unavailable { .. } | Self::Wrong(_) | Self::Nothing { .. } => None,
        }
    }

    /// Whether a region let it through by the limit's failure policy, without anybody who could have counted it then.
    pub fn is_by_policy(&self) -> bool {
        matches!(self, Self::Allowed(said) if said.decided_by == "fallback")
    }

    /// Whether it may have been charged without being told.
    pub const fn is_in_doubt(&self) -> bool {
        match self {
            Self::Allowed(_) | Self::Refused(_) => false,
            Self::Unavailable { may_be_charged } | Self::Nothing { may_be_charged } => {
                *may_be_charged
            }
            Self::Wrong(_) => true,
        }
    }
}

/// A call and what came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// Which load made it.
    pub load: usize,
    /// The region of the caller.
    pub home: usize,
    /// The region that was asked last.
    pub region: usize,
    /// For which key.
    pub key: u32,
    /// Units.
    pub cost: u64,
    /// When it was sent first.
    pub sent_ms: u64,
    /// When it was answered, or given up.
    pub heard_ms: u64,
    /// Times that it was sent.
    pub tries: u32,
    /// What came of it.
    pub answer: Answer,
}

/// How a region was at one moment, by its own word.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// It can serve.
    pub is_ready: bool,
    /// It wants no more traffic.
    pub is_draining: bool,
    /// It is granted units.
    pub is_enrolled: bool,
    /// It leads.
    pub leads: bool,
    /// Who leads, as far as it knows.
    pub leader: Option<usize>,
    /// The newest term that it knows.
    pub term: u64,
    /// Its store works.
    pub is_store_ok: bool,
    /// Faults that are injected.
    pub faults: usize,
    /// Regions with which it is linked, both ways.
    pub links: Vec<usize>,
    /// For how long counts have been waiting that some region has not got yet.
    pub lag_ms: u64,
}

/// One look at a region.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// When it was asked.
    pub at_ms: u64,
    /// Which region.
    pub region: usize,
    /// How it was; `None`: it did not answer.
    pub seen: Option<Seen>,
}

/// A step as it was carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// Which step of the scenario.
    pub step: usize,
    /// In which region.
    pub region: usize,
    /// When it began.
    pub began_ms: u64,
    /// When it was over; `None`: it was not at the end of the drill.
    pub ended_ms: Option<u64>,
}

/// What the regions told of one counter at the end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    /// Which limit.
    pub limit: usize,
    /// Whose.
    pub tenant: String,
    /// Of which key.
    pub key: u32,
    /// The epoch that is counted.
    pub epoch: u64,
    /// The window that is counted, in Unix milliseconds.
    pub window_start_ms: i64,
    /// By region: units used; `None`: it did not tell.
    pub used: Vec<Option<u64>>,
    /// Strict: units that ended processes took with them, spent or not.
    pub stranded: u64,
    /// Strict: units that regions still hold, or have spent without having told yet.
    pub held: u64,
}

/// Everything that one drill left behind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Unix time when callers began, in milliseconds.
    pub began_unix_ms: i64,
    /// When the last caller was done.
    pub load_ended_ms: u64,
    /// When nobody looked any more.
    pub ended_ms: u64,
    /// Calls, in no order.
    pub calls: Vec<Call>,
    /// Looks at regions, in the order of time.
    pub samples: Vec<Sample>,
    /// Steps, in the order in which they began.
    pub steps: Vec<Done>,
    /// Counters at the end.
    pub counted: Vec<Counted>,
    /// When all regions counted the same, after the last call and the last step; `None`: they never did.
    pub converged_ms: Option<u64>,
    /// By region: faults that are part of the links, and no trouble.
    pub faults_of_links: Vec<usize>,
    /// The longest time that the drill itself stood still, because its machine was busy.
    pub stall_ms_max: u64,
}

impl Record {
    /// Whether the region was as it should be, in a drill of so many regions.
    pub fn is_well(&self, sample: &Sample, regions: usize) -> bool {
        let of_links = self
            .faults_of_links
            .get(sample.region)
            .copied()
            .unwrap_or(0);
        sample.seen.as_ref().is_some_and(|seen| {
            seen.is_ready
                && !seen.is_draining
                && seen.is_enrolled
                && seen.leader.is_some()
                && seen.is_store_ok
                && seen.faults <= of_links
                && seen.links.len() + 1 >= regions
        })
    }

    /// From when on all regions were well, and stayed so, not before `from_ms`; `None`: some never was.
    pub fn well_from(&self, from_ms: u64, regions: usize) -> Option<u64> {
        (0..regions)
            .map(|region| {
                let mut well_from = None;
                let looks = self.samples.iter().filter(|one| one.region == region);
                for sample in looks.filter(|sample| sample.at_ms >= from_ms) {
                    if !self.is_well(sample, regions) {
                        well_from = None;
                    } else if well_from.is_none() {
                        well_from = Some(sample.at_ms);
                    }
                }
                well_from
            })
            .try_fold(from_ms, |latest, well| Some(latest.max(well?)))
    }

    /// When the last step was over; 0 without steps.
    pub fn steps_ended_ms(&self) -> u64 {
        self.steps
            .iter()
            .filter_map(|done| done.ended_ms)
            .max()
            .unwrap_or(0)
    }

    /// Who led at `at_ms` and in which term, by the newest term that a region said it leads in.
    pub fn leader_at(&self, at_ms: u64) -> Option<(usize, u64)> {
        let led = self.samples.iter().filter(|sample| sample.at_ms <= at_ms);
        led.filter_map(|sample| {
            let seen = sample.seen.as_ref().filter(|seen| seen.leads)?;
            Some((seen.term, sample.region))
        })
        .max()
        .map(|(term, region)| (region, term))
    }
}
