//! What one entry means: who may do it, what must be there for it, and the draft that it makes.

use std::sync::Arc;

use crate::catalogue::Catalogue;
use crate::catalogue::amounts;
use crate::catalogue::change::Author;
use crate::catalogue::change::Change;
use crate::catalogue::change::FieldError;
use crate::catalogue::change::Refused;
use crate::catalogue::check;
use crate::catalogue::draft::Draft;
use crate::catalogue::draft::Reset;
use crate::catalogue::effective::Compiled;
use crate::catalogue::path::FieldPath;
use crate::catalogue::tree::Amounts;
use crate::catalogue::tree::KeySpec;
use crate::catalogue::tree::OwnLimit;
use crate::catalogue::tree::Tenant;
use crate::catalogue::tree::TenantLimit;
use crate::catalogue::view::LimitView;
use crate::domain::limit::Limit;
use crate::domain::limit::LimitSpec;
use crate::domain::name::Key;
use crate::domain::name::LimitName;
use crate::domain::name::TenantName;
use crate::domain::time::Timestamp;

/// Turns changes of the document and resets into drafts. Changes of tokens are none of its business.
pub struct Intent<'a> {
    pub catalogue: &'a Catalogue,
    pub author: &'a Author,
    pub at: Timestamp,
}

impl<'a> Intent<'a> {
    /// The draft of `change`.
    ///
    /// # Errors
    /// When the author may not do it, or what it is about is not there, or it is wrong by itself.
    pub fn draft(&self, change: &Change) -> Result<Draft<'a>, Refused> {
        self.authorise(change)?;
        let mut draft = Draft::new(&self.catalogue.tree);
        match change {
            Change::Replace { tree } => draft.replace(tree),
            Change::Patch { tree } => draft.patch(tree),
            Change::PutLimit { limit, spec } => {
                draft.limits.insert(limit.clone(), Some(spec.clone()));
            }
            Change::DeleteLimit { limit } => self.delete_limit(&mut draft, limit)?,
            Change::PutPlan { plan, definition } => {
                draft.plans.insert(plan.clone(), Some(definition.clone()));
            }
            Change::DeletePlan { plan } => self.delete_plan(&mut draft, plan.as_str())?,
            Change::PutTenant { tenant, definition } => {
                draft
                    .tenants
                    .insert(tenant.clone(), Some(Arc::new(definition.clone())));
            }
            Change::DeleteTenant { tenant } => {
                self.tenant(tenant)?;
                draft.tenants.insert(tenant.clone(), None);
            }
            Change::PutProfile {
                profile,
                definition,
            } => {
                draft
                    .profiles
                    .insert(profile.clone(), Some(definition.clone()));
            }
            Change::DeleteProfile { profile } => {
                if !self.catalogue.tree.profiles.contains_key(profile) {
                    return Err(Refused::NotFound(format!("there is no profile {profile}")));
                }
                draft.profiles.insert(profile.clone(), None);
            }
            Change::PutTenantLimit {
                tenant,
                limit,
                spec,
            } => {
                self.put_tenant_limit(&mut draft, tenant, limit, spec)?;
            }
            Change::DeleteTenantLimit { tenant, limit } => {
                self.delete_tenant_limit(&mut draft, tenant, limit)?;
            }
            Change::PutOverride {
                tenant,
                limit,
                key,
                spec,
            } => {
                self.put_override(&mut draft, (tenant, limit, key), spec)?;
            }
            Change::DeleteOverride { tenant, limit, key } => {
                self.delete_override(&mut draft, tenant, limit, key)?;
            }
            Change::Reset { tenant, limit, key } => {
                draft.reset = Some(self.reset(tenant, limit, key.as_ref())?);
            }
            Change::CreateToken { .. } | Change::RevokeToken { .. } => {}
        }
        draft.check()?;
        Ok(draft)
    }

    /// Refuses what the author may not touch at all.
    pub fn authorise(&self, change: &Change) -> Result<(), Refused> {
        let Author::Tenant { tenant: own, .. } = self.author else {
            return Ok(());
        };
        let tenant = match change {
            Change::PutTenantLimit { tenant, .. }
            | Change::DeleteTenantLimit { tenant, .. }
            | Change::PutOverride { tenant, .. }
            | Change::DeleteOverride { tenant, .. } => Some(tenant),
            // Whoever gives its own use back to itself has no limit.
            Change::Reset { .. } => None,
            Change::Replace { .. }
            | Change::Patch { .. }
            | Change::PutLimit { .. }
            | Change::DeleteLimit { .. }
            | Change::PutPlan { .. }
            | Change::DeletePlan { .. }
            | Change::PutTenant { .. }
            | Change::DeleteTenant { .. }
            | Change::PutProfile { .. }
            | Change::DeleteProfile { .. }
            | Change::CreateToken { .. }
            | Change::RevokeToken { .. } => None,
        };
        if tenant == Some(own) {
            return Ok(());
        }
        Err(Refused::Forbidden(
            "a tenant's token changes its own tenant's limits only".to_owned(),
        ))
    }

    const fn is_tenant(&self) -> bool {
        matches!(self.author, Author::Tenant { .. })
    }

    fn tenant(&self, name: &TenantName) -> Result<&'a Tenant, Refused> {
        self.catalogue
            .tree
            .tenants
            .get(name)
            .map(Arc::as_ref)
            .ok_or_else(|| {
                let message = "is not in the catalogue; an administrator adds it first";
                Refused::NotFound(format!("tenant {:?} {message}", name.as_str()))
            })
    }

    fn limit_view(&self, tenant: &TenantName, limit: &LimitName) -> Result<&'a LimitView, Refused> {
        let view = self.catalogue.view.tenant(tenant.as_str()).ok_or_else(|| {
            Refused::NotFound(format!("there is no tenant {:?}", tenant.as_str()))
        })?;
        view.limit(limit.as_str()).ok_or_else(|| {
            Refused::NotFound(format!("tenant {:?} has no limit {limit}", tenant.as_str()))
        })
    }

    /// What plan and administrator have set for a limit of a tenant.
    fn set_by_admin(&self, tenant: &TenantName, limit: &LimitName) -> Result<Compiled, Refused> {
        let compiled = self
            .catalogue
            .layers(tenant, limit)
            .compile(self.catalogue.regions);
        compiled.map_err(Refused::Invalid)
    }

    fn delete_limit(&self, draft: &mut Draft<'a>, limit: &LimitName) -> Result<(), Refused> {
        if !self.catalogue.tree.limits.contains_key(limit) {
            return Err(Refused::NotFound(format!("there is no limit {limit}")));
        }
        draft.limits.insert(limit.clone(), None);
        Ok(())
    }

    fn delete_plan(&self, draft: &mut Draft<'a>, plan: &str) -> Result<(), Refused> {
        let tree = &self.catalogue.tree;
        let Some((name, _)) = tree.plans.get_key_value(plan) else {
            return Err(Refused::NotFound(format!("there is no plan {plan:?}")));
        };
        if tree.default_plan.as_ref() == Some(name) {
            let message = "is the default plan; name another one first";
            return Err(Refused::InUse(format!("plan {plan:?} {message}")));
        }
        let mut users = tree
            .tenants
            .iter()
            .filter(|(_, t)| t.plan.as_ref() == Some(name));
        if let Some((tenant, _)) = users.next() {
            let others = users.count();
            let tenant = tenant.as_str();
            let message = format!("is the plan of {tenant:?} and {others} other tenants");
            return Err(Refused::InUse(format!(
                "plan {plan:?} {message}; move them first"
            )));
        }
        draft.plans.insert(name.clone(), None);
        Ok(())
    }

    fn put_tenant_limit(
        &self,
        draft: &mut Draft<'a>,
        tenant: &TenantName,
        limit: &LimitName,
        spec: &LimitSpec,
    ) -> Result<(), Refused> {
        let mut definition = self.tenant(tenant)?.clone();
        let path = limit_path(tenant, limit);
        if self.is_tenant() {
            self.limit_view(tenant, limit)?;
            let amounts = own_amounts(&path, spec)?;
            let base = self.set_by_admin(tenant, limit)?;
            let ceiling = amounts::ceiling(
                &base,
                &TenantLimit::default(),
                None,
                self.at,
                self.catalogue.regions,
            );
            below_ceiling(&path, &ceiling, &amounts)?;
            let own = &mut item_of(&mut definition, limit).own;
            *own = OwnLimit {
                quota: amounts.quota,
                capacity: amounts.capacity,
                refill: amounts.refill,
                drain: amounts.drain,
                keys: std::mem::take(&mut own.keys),
            };
        } else {
            item_of(&mut definition, limit).spec = spec.clone();
        }
        draft
            .tenants
            .insert(tenant.clone(), Some(Arc::new(definition)));
        Ok(())
    }

    fn delete_tenant_limit(
        &self,
        draft: &mut Draft<'a>,
        tenant: &TenantName,
        limit: &LimitName,
    ) -> Result<(), Refused> {
        let mut definition = self.tenant(tenant)?.clone();
        let missing = || {
            let tenant = tenant.as_str();
            Refused::NotFound(format!(
                "nothing differs for tenant {tenant:?} in limit {limit}"
            ))
        };
        let item = Arc::make_mut(definition.limits.get_mut(limit).ok_or_else(missing)?);
        if self.is_tenant() {
            if item.own.is_empty() {
                return Err(missing());
            }
            item.own = OwnLimit::default();
        }
        if !self.is_tenant() || item.is_empty() {
            definition.limits.remove(limit);
        }
        draft
            .tenants
            .insert(tenant.clone(), Some(Arc::new(definition)));
        Ok(())
    }

    fn put_override(
        &self,
        draft: &mut Draft<'a>,
        (tenant, limit, key): (&TenantName, &LimitName, &Key),
        spec: &KeySpec,
    ) -> Result<(), Refused> {
        let mut definition = self.tenant(tenant)?.clone();
        let view = self.limit_view(tenant, limit)?;
        let path = limit_path(tenant, limit).with("keys").with(key.as_str());
        if view.limit.key.is_none() {
            let message = "names a key, but the limit has no `key`";
            return Err(Refused::field(&path, message));
        }
        let item = item_of(&mut definition, limit);
        if self.is_tenant() {
            let mut faults = Vec::new();
            check::only_amounts(&path, spec, &mut faults);
            if !faults.is_empty() {
                return Err(Refused::Invalid(faults));
            }
            let base = self.set_by_admin(tenant, limit)?;
            let ceiling = amounts::ceiling(&base, item, Some(key), self.at, self.catalogue.regions);
            below_ceiling(&path, &ceiling, &spec.amounts())?;
            item.own.keys.insert(key.clone(), spec.clone());
        } else {
            item.keys.insert(key.clone(), spec.clone());
        }
        draft
            .tenants
            .insert(tenant.clone(), Some(Arc::new(definition)));
        Ok(())
    }

    fn delete_override(
        &self,
        draft: &mut Draft<'a>,
        tenant: &TenantName,
        limit: &LimitName,
        key: &Key,
    ) -> Result<(), Refused> {
        let mut definition = self.tenant(tenant)?.clone();
        let removed = definition.limits.get_mut(limit).and_then(|item| {
            let item = Arc::make_mut(item);
            let own = item.own.keys.remove(key);
            if self.is_tenant() {
                own
            } else {
                item.keys.remove(key).or(own)
            }
        });
        if removed.is_none() {
            let message = format!("has no override of this key in limit {limit}");
            return Err(Refused::NotFound(format!(
                "tenant {:?} {message}",
                tenant.as_str()
            )));
        }
        if definition
            .limits
            .get(limit)
            .is_some_and(|item| item.is_empty())
        {
            definition.limits.remove(limit);
        }
        draft
            .tenants
            .insert(tenant.clone(), Some(Arc::new(definition)));
        Ok(())
    }

    fn reset(
        &self,
        tenant: &TenantName,
        limit: &LimitName,
        key: Option<&Key>,
    ) -> Result<Reset, Refused> {
        let view = self.limit_view(tenant, limit)?;
        let path = FieldPath::root().with("key");
        if key.is_some() && view.limit.key.is_none() {
            return Err(Refused::field(
                &path,
                "is given, but the limit has no `key`; leave it out",
            ));
        }
        if !self.catalogue.has_room_for_reset(tenant, limit, key) {
            let message = "is one too many: 100000 resets of single keys or of unnamed tenants are \
                           remembered until their windows have passed; reset the whole limit of a \
                           named tenant, or wait";
            return Err(Refused::field(&path, message));
        }
        Ok(Reset {
            tenant: tenant.clone(),
            limit: limit.clone(),
            key: key.cloned(),
        })
    }
}

