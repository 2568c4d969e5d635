//! What a drill is: regions, links, limits, loads, steps and expectations.
//!
//! All times are milliseconds since callers began. Regions, limits and loads are named by their place in the
//! scenario. Files: `read` (from TOML, with lines), `step` (what goes wrong), `expect` (what must come of it).

mod expect;
mod read;
pub mod step;
#[cfg(test)]
mod tests;

use std::fmt;

use crate::domain::limit::Limit;
use crate::domain::limit::LimitSpec;
use crate::domain::limit::Mode;
use crate::domain::limit::Rule;

pub use expect::Expectation;
pub use expect::Scope;
pub use expect::That;
pub use expect::WORDS;
pub use step::Action;
pub use step::Direction;
pub use step::Step;
pub use step::Target;

/// The most regions of a drill.
pub const REGIONS_MAX: usize = 8;
/// The longest drill.
pub const DURATION_MS_MAX: u64 = 60 * 60_000;
/// The longest one in virtual time.
pub const VIRTUAL_MS_MAX: u64 = 24 * 60 * 60_000;
/// The longest fault, and so the longest drill with links that have jitter or loss: these are faults of their own.
pub const FAULT_MS_MAX: u64 = 15 * 60_000;
/// The most calls a second that one load makes in one region.
pub const RATE_MAX: u64 = 2_000;
/// The most units of one call.
pub const COST_MAX: u64 = 1_000_000;
/// The most keys of one load.
pub const KEYS_MAX: u32 = 100_000;

/// A drill.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The file's name without its ending.
    pub name: String,
    /// What is rehearsed, in a few words.
    pub title: String,
    /// What happens and what is to be learned, in a few sentences.
    pub about: String,
    /// The regions, in order.
    pub regions: Vec<String>,
    /// How long callers ask.
    pub duration_ms: u64,
    /// How long everything may take to be well again afterwards.
    pub settle_ms: u64,
    /// The links, one for each two regions.
    pub links: Vec<Link>,
    /// The limits, in the order of their names.
    pub limits: Vec<DrillLimit>,
    /// Who asks how often for what.
    pub loads: Vec<Load>,
    /// What goes wrong, in the order of time.
    pub steps: Vec<Step>,
    /// What must come of it.
    pub expectations: Vec<Expectation>,
}

/// A link between two regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The two regions.
    pub between: (usize, usize),
    /// What a message takes one way.
    pub delay_ms: u64,
    /// Up to so much more.
    pub jitter_ms: u64,
    /// Of a hundred messages, so many are lost.
    pub loss_percent: u8,
}

/// A limit that callers ask for.
#[derive(Clone, Debug)]
pub struct DrillLimit {
    /// Its name.
    pub name: String,
    /// As it is written.
    pub spec: LimitSpec,
    /// As it is used.
    pub limit: Limit,
}

impl DrillLimit {
    /// How global the limit is.
    pub const fn mode(&self) -> Mode {
        self.limit.mode
    }

    /// Quota and length of a window, when the limit has windows of one length.
    pub const fn window(&self) -> Option<(u64, u64)> {
        match self.limit.rule {
            Rule::FixedWindow { quota, window } => Some((quota, window.as_ms_ceil())),
            _ => None,
        }
    }

    /// Capacity, refill, and the time for that refill, when the limit is a bucket.
    pub const fn bucket(&self) -> Option<(u64, u64, u64)> {
        match self.limit.rule {
            Rule::TokenBucket {
                capacity,
                refill,
                per,
            } => Some((capacity, refill, per.as_ms_ceil())),
            _ => None,
        }
    }

    /// Whether a check brings a key.
    pub const fn has_key(&self) -> bool {
        self.limit.key.is_some()
    }
}

/// How calls are spread over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Every so often.
    Steady,
    /// A second's calls at the second's beginning.
    Bursty,
    /// At random.
    Poisson,
}

/// Callers of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load {
    /// Whose limits: a word, from which the drill makes a tenant of its own.
    pub tenant: String,
    /// Which limit.
    pub limit: usize,
    /// The regions where they are.
    pub regions: Vec<usize>,
    /// Calls a second in each of them.
    pub rate: u64,
    /// How they are spread.
    pub shape: Shape,
    /// How many keys they ask for, each as often as another.
    pub keys: u32,
    /// Units of a call, from and to.
    pub cost: (u64, u64),
    /// Whether each call has an `Idempotency-Key` and is repeated, in other regions too, until it is answered.
    pub is_keyed: bool,
    /// When they begin and end.
    pub span_ms: (u64, u64),
}

/// What is wrong with a scenario: lines from 1, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScenarioError {
    /// Line and message.
    pub faults: Vec<(usize, String)>,
}

impl ScenarioError {
    /// All faults, one a line, each after the file's name and the line.
    pub fn in_file(&self, file: &str) -> String {
        let told: Vec<String> = self
            .faults
            .iter()
            .map(|(line, message)| format!("{file}:{line}: {message}"))
            .collect();
        told.join("\n")
    }
}

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.in_file("scenario"))
    }
}

impl std::error::Error for ScenarioError {}

impl Scenario {
    /// Reads the scenario `name` from its text.
    ///
    /// # Errors
    /// Everything that is wrong with it, with lines.
    pub fn parse(name: &str, text: &str) -> Result<Self, ScenarioError> {
        read::scenario(name, text, DURATION_MS_MAX)
    }

    /// Reads one that is to run in virtual time, where it may last a day.
    ///
    /// # Errors
    /// Everything that is wrong with it, with lines.
    pub fn parse_virtual(name: &str, text: &str) -> Result<Self, ScenarioError> {
        read::scenario(name, text, VIRTUAL_MS_MAX)
    }

    /// The link of two regions.
    pub fn link(&self, a: usize, b: usize) -> Option<&Link> {
        let between = (a.min(b), a.max(b));
        self.links.iter().find(|link| link.between == between)
    }

    /// The name of a region.
    pub fn region(&self, index: usize) -> &str {
        self.regions.get(index).map_or("?", String::as_str)
    }

    /// The slowest way between two regions.
    pub fn delay_ms_max(&self) -> u64 {
        self.links
            .iter()
            .map(|link| link.delay_ms + link.jitter_ms)
            .max()
            .unwrap_or(0)
    }

    /// When the last step is over.
    pub fn last_step_ends_ms(&self) -> u64 {
        self.steps.iter().map(Step::ends_ms).max().unwrap_or(0)
    }

    /// Tenants that callers ask for, each once.
    pub fn tenants(&self) -> Vec<&str> {
        let mut tenants: Vec<&str> = self.loads.iter().map(|load| load.tenant.as_str()).collect();
        tenants.sort_unstable();
        tenants.dedup();
        tenants
    }
}
