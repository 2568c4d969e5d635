//! The catalogue as users write it: limits, plans, tenants and overrides of single keys.
//!
//! A [`Tree`] is a document, not yet a judgement: it may name plans that do not exist or limits that
//! contradict themselves. [`document`](super::document) reads one from JSON with a path to every fault;
//! what follows from one is judged when an entry is applied.
//!
//! Every map is ordered, so that the same catalogue is always the same text. Tenants and their limits are
//! shared by copies: there may be many, and a map holds them small.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::civil::DateTime;
use serde::Deserialize;
use serde::Deserializer;
use serde::Serialize;
use serde::de::Error;
use serde_json::Map;
use serde_json::Value;
use utoipa::ToSchema;

use crate::catalogue::profile::Profile;
use crate::domain::limit::LimitSpec;
use crate::domain::name::Domain;
use crate::domain::name::Key;
use crate::domain::name::LimitName;
use crate::domain::name::PlanName;
use crate::domain::name::ProfileName;
use crate::domain::name::TenantName;
use crate::domain::time::Timestamp;

/// The whole catalogue as a document.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Tree {
    /// The plan of tenants that are not named here. Absent: such a tenant is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "free")]
    pub default_plan: Option<PlanName>,
    /// Domains of gateways that stand for a tenant of another name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = std::collections::HashMap<String, String>, example = json!({ "edge": "acme" }))]
    pub domains: BTreeMap<Domain, TenantName>,
    /// Limits that hold for every tenant.
    #[serde(default)]
    #[schema(value_type = std::collections::HashMap<String, LimitSpec>)]
    pub limits: BTreeMap<LimitName, LimitSpec>,
    /// Plans (tiers).
    #[serde(default)]
    #[schema(value_type = std::collections::HashMap<String, Plan>)]
    pub plans: BTreeMap<PlanName, Plan>,
    /// Tenants.
    #[serde(default)]
    #[schema(value_type = std::collections::HashMap<String, Tenant>)]
    pub tenants: BTreeMap<TenantName, Arc<Tenant>>,
    /// What gateways ask.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = std::collections::HashMap<String, Profile>)]
    pub profiles: BTreeMap<ProfileName, Profile>,
}

/// A plan: what it changes of the limits that hold for everybody, and limits of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Limits by name; each names only the fields that it changes.
    #[serde(default)]
    #[schema(value_type = std::collections::HashMap<String, LimitSpec>)]
    pub limits: BTreeMap<LimitName, LimitSpec>,
}

/// A tenant: its plan, its calendar and what differs for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Tenant {
    /// The tenant's plan; absent: the default plan, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "pro")]
    pub plan: Option<PlanName>,
    /// IANA time zone of the tenant's calendar windows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "Asia/Kolkata")]
    pub time_zone: Option<String>,
    /// Civil time from which the tenant's calendar windows are counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "2026-01-31T00:00:00")]
    pub anchor: Option<DateTime>,
    /// Limits by name; each names only the fields that it changes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = std::collections::HashMap<String, TenantLimit>)]
    pub limits: BTreeMap<LimitName, Arc<TenantLimit>>,
}

/// What differs for one tenant in one limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct TenantLimit {
    /// Fields that an administrator has set for the tenant.
    #[serde(flatten)]
    pub spec: LimitSpec,
    /// Overrides of single keys.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = std::collections::HashMap<String, KeySpec>)]
    pub keys: BTreeMap<Key, KeySpec>,
    /// What the tenant has chosen itself, never above what plan and administrator have set.
    #[serde(skip_serializing_if = "OwnLimit::is_empty")]
    pub own: OwnLimit,
}

impl TenantLimit {
    /// Whether nothing differs.
    pub fn is_empty(&self) -> bool {
        self.spec == LimitSpec::default() && self.keys.is_empty() && self.own.is_empty()
    }
}

impl<'de> Deserialize<'de> for TenantLimit {
    /// By hand: serde's own flattening cannot refuse unknown fields.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut fields = Map::deserialize(deserializer)?;
        let keys = fields.remove("keys").map(BTreeMap::deserialize);
        let own = fields.remove("own").map(OwnLimit::deserialize);
        Ok(Self {
            spec: LimitSpec::deserialize(Value::Object(fields)).map_err(D::Error::custom)?,
            keys: keys
                .transpose()
                .map_err(D::Error::custom)?
                .unwrap_or_default(),
            own: own
                .transpose()
                .map_err(D::Error::custom)?
                .unwrap_or_default(),
        })
    }
}

/// A tenant's own choice for one limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OwnLimit {
    /// Units per window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<u64>,
    /// Most units that a bucket holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u64>,
    /// Units that a token bucket earns per `per`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refill: Option<u64>,
    /// Units that a leaky bucket serves per `per`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<u64>,
    /// The tenant's overrides of single keys.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = std::collections::HashMap<String, KeySpec>)]
    pub keys: BTreeMap<Key, KeySpec>,
}

impl OwnLimit {
    /// Whether nothing is chosen.
    pub fn is_empty(&self) -> bool {
        self.amounts().is_empty() && self.keys.is_empty()
    }

