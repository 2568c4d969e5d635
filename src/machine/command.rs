//! Entries of the log and what comes of them.

use serde::Deserialize;
use serde::Serialize;

use crate::catalogue::change::Applied;
use crate::catalogue::change::Refused;
use crate::domain::name::RegionName;
use crate::domain::time::Timestamp;
use crate::grants::account::Holder;
use crate::grants::account::Transfer;
use crate::grants::book::NotTaken;
use crate::grants::book::Transferred;
use crate::machine::charge::Charge;
use crate::machine::charge::Charged;
use crate::machine::give::GiveBack;
use crate::machine::give::Given;
use crate::machine::give::Renew;

/// One entry of the log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Payload {
    /// Log time, as the leader reads it; where it is behind an earlier entry's, the earlier one holds.
    pub log_time: Timestamp,
    /// What happens.
    pub command: Command,
}

/// What happens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Command {
    /// The first entry of a cluster.
    Found {
        /// The cluster's id: 64 random bits.
        cluster: u64,
        /// The catalogue (JSON) that the founder had before there was a log.
        adopted: Option<Vec<u8>>,
    },
    /// A process of a region begins.
    Enroll(Holder),
    /// A region is no member any more: nothing is granted to it, and what it holds is stranded.
    Depart(RegionName),
    /// Which region should lead; `None`: any.
    Prefer(Option<RegionName>),
    /// A change of the catalogue: its [`crate::catalogue::change::Entry`] as JSON, whose fields may be absent.
    Change(Vec<u8>),
    /// Units of a strict window move.
    Transfer(Transfer),
    /// A check that the log decides.
    Charge(Charge),
    /// Units of an earlier charge go back.
    GiveBack(GiveBack),
    /// A hold lasts longer.
    Renew(Renew),
    /// A leader has begun: no time is earned by buckets before this.
    Begin,
    /// The lease of a process on units of buckets has ended.
    Lapse(Holder),
}

/// What came of an entry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    /// Done.
    Done,
    /// The entry makes no sense; nothing happened.
    Invalid(String),
    /// The catalogue has changed.
    Changed(#[serde(with = "json")] Applied),
    /// The catalogue refused the change.
    Refused(Refused),
    /// Units moved.
    Transferred(Transferred),
    /// No units moved.
    NotTaken(NotTaken),
    /// The limit is another one by now.
    Stale {
        /// The catalogue's version.
        version: u64,
    },
    /// A check was decided.
    Charged(Charged),
    /// Units were given back.
    Given(Given),
}

/// A row of the audit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditRow {
    /// Number of the change.
    pub index: u64,
    /// Log time of the change.
    pub at: Timestamp,
    /// Who made it.
    pub author: String,
    /// What it did.
    pub summary: String,
}

/// As JSON inside: the answer to a change leaves out what is absent.
mod json {
    use serde::Deserialize;
    use serde::Deserializer;
    use serde::Serialize;
    use serde::Serializer;
    use serde::de::DeserializeOwned;

    pub fn serialize<T: Serialize, S: Serializer>(
        value: &T,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serde_json::to_vec(value)
            .map_err(serde::ser::Error::custom)?
            .serialize(serializer)
    }

    pub fn deserialize<'de, T: DeserializeOwned, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<T, D::Error> {
        let bytes = Vec::<u8>::deserialize(deserializer)?;
        serde_json::from_slice(&bytes).map_err(serde::de::Error::custom)
    }
}
