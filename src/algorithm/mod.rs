//! The algorithms: one file each, integers only.
//!
//! An algorithm answers two questions about a counter's state at an instant: may `asked` units pass
//! ([`Admission`]), and how do things stand ([`Standing`]). The formulas and their proofs are in the
//! headers of the files; `tests/laws/` runs random traces of each against a slow oracle on exact rationals.
//!
//! | file | state |
//! |---|---|
//! | [`fixed_window`] | use of one window (calendar windows too: only the bounds differ) |
//! | [`sliding_window`] | use of two windows |
//! | [`sliding_log`] | every charge with its instant |
//! | [`bucket`] | units drawn and when: token bucket and leaky bucket |
//! | [`concurrency`] | leases |
//!
//! Rules common to all: a refused call takes nothing; more than the quota can never pass
//! ([`Admission::Never`]); waiting exactly `retry_after` is enough when nobody else comes; elapsed time is
//! never negative. Nothing here reads a clock, allocates per decision (but for a log's own entries) or
//! panics on any input.

pub mod bucket;
pub mod concurrency;
pub mod fixed_window;
pub mod sliding_log;
pub mod sliding_window;

use serde::Deserialize;
use serde::Serialize;

use crate::domain::time::Span;
use crate::domain::time::Timestamp;

/// A state stamped further ahead of `now` than this was written before the clock was set back: its stamp
/// is taken for `now`, with no time earned or lost.
pub const BACK_STEP_MAX: Span = Span::from_seconds(3600);

/// Whether units may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Yes.
    Pass,
    /// Not now.
    Wait {
        /// The shortest wait after which the same units pass if nobody else comes.
        retry_after: Span,
    },
    /// They are more than the quota.
    Never,
}

/// How a limit stands for one key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// Units in use.
    pub used: u64,
    /// Whole units left.
    pub remaining: u64,
    /// Until the use is back at zero (windows: until the window ends).
    pub reset_after: Span,
}

/// `stamp`, or `now` when the clock was set back by more than [`BACK_STEP_MAX`] since.
pub(crate) fn rebased(stamp: Timestamp, now: Timestamp) -> Timestamp {
    if stamp > now.plus(BACK_STEP_MAX) {
        now
    } else {
        stamp
    }
}
