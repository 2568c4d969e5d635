//! The newest refusals, for `highwater why` and the admin API.
//!
//! Each tenant of the catalogue has a small ring of its own, so one tenant's flood does not push another's
//! out of sight; tenants that the catalogue does not name share one ring. Everything is bounded.

use std::collections::VecDeque;

use ahash::RandomState;
use hashbrown::HashMap;
use parking_lot::Mutex;
use serde::Serialize;
use utoipa::ToSchema;

use crate::domain::decision::DecidedBy;
use crate::domain::decision::Reason;

/// Refusals remembered of one tenant.
const PER_TENANT: usize = 64;
/// Refusals remembered of all tenants that the catalogue does not name.
const UNKNOWN_TENANTS: usize = 1024;
/// Tenants with a ring in one shard.
const TENANTS_PER_SHARD: usize = 256;
const SHARDS: usize = 16;

/// One refusal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Rejection {
    /// When, in Unix milliseconds.
    pub at_ms: i64,
    /// Who was refused.
    pub tenant: String,
    /// By which limit.
    pub limit: String,
    /// For which key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The endpoint that the caller named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// The address that the caller named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ip: Option<String>,
    /// Units asked for.
    pub cost: u64,
    /// Units in use then.
    pub used: u64,
    /// The quota then.
    pub quota: u64,
    /// Why.
    pub reason: Reason,
    /// Who decided.
    pub decided_by: DecidedBy,
    /// When the same check could pass, in Unix milliseconds; null: never.
    pub retry_at_ms: Option<i64>,
}

/// Which refusals are wanted.
#[derive(Clone, Debug, Default)]
pub struct Wanted<'a> {
    /// Of this tenant alone.
    pub tenant: Option<&'a str>,
    /// Of this limit alone.
    pub limit: Option<&'a str>,
    /// Of this key alone.
    pub key: Option<&'a str>,
}

impl Wanted<'_> {
    fn matches(&self, rejection: &Rejection) -> bool {
        self.tenant.is_none_or(|tenant| tenant == rejection.tenant)
            && self.limit.is_none_or(|limit| limit == rejection.limit)
            && self
                .key
                .is_none_or(|key| Some(key) == rejection.key.as_deref())
    }
}

/// A ring of refusals for each tenant.
type Rings = HashMap<String, VecDeque<Rejection>>;

/// The newest refusals of one region.
#[derive(Debug)]
pub struct Rejections {
    shards: Box<[Mutex<Rings>]>,
    unknown: Mutex<VecDeque<Rejection>>,
    hasher: RandomState,
}

impl Rejections {
    /// No refusals yet; `seed` keeps hashes unguessable.
    pub fn new(seed: [u64; 2]) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            unknown: Mutex::default(),
            hasher: RandomState::with_seeds(seed[0], seed[1], 1, 2),
        }
    }

    /// Remembers a refusal.
    pub fn push(&self, rejection: Rejection, known_tenant: bool) {
        if !known_tenant {
            let mut ring = self.unknown.lock();
            if ring.len() == UNKNOWN_TENANTS {
                ring.pop_front();
            }
            ring.push_back(rejection);
            return;
        }
        let hash = usize::try_from(self.hasher.hash_one(&rejection.tenant) >> 1).unwrap_or(0);
        let mut shard = self.shards[hash % SHARDS].lock();
        if let Some(ring) = shard.get_mut(&rejection.tenant) {
            if ring.len() == PER_TENANT {
                ring.pop_front();
            }
            ring.push_back(rejection);
            return;
        }
        if shard.len() == TENANTS_PER_SHARD {
            let oldest = shard
                .iter()
                .min_by_key(|(_, ring)| ring.back().map(|r| r.at_ms))
                .map(|(t, _)| t.clone());
            if let Some(tenant) = oldest {
                shard.remove(&tenant);
            }
        }
        shard.insert(rejection.tenant.clone(), VecDeque::from([rejection]));
    }

    /// The newest refusals that are wanted, newest first, at most `most`.
    pub fn newest(&self, wanted: &Wanted<'_>, most: usize) -> Vec<Rejection> {
        let mut found: Vec<Rejection> = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            for ring in shard.values() {
                found.extend(
                    ring.iter()
                        .filter(|rejection| wanted.matches(rejection))
                        .cloned(),
                );
            }
        }
        found.extend(
            self.unknown
                .lock()
                .iter()
                .filter(|rejection| wanted.matches(rejection))
                .cloned(),
        );
        found.sort_by_key(|rejection| std::cmp::Reverse(rejection.at_ms));
        found.truncate(most);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rejection(tenant: &str, at_ms: i64) -> Rejection {
        Rejection {
            at_ms,
            tenant: tenant.into(),
            limit: "l".into(),
            key: None,
            endpoint: None,
            ip: None,
            cost: 1,
            used: 1,
            quota: 1,
            reason: Reason::QuotaExceeded,
            decided_by: DecidedBy::Local,
            retry_at_ms: None,
        }
    }

    #[test]
    fn a_flood_of_one_tenant_hides_no_other() {
        let rejections = Rejections::new([1, 2]);
        rejections.push(rejection("quiet", 1), true);
        for at_ms in 2..10_000 {
            rejections.push(rejection("loud", at_ms), true);
            rejections.push(rejection(&format!("stranger-{at_ms}"), at_ms), false);
        }
        let of_quiet = rejections.newest(
            &Wanted {
                tenant: Some("quiet"),
                ..Wanted::default()
            },
            10,
        );
        assert_eq!(of_quiet.len(), 1);
        let of_loud = rejections.newest(
            &Wanted {
                tenant: Some("loud"),
                ..Wanted::default()
            },
            1000,
        );
        assert_eq!(of_loud.len(), PER_TENANT);
        assert_eq!(of_loud[0].at_ms, 9_999);
        assert!(
            rejections.newest(&Wanted::default(), 100_000).len()
                <= PER_TENANT + UNKNOWN_TENANTS + 1
        );
    }
}
