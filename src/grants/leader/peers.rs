//! What the leader knows of the regions: who lives, how far away it is, how long its refills take.

use std::collections::BTreeMap;

use crate::domain::name::RegionName;
use crate::domain::time::Span;

/// A region that was not heard for this long is not asked to give units back.
pub const LIVE_WITHIN: Span = Span::from_seconds(1);
/// Taken for a region whose round trip was not measured yet.
const ROUND_TRIP_UNKNOWN: Span = Span::from_ms(300);

#[derive(Clone, Copy, Debug, Default)]
struct Peer {
    heard: Option<Span>,
    round_trip: Option<Span>,
    refill: Span,
}

/// The regions, by name. As many as were enrolled or told of by the shell.
#[derive(Clone, Debug, Default)]
pub(super) struct Peers(BTreeMap<RegionName, Peer>);

impl Peers {
    fn peer(&mut self, region: &RegionName) -> &mut Peer {
        self.0.entry(region.clone()).or_default()
    }

    pub(super) fn hear(&mut self, region: &RegionName, boot: Span) {
        let peer = self.peer(region);
        peer.heard = peer.heard.max(Some(boot));
    }

    pub(super) fn set_round_trip(&mut self, region: &RegionName, round_trip: Span) {
        self.peer(region).round_trip = Some(round_trip);
    }

    pub(super) fn set_refill(&mut self, region: &RegionName, refill: Span) {
        self.peer(region).refill = refill;
    }

    pub(super) fn lives(&self, region: &RegionName, boot: Span) -> bool {
        self.0.get(region).is_some_and(|peer| peer.lives(boot))
    }

    pub(super) fn round_trip(&self, region: &RegionName) -> Span {
        self.0
            .get(region)
            .and_then(|peer| peer.round_trip)
            .unwrap_or(ROUND_TRIP_UNKNOWN)
    }

    pub(super) fn living(&self, boot: Span) -> usize {
        self.0.values().filter(|peer| peer.lives(boot)).count()
    }

    pub(super) fn slowest_refill(&self, boot: Span) -> Span {
        self.0
            .values()
            .filter(|peer| peer.lives(boot))
            .map(|peer| peer.refill)
            .max()
            .unwrap_or(Span::ZERO)
    }
}

impl Peer {
    fn lives(&self, boot: Span) -> bool {
        self.heard
            .is_some_and(|heard| boot.minus(heard) <= LIVE_WITHIN)
    }
}
