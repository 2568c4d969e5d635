//! Remembered answers to keyed requests.

use serde::Deserialize;
use serde::Serialize;

use crate::domain::time::Timestamp;

/// The operations that take an `Idempotency-Key`; each has its own keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Operation {
    /// `POST /v1/check` and each item of a batch.
    Check,
    /// `POST /v1/holds`.
    Hold,
    /// `POST /v1/holds/{id}/settle`.
    Settle,
    /// `POST /v1/refund`.
    Refund,
}

/// Names one keyed request: an `Idempotency-Key` counts for one tenant and one operation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RequestId {
    /// The tenant.
    pub tenant: String,
    /// The operation.
    pub operation: Operation,
    /// The `Idempotency-Key`.
    pub key: String,
}

/// An answer that is given again when its request is repeated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptAnswer {
    /// Which request.
    pub request: RequestId,
    /// What the request said; another body under the same key is refused.
    pub fingerprint: u128,
    /// Status of the answer.
    pub status: u16,
    /// Its headers that a repeat gets again.
    pub headers: Vec<(String, String)>,
    /// Its body.
    pub body: Box<[u8]>,
    /// When it is forgotten.
    pub expires_at: Timestamp,
}
