//! When which peer is asked to compare.

use crate::domain::name::RegionName;
use crate::domain::time::Span;
use crate::replication::repair::LISTING_ITEMS_MAX;

/// From one cycle of comparing with a peer to the next.
pub const CYCLE: Span = Span::from_seconds(30);
/// Turns in one cycle, each of at most [`LISTING_ITEMS_MAX`] counters: under constant change everything
/// seems to differ, and the ledger must not be told anew each time.
pub const TURNS_MAX: u32 = 8;
/// A turn that takes longer is taken to have failed.
pub const TURN_MAX: Span = Span::from_seconds(10);
/// The most that is listed to one peer in a cycle.
pub const CYCLE_ITEMS_MAX: usize = LISTING_ITEMS_MAX * TURNS_MAX as usize;

#[derive(Debug)]
struct Turn {
    peer: RegionName,
    /// When the next turn may begin.
    due: Span,
    /// When the running turn is given up; `None`: none runs.
    ends: Option<Span>,
    /// When the next cycle begins.
    cycle_ends: Span,
    turns: u32,
    from: u16,
}

/// The turns of all peers.
#[derive(Debug, Default)]
pub struct Turns {
    turns: Vec<Turn>,
}

impl Turns {
    /// No peers.
    pub const fn new() -> Self {
        Self { turns: Vec::new() }
    }

    /// Compares with `peer` from `boot` + [`CYCLE`] on; until then what it lacks is on its way anyhow.
    pub fn begin(&mut self, peer: &RegionName, boot: Span) {
        self.end(peer);
        self.turns.push(Turn {
            peer: peer.clone(),
            due: boot.plus(CYCLE),
            ends: None,
            cycle_ends: boot.plus(CYCLE),
            turns: 0,
            from: 0,
        });
    }

    /// Compares with `peer` no more.
    pub fn end(&mut self, peer: &RegionName) {
        self.turns.retain(|turn| turn.peer != *peer);
    }

    /// A peer that is due at `boot`, and the range to begin at; its turn runs from now on. One peer a call, so
    /// that one pass over the ledger is fresh for it.
    pub fn due(&mut self, boot: Span) -> Option<(RegionName, u16)> {
        let turn = self
            .turns
            .iter_mut()
            .filter(|turn| turn.due <= boot && turn.ends.is_none_or(|ends| ends <= boot))
            .min_by_key(|turn| turn.due)?;
        if boot >= turn.cycle_ends {
            turn.cycle_ends = boot.plus(CYCLE);
            turn.turns = 0;
        }
        turn.turns += 1;
        turn.ends = Some(boot.plus(TURN_MAX));
        turn.due = turn.cycle_ends;
        Some((turn.peer.clone(), turn.from))
    }

    /// The turn of `peer` has ended: its listing was compared and what differed was told. `next` is what the
    /// listing said; more that differs is looked at at once, as far as the cycle allows.
    pub fn ended(&mut self, peer: &RegionName, next: Option<u16>, boot: Span) {
        let Some(turn) = self.turns.iter_mut().find(|turn| turn.peer == *peer) else {
            return;
        };
        turn.ends = None;
        turn.from = next.unwrap_or(turn.from);
        turn.due = if next.is_some() && turn.turns < TURNS_MAX {
            boot
        } else {
            turn.cycle_ends
        };
    }

    /// The turn of `peer` failed somewhere; it has its next one in the next cycle.
    pub fn failed(&mut self, peer: &RegionName, boot: Span) {
        self.ended(peer, None, boot);
    }
}