/// What differs for the tenant in `limit`, to be changed.
fn item_of<'t>(tenant: &'t mut Tenant, limit: &LimitName) -> &'t mut TenantLimit {
    Arc::make_mut(tenant.limits.entry(limit.clone()).or_default())
}

fn limit_path(tenant: &TenantName, limit: &LimitName) -> FieldPath {
    let root = FieldPath::root().with("tenants").with(tenant.as_str());
    root.with("limits").with(limit.as_str())
}

/// The amounts that a tenant's token may write, and nothing else.
fn own_amounts(path: &FieldPath, spec: &LimitSpec) -> Result<Amounts, Refused> {
    let amounts = Amounts {
        quota: spec.quota,
        capacity: spec.capacity,
        refill: spec.refill,
        drain: spec.drain,
    };
    let rest = LimitSpec {
        quota: None,
        capacity: None,
        refill: None,
        drain: None,
        ..spec.clone()
    };
    let faults: Vec<FieldError> = super::field::Field::ALL
        .iter()
        .filter(|field| field.is_in(&rest))
        .map(|field| {
            let message = "is set by an administrator; a tenant's token may change quota, capacity, \
                           refill and drain";
            FieldError::new(&path.with(field.name()), message)
        })
        .collect();
    if faults.is_empty() {
        Ok(amounts)
    } else {
        Err(Refused::Invalid(faults))
    }
}

fn below_ceiling(path: &FieldPath, ceiling: &Limit, amounts: &Amounts) -> Result<(), Refused> {
    let faults = amounts::faults(path, ceiling, amounts);
    if !faults.is_empty() {
        return Err(Refused::Invalid(faults));
    }
    if ceiling.unlimited {
        return Ok(());
    }
    let most = amounts::of_rule(&ceiling.rule);
    for (name, units) in amounts.named() {
        let allowed = most
            .named()
            .find(|(of, _)| *of == name)
            .map(|(_, most)| most);
        if let Some(allowed) = allowed
            && units > allowed
        {
            let path = path.with(name);
            let message =
                format!("{path}: {units} is above {allowed}, which plan and administrator");
            return Err(Refused::Forbidden(format!("{message} have set")));
        }
    }
    Ok(())
}
