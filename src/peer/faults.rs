//! Faults between regions, as one link feels them. Pure.
//!
//! A partition is a black hole: frames vanish and nothing is reset. Latency keeps the order of frames.

use crate::domain::name::RegionName;
use crate::domain::time::Span;

/// The longest delay, and the longest jitter, that can be injected. Both together stay below the time that a
/// handshake may take.
pub const DELAY_MAX: Span = Span::from_seconds(2);
/// A loss that leaves nothing.
pub const LOSS_PERCENT_MAX: u8 = 100;

/// What goes wrong on the way to and from one peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkFaults {
    /// What the peer sends vanishes.
    pub blocks_in: bool,
    /// What we send vanishes.
    pub blocks_out: bool,
    /// Added to the way of every frame that we send, at most [`DELAY_MAX`].
    pub delay: Span,
    /// Each frame is delayed by up to this much more, at most [`DELAY_MAX`].
    pub jitter: Span,
    /// Of the frames that we send, so many of a hundred vanish.
    pub loss_percent: u8,
}

impl LinkFaults {
    /// Both at once: delays add up, the larger loss counts. A loss of everything is a partition.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let loss_percent = self.loss_percent.max(other.loss_percent);
        Self {
            blocks_in: self.blocks_in || other.blocks_in,
            blocks_out: self.blocks_out || other.blocks_out || loss_percent >= LOSS_PERCENT_MAX,
            delay: self.delay.plus(other.delay).min(DELAY_MAX),
            jitter: self.jitter.plus(other.jitter).min(DELAY_MAX),
            loss_percent,
        }
    }
}

/// A fault that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerFault {
    /// The peer that it concerns; `None`: all.
    pub peer: Option<RegionName>,
    /// What goes wrong.
    pub faults: LinkFaults,
}

/// What goes wrong on the way to and from `peer` when `running` run.
pub fn towards(peer: &RegionName, running: &[PeerFault]) -> LinkFaults {
    running
        .iter()
        .filter(|fault| fault.peer.as_ref().is_none_or(|only| only == peer))
        .fold(LinkFaults::default(), |all, fault| all.and(fault.faults))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(name: &str) -> RegionName {
        RegionName::new(name).expect("a name")
    }

    #[test]
    fn faults_of_all_peers_and_of_one_add_up() {
        let slow = LinkFaults {
            delay: Span::from_ms(40),
            loss_percent: 10,
            ..LinkFaults::default()
        };
        let cut = LinkFaults {
            blocks_in: true,
            delay: Span::from_ms(5),
            loss_percent: 3,
            ..LinkFaults::default()
        };
        let fault = |peer: Option<&str>, faults| PeerFault {
            peer: peer.map(region),
            faults,
        };
        let running = [fault(None, slow), fault(Some("b"), cut)];
        assert_eq!(towards(&region("a"), &running), slow);
        assert_eq!(
            towards(&region("b"), &running),
            LinkFaults {
                blocks_in: true,
                delay: Span::from_ms(45),
                loss_percent: 10,
                ..LinkFaults::default()
            }
        );
        assert_eq!(towards(&region("a"), &[]), LinkFaults::default());
        let all_lost = LinkFaults {
            loss_percent: 100,
            ..LinkFaults::default()
        };
        assert!(towards(&region("a"), &[fault(None, all_lost)]).blocks_out);
    }
}
