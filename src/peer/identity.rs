//! Who a region is, and whether two regions may speak to each other. Pure.
//!
//! Everything here is checked before anything else is read from a peer, so that a region of another cluster,
//! a cloned directory or a second process cannot mix its counts or its log with ours.

use std::fmt;

use serde::Deserialize;
use serde::Serialize;
use utoipa::ToSchema;

use crate::domain::name::RegionName;

/// The version of the wire format that this program writes; it reads this one and the one before.
pub const WIRE_VERSION: u16 = 1;
/// The most bytes of a cluster's name or of the name of a time-zone database.
pub const TEXT_BYTES_MAX: usize = 64;

/// Who a region is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The wire format that it writes.
    pub wire_version: u16,
    /// The cluster's configured name, at most 64 bytes.
    pub cluster: String,
    /// The cluster's id, minted when it was founded; `None`: not known yet.
    pub cluster_id: Option<u64>,
    /// The region's name.
    pub region: RegionName,
    /// Drawn at every start of the process.
    pub incarnation: u64,
    /// Drawn once in the life of a data directory; 0: not drawn.
    pub voter: u64,
    /// The version of the time-zone database, at most 64 bytes.
    pub time_zones: String,
    /// Whether it never had a replicated log.
    pub is_empty: bool,
}

impl Identity {
    /// Whether every text is short enough.
    pub fn is_bounded(&self) -> bool {
        self.cluster.len() <= TEXT_BYTES_MAX && self.time_zones.len() <= TEXT_BYTES_MAX
    }
}

/// The first thing that a region says on a link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Who it is.
    pub identity: Identity,
    /// Whom it wants to speak to.
    pub to: RegionName,
}

/// Why a region does not speak to another.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// The shared secret is another one.
    WrongSecret,
    /// The cluster's name is another one.
    OtherCluster,
    /// The cluster's id is another one: both were founded apart.
    OtherClusterId,
    /// The wire format is too old or too new.
    WireVersion,
    /// At this address answers another region than the configured one.
    WrongRegion,
    /// It bears our own name.
    OwnRegion,
    /// It is not among the configured regions.
    UnknownRegion,
    /// Another process of that region is alive: a second one, or a cloned directory.
    TwoIncarnations,
}

impl Refusal {
    /// Its name in metrics, logs and answers.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::WrongSecret => "wrong_secret",
            Self::OtherCluster => "other_cluster",
            Self::OtherClusterId => "other_cluster_id",
            Self::WireVersion => "wire_version",
            Self::WrongRegion => "wrong_region",
            Self::OwnRegion => "own_region",
            Self::UnknownRegion => "unknown_region",
            Self::TwoIncarnations => "two_incarnations",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Whether the wire format `version` can be read.
///
/// # Errors
/// [`Refusal::WireVersion`].
pub fn check_version(version: u16) -> Result<(), Refusal> {
    if (WIRE_VERSION.saturating_sub(1).max(1)..=WIRE_VERSION).contains(&version) {
        Ok(())
    } else {
        Err(Refusal::WireVersion)
    }
}

/// Whether `we` may speak to a region that said `hello`. Whether another process of it is alive is asked
/// elsewhere.
///
/// # Errors
/// Why not.
pub fn check_hello(we: &Identity, hello: &Hello) -> Result<(), Refusal> {
    check_version(hello.identity.wire_version)?;
    check_cluster(we, &hello.identity)?;
    if hello.identity.region == we.region {
        return Err(Refusal::OwnRegion);
    }
    if hello.to != we.region {
        return Err(Refusal::WrongRegion);
    }
    Ok(())
}

/// Whether `other` belongs to the cluster of `we`.
///
/// # Errors
/// Why not.
pub fn check_cluster(we: &Identity, other: &Identity) -> Result<(), Refusal> {
    if other.cluster != we.cluster {
        return Err(Refusal::OtherCluster);
    }
    match (we.cluster_id, other.cluster_id) {
        (Some(ours), Some(theirs)) if ours != theirs => Err(Refusal::OtherClusterId),
        (Some(_) | None, Some(_) | None) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(name: &str) -> RegionName {
        RegionName::new(name).expect("a name")
    }

    fn identity(name: &str) -> Identity {
        Identity {
            wire_version: WIRE_VERSION,
            cluster: "prod".to_owned(),
            cluster_id: None,
            region: region(name),
            incarnation: 1,
            voter: 1,
            time_zones: "2026a".to_owned(),
            is_empty: true,
        }
    }

    #[test]
    fn each_difference_has_its_own_reason() {
        let we = Identity {
            cluster_id: Some(1),
            ..identity("a")
        };
        let hello = Hello {
            identity: identity("b"),
            to: region("a"),
        };
        assert_eq!(check_hello(&we, &hello), Ok(()));
        let with = |change: &dyn Fn(&mut Hello)| {
            let mut hello = hello.clone();
            change(&mut hello);
            check_hello(&we, &hello)
        };
        assert_eq!(with(&|h| h.identity.cluster_id = Some(1)), Ok(()));
        assert_eq!(
            with(&|h| h.identity.cluster_id = Some(2)),
            Err(Refusal::OtherClusterId)
        );
        assert_eq!(
            with(&|h| h.identity.cluster = "test".to_owned()),
            Err(Refusal::OtherCluster)
        );
        assert_eq!(
            with(&|h| h.identity.region = region("a")),
            Err(Refusal::OwnRegion)
        );
        assert_eq!(with(&|h| h.to = region("c")), Err(Refusal::WrongRegion));
        for version in [0, WIRE_VERSION + 1, u16::MAX] {
            assert_eq!(
                with(&|h| h.identity.wire_version = version),
                Err(Refusal::WireVersion)
            );
        }
    }
}
