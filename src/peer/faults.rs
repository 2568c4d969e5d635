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

/// A sequence of numbers that looks random and follows from its seed.
#[derive(Clone, Debug)]
pub struct Draws(u64);

impl Draws {
    /// The sequence of `seed`.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number (splitmix64).
    pub const fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A span of at most `most`.
    pub fn up_to(&mut self, most: Span) -> Span {
        let whole = u128::from(most.as_nanos()) * u128::from(self.draw()) / u128::from(u64::MAX);
        Span::from_nanos_saturating(whole)
    }

    /// True in `percent` of a hundred draws.
    pub fn hits(&mut self, percent: u8) -> bool {
        percent > 0 && self.draw() % 100 < u64::from(percent)
    }
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

    #[test]
    fn draws_follow_their_seed_and_their_share() {
        let mut draws = Draws::new(7);
        let mut again = Draws::new(7);
        assert_eq!(draws.draw(), again.draw());
        let hits = (0..10_000).filter(|_| draws.hits(25)).count();
        assert!((2_200..2_800).contains(&hits), "{hits}");
        assert!((0..1000).all(|_| !draws.hits(0)));
        assert!((0..1000).all(|_| draws.hits(100)));
        assert!((0..1000).all(|_| draws.up_to(Span::from_ms(3)) <= Span::from_ms(3)));
    }
}
