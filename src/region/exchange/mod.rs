//! Counts go out to the other regions and come in from them.
//!
//! ```text
//! ledger ── changed counters ─► tell (every 100 ms, or at once near a limit) ─► peers ─► hear ─► ledger
//!                                 ▲                                                        │
//!                                 └──────────── reply: merged, and what you may not know ◄─┘
//! ```
//!
//! - [`tell`]: the task that drives [`crate::replication`].
//! - [`hear`]: takes frames and replies; runs where they arrive.
//! - [`compare`]: finds what slipped past all that, and tells it.
//!
//! No check waits for any of this. Counts of peers are kept in memory alone: a region that starts anew is told
//! everything by its peers, what its own earlier processes had counted among it.

pub mod compare;
pub mod hear;
pub mod tell;

use std::collections::BTreeMap;

use tokio::sync::Notify;
use tokio::sync::mpsc;

use crate::domain::name::RegionName;
use crate::domain::time::Span;
use crate::replication::repair::Collection;
use crate::replication::sender::SendId;
use crate::replication::sight::Sight;
use crate::replication::sight::Standing;
use crate::telemetry::usage::TellingReading;

/// Words that may wait for the telling task.
const WORDS_MAX: usize = 4_096;

/// Something that the telling task must know.
#[derive(Debug)]
pub enum Word {
    /// A frame was merged by a peer.
    Replied(RegionName, SendId),
    /// A frame got no answer.
    Failed(RegionName, SendId),
    /// A process said that it has told all that it holds.
    ToldEverything(RegionName, u64),
    /// A comparison with a peer has ended, and the next goes on there; `None` inside: it failed.
    Compared(RegionName, Option<Option<u16>>),
}

/// What a region keeps for the exchange of counts.
#[derive(Debug)]
pub struct Exchange {
    /// Between two rounds of this region, and so, if all are set up alike, of any other.
    pub interval: Span,
    /// A counter came so near its limit that peers are to be told at once.
    pub urgent: Notify,
    /// What is known of the peers.
    pub sight: Sight,
    /// To the telling task.
    pub words: mpsc::Sender<Word>,
    /// For the telling task, until it starts.
    pub inbox: parking_lot::Mutex<Option<mpsc::Receiver<Word>>>,
    /// Frames that could not be read or hold too much, since the start.
    pub refused: std::sync::atomic::AtomicU64,
    /// Counters in frames to peers, since the start.
    pub told: std::sync::atomic::AtomicU64,
    /// Counters that a comparison found to differ, since the start.
    pub repaired: std::sync::atomic::AtomicU64,
    /// Peers that tell of limits which the catalogue here lacks: since when, and when last.
    pub unknown_limits: parking_lot::Mutex<BTreeMap<RegionName, (Span, Span)>>,
    /// What was listed to each peer last.
    pub collections: parking_lot::Mutex<BTreeMap<RegionName, Collection>>,
}

impl Exchange {
    /// How it stands with the counts that each peer is told.
    pub fn readings(&self) -> Vec<TellingReading> {
        let standings = self.sight.standings().into_iter();
        let reading = |standing: Standing| TellingReading {
            peer: standing.region.to_string(),
            lag: standing.lag,
            backlog: standing.backlog,
            frames: standing.frames,
            is_caught_up: standing.is_caught_up,
        };
        standings.map(reading).collect()
    }

    /// Of a region that tells its peers of changes every `interval`.
    pub fn new(interval: Span) -> Self {
        let (words, inbox) = mpsc::channel(WORDS_MAX);
        Self {
            interval,
            urgent: Notify::new(),
            sight: Sight::new(interval),
            words,
            inbox: parking_lot::Mutex::new(Some(inbox)),
            refused: std::sync::atomic::AtomicU64::new(0),
            told: std::sync::atomic::AtomicU64::new(0),
            repaired: std::sync::atomic::AtomicU64::new(0),
            unknown_limits: parking_lot::Mutex::default(),
            collections: parking_lot::Mutex::default(),
        }
    }
}
