//! The effective limit of one tenant, with where each of its fields comes from.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::civil::DateTime;
use serde::Deserialize;
use serde::Serialize;
use utoipa::ToSchema;

use crate::catalogue::Catalogue;
use crate::catalogue::effective::Layers;
use crate::catalogue::effective::Merged;
use crate::catalogue::field::Field;
use crate::catalogue::path::FieldPath;
use crate::catalogue::tree::KeySpec;
use crate::catalogue::tree::TenantLimit;
use crate::domain::limit::Limit;
use crate::domain::limit::LimitSpec;
use crate::domain::limit::Rule;
use crate::domain::name::Key;
use crate::domain::name::LimitName;
use crate::domain::name::PlanName;
use crate::domain::name::TenantName;
use crate::domain::time::Timestamp;

/// A limit as one tenant has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EffectiveLimit {
    /// The tenant.
    #[schema(value_type = String)]
    pub tenant: TenantName,
    /// Whether the catalogue names the tenant; otherwise it is counted under the default plan.
    pub known: bool,
    /// The plan in force.
    #[schema(value_type = Option<String>)]
    pub plan: Option<PlanName>,
    /// The limit.
    #[schema(value_type = String)]
    pub limit: LimitName,
    /// From which entry of the log on use is counted.
    pub epoch: u64,
    /// All fields in force, defaults included.
    pub effective: LimitSpec,
    /// Where each field comes from: a path in the catalogue, or `default`.
    pub from: BTreeMap<String, String>,
    /// What the catalogue says for this tenant, as it was written.
    pub written: TenantLimit,
}

/// The override of one key, and what the key gets with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EffectiveOverride {
    /// The key.
    #[schema(value_type = String)]
    pub key: Key,
    /// The administrator's override.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written: Option<KeySpec>,
    /// The tenant's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own: Option<KeySpec>,
    /// All fields in force for the key, defaults included.
    pub effective: LimitSpec,
    /// From which entry of the log on use of the key is counted.
    pub epoch: u64,
}

impl Catalogue {
    /// The limit as `tenant` has it. `None`: there is no such tenant, or it has no such limit.
    pub fn effective(&self, tenant: &TenantName, limit: &LimitName) -> Option<EffectiveLimit> {
        let view = self.view.tenant(tenant.as_str())?;
        let limit_view = view.limit(limit.as_str())?;
        let layers = self.layers(tenant, limit);
        let written = self.written(tenant, limit).cloned().unwrap_or_default();
        let effective = fields_of(&limit_view.limit);
        let from = Field::ALL
            .iter()
            .filter(|field| field.is_in(&effective))
            .map(|field| {
                let from = origin(&layers, &layers.merge(), &written, tenant, *field);
                (field.name().to_owned(), from)
            })
            .collect();
        Some(EffectiveLimit {
            tenant: tenant.clone(),
            known: view.known,
            plan: view.plan.clone(),
            limit: limit.clone(),
            epoch: limit_view.epoch,
            effective,
            from,
            written,
        })
    }

    /// The override of `key`, as written and in force at `now`. `None`: the key has none.
    pub fn effective_override(
        &self,
        tenant: &TenantName,
        limit: &LimitName,
        key: &Key,
        now: Timestamp,
    ) -> Option<EffectiveOverride> {
        let item = self.written(tenant, limit)?;
        let (written, own) = (item.keys.get(key), item.own.keys.get(key));
        if written.is_none() && own.is_none() {
            return None;
        }
        let view = self.view.tenant(tenant.as_str())?.limit(limit.as_str())?;
        let (limit, epoch) = view.at(key.as_str(), now);
        Some(EffectiveOverride {
            key: key.clone(),
            written: written.cloned(),
            own: own.cloned(),
            effective: fields_of(limit),
            epoch,
        })
    }

    fn written(&self, tenant: &TenantName, limit: &LimitName) -> Option<&TenantLimit> {
        self.tree
            .tenants
            .get(tenant)?
            .limits
            .get(limit)
            .map(Arc::as_ref)
    }
}

fn origin(
    layers: &Layers<'_>,
    merged: &Merged,
    written: &TenantLimit,
    tenant: &TenantName,
    field: Field,
) -> String {
    let tenant_path = FieldPath::root().with("tenants").with(tenant.as_str());
    let own = written.own.amounts();
    if own.named().any(|(name, _)| name == field.name()) {
        let path = tenant_path
            .with("limits")
            .with(layers.limit.as_str())
            .with("own");
        return path.to_string();
    }
    match (merged.origin_of(field), field) {
        (Some(layer), _) => layers.path(layer).to_string(),
        (None, Field::TimeZone) if layers.time_zone.is_some() => tenant_path.to_string(),
        (None, Field::Anchor) if layers.anchor.is_some() => tenant_path.to_string(),
        (None, _) => "default".to_owned(),
    }
}

/// All fields of a complete limit, as they could be written.
fn fields_of(limit: &Limit) -> LimitSpec {
    let mut spec = LimitSpec {
        algorithm: Some(limit.rule.algorithm()),
        key: limit.key.as_ref().map(ToString::to_string),
        actions: Some(limit.actions.clone()),
        mode: Some(limit.mode),
        on_unavailable: Some(limit.on_unavailable),
        fallback_quota: Some(limit.fallback_quota),
        on_partition: Some(limit.on_partition),
        split: Some(limit.split),
        always_allow: Some(limit.always_allow.clone()),
        overdraft: Some(limit.overdraft),
        durability: Some(limit.durability),
        enforce: Some(limit.enforce),
        unlimited: Some(limit.unlimited),
        ..LimitSpec::default()
    };
    match &limit.rule {
        Rule::FixedWindow { quota, window }
        | Rule::SlidingWindow { quota, window }
        | Rule::SlidingLog { quota, window } => {
            spec.quota = Some(*quota);
            spec.window = Some(*window);
        }
        Rule::CalendarWindow { quota, calendar } => {
            let anchor: DateTime = calendar.anchor();
            spec.quota = Some(*quota);
            spec.period = Some(calendar.period());
            spec.every = Some(calendar.every());
            spec.anchor = Some(anchor);
            spec.time_zone = Some(calendar.zone_name().to_owned());
        }
        Rule::TokenBucket {
            capacity,
            refill,
            per,
        } => {
            spec.capacity = Some(*capacity);
            spec.refill = Some(*refill);
            spec.per = Some(*per);
        }
        Rule::LeakyBucket {
            capacity,
            drain,
            per,
        } => {
            spec.capacity = Some(*capacity);
            spec.drain = Some(*drain);
            spec.per = Some(*per);
        }
        Rule::Concurrency { quota, ttl } => {
            spec.quota = Some(*quota);
            spec.ttl = Some(*ttl);
        }
    }
    spec
}
