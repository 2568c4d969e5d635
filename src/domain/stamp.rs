//! Versions of what one region writes.

use serde::Deserialize;
use serde::Serialize;

/// Orders what one region wrote: first by start of the process, then by a count inside it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Stamp {
    /// Which start of the region's process, counted by its store.
    pub start: u32,
    /// Counts up inside that process.
    pub count: u64,
}
