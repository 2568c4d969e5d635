//! What this region sees of the others, in the form that the share rule reads.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::domain::name::RegionName;
use crate::domain::time::Span;
use crate::ledger::Ledger;
use crate::ledger::mesh::Mesh;
use crate::ledger::mesh::Peer;

/// A peer that was not heard for this long is cut off.
const CUT_OFF_AFTER: Span = Span::from_seconds(1);
/// Where rounds are rare, it is one that was not heard for so many of them.
const CUT_OFF_ROUNDS: u64 = 10;

/// What is known of one peer.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    heard: Option<Span>,
    is_caught_up: bool,
    acked_round: u64,
    /// Whether it is in touch since it was last looked at, and the newest round when that began: until it has merged
    /// that, it may lack what all others acknowledged while it was away.
    is_back: bool,
    behind: u64,
    latency: Span,
    lag: Span,
    backlog: usize,
    frames: u64,
    incarnation: Option<u64>,
}

impl Seen {
    /// Whether it was heard lately, and has been told all since the later start.
    fn is_in_touch(&self, cut_off_after: Span, boot: Span) -> bool {
        let is_heard = |heard: Span| boot.minus(heard) < cut_off_after;
        self.is_caught_up && self.heard.is_some_and(is_heard)
    }
}

/// What is known of all peers, by name.
#[derive(Debug)]
pub struct Sight {
    cut_off_after: Span,
    peers: Mutex<BTreeMap<RegionName, Seen>>,
}

/// What the telling side knows of one peer.
#[derive(Clone, Debug)]
pub struct Standing {
    /// Which.
    pub region: RegionName,
    /// Whether both have told each other everything since the later of them started.
    pub is_caught_up: bool,
    /// The newest round that it has merged, with all before.
    pub acked_round: u64,
    /// How long a message takes, one way.
    pub latency: Span,
    /// How long ago the oldest changes were gathered that it has not acknowledged.
    pub lag: Span,
    /// Counters that wait to be told to it.
    pub backlog: usize,
    /// Frames that it acknowledged.
    pub frames: u64,
    /// Its process, while a link is up.
    pub incarnation: Option<u64>,
}

impl Sight {
    /// Nobody is known; regions tell each other of changes every `interval`.
    pub fn new(interval: Span) -> Self {
        let rounds = interval.as_nanos().saturating_mul(CUT_OFF_ROUNDS);
        Self {
            cut_off_after: CUT_OFF_AFTER.max(Span::from_nanos(rounds)),
            peers: Mutex::default(),
        }
    }

    /// A frame of `region` came.
    pub fn heard(&self, region: &RegionName, boot: Span, own: &RegionName, ledger: &Ledger) {
        let mut peers = self.peers.lock();
        if let Some(seen) = peers.get_mut(region) {
            seen.heard = Some(boot);
            publish(&mut peers, self.cut_off_after, boot, own, ledger);
        }
    }

    /// How it stands with every peer there is after `round` was gathered; those that are not named are forgotten.
    pub fn set(
        &self,
        standings: &[Standing],
        (round, boot): (u64, Span),
        own: &RegionName,
        ledger: &Ledger,
    ) {
        let mut peers = self.peers.lock();
        peers.retain(|name, _| standings.iter().any(|standing| standing.region == *name));
        for standing in standings {
            let seen = peers.entry(standing.region.clone()).or_default();
            seen.is_caught_up = standing.is_caught_up;
            seen.acked_round = standing.acked_round;
            let is_back = seen.is_in_touch(self.cut_off_after, boot);
            if is_back && !seen.is_back {
                seen.behind = round;
            }
            seen.is_back = is_back;
            seen.latency = standing.latency;
            seen.lag = standing.lag;
            seen.backlog = standing.backlog;
            seen.frames = standing.frames;
            seen.incarnation = standing.incarnation;
        }
        publish(&mut peers, self.cut_off_after, boot, own, ledger);
    }

    /// Whether a process of a peer tells of itself: it is linked and was heard lately.
    pub fn lives(&self, region: &RegionName, incarnation: u64, boot: Span) -> bool {
        let peers = self.peers.lock();
        peers.get(region).is_some_and(|seen| {
            seen.incarnation == Some(incarnation)
                && seen
                    .heard
                    .is_some_and(|heard| boot.minus(heard) < self.cut_off_after)
        })
    }

    /// How it stood with every peer when that was last set, in the order of their names.
    pub fn standings(&self) -> Vec<Standing> {
        let peers = self.peers.lock();
        let standing = |(name, seen): (&RegionName, &Seen)| Standing {
            region: name.clone(),
            is_caught_up: seen.is_caught_up,
            acked_round: seen.acked_round,
            latency: seen.latency,
            lag: seen.lag,
            backlog: seen.backlog,
            frames: seen.frames,
            incarnation: seen.incarnation,
        };
        peers.iter().map(standing).collect()
    }
}

/// Called with the lock held, so that a later state is never overwritten by an earlier one.
fn publish(
    peers: &mut BTreeMap<RegionName, Seen>,
    cut_off_after: Span,
    boot: Span,
    own: &RegionName,
    ledger: &Ledger,
) {
    let mut mesh = Mesh {
        regions: u8::try_from(peers.len() + 1).unwrap_or(u8::MAX),
        order: u8::try_from(peers.range(..own.clone()).count()).unwrap_or(u8::MAX),
        ..Mesh::default()
    };
    for (name, seen) in peers {
        let Some(site) = ledger.site(name) else {
            continue;
        };
        let is_in_touch = seen.is_in_touch(cut_off_after, boot);
        // When it is heard again it is back from the next round on, which says what it has to merge first.
        seen.is_back &= is_in_touch;
        let has_merged = seen.is_back && seen.acked_round >= seen.behind;
        mesh.peers.push(Peer {
            site,
            heard: seen.heard.unwrap_or(Span::ZERO),
            is_in_touch,
            is_reachable: has_merged,
            acked_round: seen.acked_round,
            latency: seen.latency,
        });
    }
    ledger.set_mesh(mesh);
}
