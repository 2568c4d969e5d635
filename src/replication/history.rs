//! When rounds were gathered, kept coarser the longer ago it was.

use crate::domain::time::Span;

/// Rounds that are remembered.
const ROUNDS_MAX: usize = 256;

/// Rounds with the time of their gathering, oldest first.
#[derive(Debug)]
pub(crate) struct History {
    rounds: Vec<(u64, Span)>,
}

impl History {
    pub(crate) const fn new() -> Self {
        Self { rounds: Vec::new() }
    }

    /// `round` was gathered at `boot`. When too many are remembered, every second one is forgotten, but not
    /// the oldest, so a time that is told may be earlier than the true one and never later.
    pub(crate) fn add(&mut self, round: u64, boot: Span) {
        if self.rounds.len() >= ROUNDS_MAX {
            let mut keep = false;
            self.rounds.retain(|_| {
                keep = !keep;
                keep
            });
        }
        self.rounds.push((round, boot));
    }

    /// When `round` was gathered, or the last one before it that is remembered.
    pub(crate) fn at(&self, round: u64) -> Option<Span> {
        let after = self.rounds.partition_point(|(known, _)| *known <= round);
        let known = self.rounds.get(after.saturating_sub(1))?;
        Some(known.1)
    }

    /// Nobody asks for rounds before `round` any more.
    pub(crate) fn forget_before(&mut self, round: u64) {
        let after = self.rounds.partition_point(|(known, _)| *known <= round);
        self.rounds.drain(..after.saturating_sub(1));
    }
}
