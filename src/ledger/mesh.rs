//! What a region knows of the others, the same for all counters.

use smallvec::SmallVec;

use crate::domain::time::Span;
use crate::usage::actor::Site;

/// One other region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its number.
    pub site: Site,
    /// Boot time at which its newest frame came.
    pub heard: Span,
    /// Whether it is in touch: heard within the last second, and caught up with us and we with it since the
    /// later start of both.
    pub is_in_touch: bool,
    /// Whether it is in touch and has merged all that the others acknowledged while it was not. In between it has no
    /// part in what is left, but nothing more is taken to be known by all before it has merged that too.
    pub is_reachable: bool,
    /// The highest round of which, and of all before it, the peer has merged everything that was gathered.
    pub acked_round: u64,
    /// How long a message takes to it, one way.
    pub latency: Span,
}

/// The regions of the cluster as this one sees them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mesh {
    /// All other members, in the order of their names.
    pub peers: SmallVec<[Peer; 8]>,
    /// Members, this one among them.
    pub regions: u8,
    /// Rank of this region among all members in the order of their names: as many of `peers` come before it.
    pub order: u8,
}

impl Mesh {
    /// Regions in touch, this one among them.
    pub fn reachable(&self) -> usize {
        1 + self.peers.iter().filter(|peer| peer.is_reachable).count()
    }

    /// Whether a member is cut off.
    pub fn is_degraded(&self) -> bool {
        self.reachable() < usize::from(self.regions)
    }
}
