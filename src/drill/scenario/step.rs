//! Steps: what goes wrong or is done, when, where and for how long.

use super::Scenario;

/// Where a step happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// In this region.
    Region(usize),
    /// In the region that leads at that moment.
    Leader,
    /// In the first region that does not lead at that moment.
    Follower,
}

impl Target {
    /// Whether both may be the same region. The lead moves, so that who led a moment ago may follow now; only at one instant
    /// the two are different.
    pub fn may_be(self, other: Self, is_at_once: bool) -> bool {
        match (self, other) {
            (Self::Region(a), Self::Region(b)) => a == b,
            (Self::Leader, Self::Follower) | (Self::Follower, Self::Leader) => !is_at_once,
            _ => true,
        }
    }

    /// Its name in a scenario.
    pub fn name(self, scenario: &Scenario) -> &str {
        match self {
            Self::Region(index) => scenario.region(index),
            Self::Leader => "leader",
            Self::Follower => "follower",
        }
    }
}

/// Which way a link is cut, seen from the region of the step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// Nothing passes.
    #[default]
    Both,
    /// What peers send vanishes.
    In,
    /// What the region sends vanishes.
    Out,
}

impl Direction {
    /// As the admin API names it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Both => "both",
            Self::In => "in",
            Self::Out => "out",
        }
    }
}

/// What happens. Where peers are listed, none means all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// The process is killed, and started again at the end.
    Kill,
    /// The process is asked to end, and started again at the end.
    Stop,
    /// The process is frozen.
    Pause,
    /// The process is killed and its data is lost; it is started empty at the end.
    Wipe,
    /// A backup is taken.
    Backup,
    /// The process is killed and its data replaced by the backup; it is started at the end.
    Restore,
    /// Links are cut.
    Cut {
        /// To which regions.
        peers: Vec<usize>,
        /// Which way.
        direction: Direction,
    },
    /// Links are cut and mended in turns.
    Flap {
        /// To which regions.
        peers: Vec<usize>,
        /// How long each turn lasts.
        every_ms: u64,
    },
    /// What the region sends takes longer.
    Slow {
        /// To which regions.
        peers: Vec<usize>,
        /// By so much.
        delay_ms: u64,
        /// And up to so much more.
        jitter_ms: u64,
    },
    /// What the region sends gets lost.
    Lose {
        /// To which regions.
        peers: Vec<usize>,
        /// So many of a hundred messages.
        loss_percent: u8,
    },
    /// The clock is off.
    Clock {
        /// By so much.
        offset_ms: i64,
    },
    /// The disk is full.
    DiskFull,
    /// Every write fails.
    DiskErrors,
    /// The lead is handed over.
    Transfer,
    /// The region asks its balancer for no more traffic; it resumes at the end.
    Drain,
    /// Callers of the region ask another one instead.
    Move {
        /// Which one.
        to: usize,
    },
}

