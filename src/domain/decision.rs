//! What a check can be told.

use serde::Deserialize;
use serde::Serialize;
#[cfg(feature = "server")]
use utoipa::ToSchema;

/// Yes or no.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// The caller may go on.
    Allow,
    /// The caller may not.
    Deny,
}

/// Why a check was not allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Too little is left now; waiting helps.
    QuotaExceeded,
    /// The cost is above the quota; waiting never helps.
    CostExceedsQuota,
    /// This region cannot decide.
    Unavailable,
    /// It may have been charged: repeat with the same `Idempotency-Key`.
    OutcomeUnknown,
}

impl Reason {
    /// The reason as it is written in answers and labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::QuotaExceeded => "quota_exceeded",
            Self::CostExceedsQuota => "cost_exceeds_quota",
            Self::Unavailable => "unavailable",
            Self::OutcomeUnknown => "outcome_unknown",
        }
    }
}

/// What an answer rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum DecidedBy {
    /// This region's counters.
    Local,
    /// Units that this region holds of a strict limit.
    Reservation,
    /// The leader region.
    Leader,
    /// The limit's failure policy.
    Fallback,
}
