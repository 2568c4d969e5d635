//! The network: what links take, what is lost on them, and what injected faults make of that. Messages of one region to
//! another arrive in the order in which they were sent.

use std::collections::BTreeMap;

use crate::domain::draws::Draws;
use crate::drill::scenario::Action;
use crate::drill::scenario::Direction;
use crate::drill::scenario::Scenario;

/// A millisecond, in nanoseconds.
pub const MS: u64 = 1_000_000;
/// What a message within a region takes.
const WITHIN: u64 = 50_000;
/// Of the way, up to such a part is added by chance.
const UNEVEN_PART: u64 = 50;

/// A fault of a region.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Where it was injected.
    pub region: usize,
    /// What it is.
    pub action: Action,
}

impl Fault {
    /// Whether it is about the link to `peer`.
    fn is_of(&self, peer: usize) -> bool {
        let peers = match &self.action {
            Action::Cut { peers, .. }
            | Action::Flap { peers, .. }
            | Action::Slow { peers, .. }
            | Action::Lose { peers, .. } => peers,
            _ => return false,
        };
        peer != self.region && (peers.is_empty() || peers.contains(&peer))
    }

    /// Whether nothing passes from one region to another.
    fn cuts(&self, from: usize, to: usize) -> bool {
        let direction = match self.action {
            Action::Cut { direction, .. } => direction,
            Action::Flap { .. } => Direction::Both,
            _ => return false,
        };
        let is_out = self.region == from && self.is_of(to);
        let is_in = self.region == to && self.is_of(from);
        match direction {
            Direction::Both => is_out || is_in,
            Direction::Out => is_out,
            Direction::In => is_in,
        }
    }
}

/// All links.
#[derive(Clone, Debug)]
pub struct Net {
    /// By pair of regions: delay, jitter in nanoseconds, loss in percent.
    links: BTreeMap<(usize, usize), (u64, u64, u8)>,
    /// Faults by number.
    faults: BTreeMap<u64, Fault>,
    last_fault: u64,
    last_arrivals: BTreeMap<(usize, usize), u64>,
    draws: Draws,
}

impl Net {
    /// The links of a scenario.
    pub fn new(scenario: &Scenario, draws: Draws) -> Self {
        let of = |link: &crate::drill::scenario::Link| {
            let way = (link.delay_ms * MS, link.jitter_ms * MS, link.loss_percent);
            (link.between, way)
        };
        Self {
            links: scenario.links.iter().map(of).collect(),
            faults: BTreeMap::new(),
            last_fault: 0,
            last_arrivals: BTreeMap::new(),
            draws,
        }
    }

    fn link(&self, one: usize, other: usize) -> (u64, u64, u8) {
        let between = (one.min(other), one.max(other));
        self.links.get(&between).copied().unwrap_or_default()
    }

    /// What a message takes at least, in nanoseconds.
    pub fn delay(&self, one: usize, other: usize) -> u64 {
        if one == other {
            return 0;
        }
        self.link(one, other).0
    }

    /// Injects a fault; its number.
    pub fn inject(&mut self, fault: Fault) -> u64 {
        self.last_fault += 1;
        self.faults.insert(self.last_fault, fault);
        self.last_fault
    }

    /// Ends a fault.
    pub fn lift(&mut self, number: u64) {
        #[cfg(feature = "planted-faults")]
        if crate::domain::planted::is(crate::domain::planted::Planted::FaultDoesNotHeal) {
            return;
        }
        self.faults.remove(&number);
    }

    /// The process ended in which faults were injected: they are gone with it.
    pub fn forget(&mut self, region: usize) {
        self.faults.retain(|_, fault| fault.region != region);
    }

    /// Faults of a region.
    pub fn of_region(&self, region: usize) -> impl Iterator<Item = &Fault> {
        self.faults
            .values()
            .filter(move |fault| fault.region == region)
    }

    /// When a message that is sent at `at` arrives; `None`: never.
    pub fn arrival(&mut self, from: usize, to: usize, at: u64) -> Option<u64> {
        if from == to {
            return Some(at + WITHIN);
        }
        let (mut delay, mut jitter, loss) = self.link(from, to);
        let mut losses = vec![loss];
        for fault in self.faults.values() {
            if fault.cuts(from, to) {
                return None;
            }
            if fault.region != from || !fault.is_of(to) {
                continue;
            }
            match fault.action {
                Action::Slow {
                    delay_ms,
                    jitter_ms,
                    ..
                } => {
                    delay += delay_ms * MS;
                    jitter += jitter_ms * MS;
                }
                Action::Lose { loss_percent, .. } => losses.push(loss_percent),
                _ => {}
            }
        }
        for loss in losses {
            if self.draws.hits(loss) {
                return None;
            }
        }
        let more = self.draws.below(jitter + delay / UNEVEN_PART + 1);
        let last = self.last_arrivals.entry((from, to)).or_default();
        *last = (at + delay + more).max(*last + 1);
        Some(*last)
    }
}