    /// The chosen amounts.
    pub const fn amounts(&self) -> Amounts {
        Amounts {
            quota: self.quota,
            capacity: self.capacity,
            refill: self.refill,
            drain: self.drain,
        }
    }
}

/// The override of one key: other amounts, counted but not enforced, or not limited at all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct KeySpec {
    /// Units per window, or units held at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<u64>,
    /// Most units that a bucket holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u64>,
    /// Units that a token bucket earns per `per`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refill: Option<u64>,
    /// Units that a leaky bucket serves per `per`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<u64>,
    /// This region's own quota for `on_unavailable = "local"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback_quota: Option<u64>,
    /// `true` counts and refuses nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unlimited: Option<bool>,
    /// `false` counts and reports, and refuses nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enforce: Option<bool>,
    /// When the override ends by itself; absent: never.
    #[serde(default, with = "instant", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "2027-01-01T00:00:00Z")]
    pub expires_at: Option<Timestamp>,
}

impl KeySpec {
    /// The overridden amounts.
    pub const fn amounts(&self) -> Amounts {
        Amounts {
            quota: self.quota,
            capacity: self.capacity,
            refill: self.refill,
            drain: self.drain,
        }
    }

    /// When the override ends; the end of time when it never does.
    pub const fn ends(&self) -> Timestamp {
        match self.expires_at {
            Some(at) => at,
            None => Timestamp::MAX,
        }
    }
}

/// The numbers of a limit that can change while its use is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    /// Units per window, or units held at once.
    pub quota: Option<u64>,
    /// Most units that a bucket holds.
    pub capacity: Option<u64>,
    /// Units that a token bucket earns per `per`.
    pub refill: Option<u64>,
    /// Units that a leaky bucket serves per `per`.
    pub drain: Option<u64>,
}

impl Amounts {
    /// Whether no amount is named.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The named amounts with their field names.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
        [
            ("quota", self.quota),
            ("capacity", self.capacity),
            ("refill", self.refill),
            ("drain", self.drain),
        ]
        .into_iter()
        .filter_map(|(name, amount)| amount.map(|amount| (name, amount)))
    }
}

/// Serde adapter for instants written as text, as in `2027-01-01T00:00:00Z`.
pub mod instant {
    use serde::Deserialize;
    use serde::Deserializer;
    use serde::Serialize;
    use serde::Serializer;

    use crate::domain::time::Timestamp;

    /// The instant as the library writes it.
    fn written(at: Timestamp) -> Option<jiff::Timestamp> {
        jiff::Timestamp::from_nanosecond(i128::from(at.as_nanos())).ok()
    }

    /// The instant as text in UTC.
    pub fn format(at: Timestamp) -> String {
        written(at).map(|at| at.to_string()).unwrap_or_default()
    }

    /// Writes the instant as text in UTC.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(
        at: &Option<Timestamp>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        at.and_then(written).serialize(serializer)
    }

    /// Reads an instant with any offset. What lies beyond the years that can be told is their end.
    ///
    /// # Errors
    /// When the value is not a text or not an instant.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Timestamp>, D::Error> {
        let at = Option::<jiff::Timestamp>::deserialize(deserializer)?;
        Ok(at.map(|at| {
            let nanos = at.as_nanosecond();
            let end = if nanos < 0 { i64::MIN } else { i64::MAX };
            Timestamp::from_nanos(i64::try_from(nanos).unwrap_or(end))
        }))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_tenants_limit_is_one_flat_object() {
        let value = json!({
            "quota": 10, "window": "1m",
            "keys": { "a.b": { "quota": 3, "expires_at": "2027-01-01T00:00:00Z" } },
            "own": { "quota": 5 },
        });
        let read: TenantLimit = serde_json::from_value(value.clone()).expect("a tenant's limit");
        assert_eq!(read.spec.quota, Some(10));
        assert_eq!(read.own.quota, Some(5));
        assert_eq!(serde_json::to_value(&read).expect("json"), value);
    }

    #[test]
    fn unknown_fields_are_refused_at_every_depth() {
        for value in [
            json!({ "limit": {} }),
            json!({ "plans": { "pro": { "quota": 1 } } }),
            json!({ "tenants": { "acme": { "tier": "pro" } } }),
            json!({ "tenants": { "acme": { "limits": { "api": { "qouta": 1 } } } } }),
            json!({ "tenants": { "acme": { "limits": { "api": { "keys": { "k": { "per": "1s" } } } } } } }),
            json!({ "tenants": { "acme": { "limits": { "api": { "own": { "window": "1s" } } } } } }),
        ] {
            assert!(
                serde_json::from_value::<Tree>(value.clone()).is_err(),
                "{value}"
            );
        }
    }

    #[test]
    fn an_empty_tree_names_its_three_tables() {
        let empty = json!({ "limits": {}, "plans": {}, "tenants": {} });
        assert_eq!(serde_json::to_value(Tree::default()).expect("json"), empty);
        assert_eq!(
            serde_json::from_value::<Tree>(json!({})).expect("a tree"),
            Tree::default()
        );
    }
}
