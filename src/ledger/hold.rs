//! Holds: charges that are settled, renewed or given back later.
//!
//! A hold names every charge it made exactly (counter, epoch, window, instant), so that settling gives
//! units back to where they came from. On a quota an expired hold stays charged in full; on a concurrency
//! limit it is the lease itself and frees its units when it ends.

use serde::Deserialize;
use serde::Serialize;

use crate::domain::stamp::Stamp;
use crate::domain::time::Timestamp;
use crate::domain::time::WindowId;
use crate::usage::record::CounterId;

/// The random part of a hold's id; the whole id names the region too (`us-east-1.4f…`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HoldKey(pub u128);

/// One charge that was made: enough to give units of it back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// The counter that was charged.
    pub counter: CounterId,
    /// Its epoch then.
    pub epoch: u64,
    /// The window that was charged.
    pub window: WindowId,
    /// When.
    pub at: Timestamp,
    /// The entry of a sliding log.
    pub entry: Stamp,
    /// Units that it charged.
    pub units: u64,
}

/// Where a hold is in its life.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HoldState {
    /// Not settled; ends by itself at `expires_at`.
    Open,
    /// Settled or released; the same request gets the same answer again.
    Closed {
        /// Fingerprint of the request that closed it.
        fingerprint: u128,
        /// The answer that it got.
        answer: Box<[u8]>,
    },
}

/// A hold as it is kept in memory and on disk.
///
/// `version` rises with every change, so the newest record wins wherever two meet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldRecord {
    /// Which hold.
    pub key: HoldKey,
    /// Whose hold.
    pub tenant: String,
    /// What it charged.
    pub receipts: Vec<Receipt>,
    /// When it ends unless it is renewed.
    pub expires_at: Timestamp,
    /// When the record may be forgotten.
    pub forget_at: Timestamp,
    /// Open or closed.
    pub state: HoldState,
    /// Counts the changes of this hold.
    pub version: u64,
}