impl Action {
    /// The word in a scenario file.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Stop => "stop",
            Self::Pause => "pause",
            Self::Wipe => "wipe",
            Self::Backup => "backup",
            Self::Restore => "restore",
            Self::Cut { .. } => "cut",
            Self::Flap { .. } => "flap",
            Self::Slow { .. } => "slow",
            Self::Lose { .. } => "lose",
            Self::Clock { .. } => "clock",
            Self::DiskFull => "disk-full",
            Self::DiskErrors => "disk-errors",
            Self::Transfer => "transfer",
            Self::Drain => "drain",
            Self::Move { .. } => "move",
        }
    }

    /// Whether it needs the region's process in hand, and so cannot be done to a live cluster as it is.
    pub const fn is_of_process(&self) -> bool {
        matches!(
            self,
            Self::Kill | Self::Stop | Self::Pause | Self::Wipe | Self::Restore
        )
    }

    /// Whether it is over at once.
    pub const fn is_instant(&self) -> bool {
        matches!(self, Self::Backup | Self::Transfer)
    }

    /// Whether something is wrong while it lasts, rather than done on purpose.
    pub const fn is_fault(&self) -> bool {
        !matches!(
            self,
            Self::Backup | Self::Transfer | Self::Drain | Self::Move { .. }
        )
    }

    /// Whether another region may lead afterwards: a leader that is silent, cannot write or has a wrong clock does not stay.
    pub const fn takes_the_lead(&self) -> bool {
        self.silences()
            || matches!(
                self,
                Self::Transfer | Self::DiskFull | Self::DiskErrors | Self::Clock { .. }
            )
    }

    /// Whether other regions lose touch with the region.
    pub const fn silences(&self) -> bool {
        match self {
            Self::Kill | Self::Stop | Self::Pause | Self::Wipe | Self::Restore => true,
            Self::Cut { direction, .. } => !matches!(direction, Direction::In),
            _ => false,
        }
    }
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Where it stands in the file, from 1.
    pub line: usize,
    /// When it begins.
    pub at_ms: u64,
    /// How long it lasts; 0: over at once.
    pub lasts_ms: u64,
    /// Where.
    pub target: Target,
    /// What.
    pub action: Action,
}

impl Step {
    /// When it is over.
    pub const fn ends_ms(&self) -> u64 {
        self.at_ms + self.lasts_ms
    }

    /// In words, as in `cut eu-west-1 (out) for 5s`.
    pub fn describe(&self, scenario: &Scenario) -> String {
        let on = self.target.name(scenario);
        let names = |peers: &[usize]| {
            if peers.is_empty() {
                return "all others".to_owned();
            }
            let names: Vec<&str> = peers.iter().map(|peer| scenario.region(*peer)).collect();
            names.join(" and ")
        };
        let what = match &self.action {
            Action::Kill => format!("kill {on}"),
            Action::Stop => format!("stop {on}"),
            Action::Pause => format!("freeze {on}"),
            Action::Wipe => format!("kill {on} and lose its data"),
            Action::Backup => format!("take a backup of {on}"),
            Action::Restore => format!("kill {on} and put its backup back"),
            Action::Cut { peers, direction } => match direction {
                Direction::Both => format!("cut {on} off from {}", names(peers)),
                Direction::In => format!("{on} no more hears {}", names(peers)),
                Direction::Out => format!("{on} is no more heard by {}", names(peers)),
            },
            Action::Flap { peers, every_ms } => {
                format!(
                    "the link of {on} to {} flaps, {every_ms} ms each turn",
                    names(peers)
                )
            }
            Action::Slow {
                peers,
                delay_ms,
                jitter_ms,
            } => {
                let names = names(peers);
                let most = if *jitter_ms == 0 {
                    String::new()
                } else {
                    format!(" to {}", delay_ms + jitter_ms)
                };
                format!("what {on} sends to {names} takes {delay_ms}{most} ms more")
            }
            Action::Lose {
                peers,
                loss_percent,
            } => format!(
                "{loss_percent} % of what {on} sends to {} is lost",
                names(peers)
            ),
            Action::Clock { offset_ms } => format!("the clock of {on} is {offset_ms:+} ms off"),
            Action::DiskFull => format!("the disk of {on} is full"),
            Action::DiskErrors => format!("every write of {on} fails"),
            Action::Transfer => format!("hand the lead to {on}"),
            Action::Drain => format!("drain {on}"),
            Action::Move { to } => format!("callers of {on} ask {}", scenario.region(*to)),
        };
        if self.lasts_ms == 0 {
            return what;
        }
        format!("{what}, for {}", seconds(self.lasts_ms))
    }
}

/// A time in seconds, as `2.5 s`.
pub fn seconds(ms: u64) -> String {
    let (whole, rest) = (ms / 1_000, ms % 1_000);
    if rest == 0 {
        return format!("{whole} s");
    }
    let digits = format!("{rest:03}");
    format!("{whole}.{} s", digits.trim_end_matches('0'))
}
