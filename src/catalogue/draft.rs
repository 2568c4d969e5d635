//! A change on its way: the parts of the catalogue that would differ, laid over those that stay.
//!
//! Nothing is copied that does not change, so drafting is as cheap as the change is small. A draft is
//! checked as far as that needs no other part: names, values, who may do what. What follows for limits is
//! judged by [`rebuild`](super::rebuild).

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::sync::Arc;

use crate::catalogue::change::FAULTS_MAX;
use crate::catalogue::change::FieldError;
use crate::catalogue::change::Refused;
use crate::catalogue::check;
use crate::catalogue::path::FieldPath;
use crate::catalogue::profile::Gateway;
use crate::catalogue::profile::Profile;
use crate::catalogue::tree::Plan;
use crate::catalogue::tree::Tenant;
use crate::catalogue::tree::Tree;
use crate::domain::limit::LimitSpec;
use crate::domain::name::Domain;
use crate::domain::name::Key;
use crate::domain::name::LimitName;
use crate::domain::name::PlanName;
use crate::domain::name::ProfileName;
use crate::domain::name::TenantName;

/// Most domains that stand for a tenant of another name.
const DOMAINS_MAX: usize = 10_000;
/// Most plans.
const PLANS_MAX: usize = 1_000;
/// Most gateway profiles.
const PROFILES_MAX: usize = 1_000;
/// Most tenants that are named.
const TENANTS_MAX: usize = 1_000_000;

/// A part that may stay as it is.
#[derive(Clone, Debug)]
pub enum Changed<T> {
    /// It stays.
    No,
    /// It becomes this.
    To(T),
}

impl<T> Changed<T> {
    /// The part as it would be.
    pub const fn or<'t>(&'t self, current: &'t T) -> &'t T {
        match self {
            Self::No => current,
            Self::To(changed) => changed,
        }
    }

    /// Whether the part changes.
    pub const fn is_changed(&self) -> bool {
        matches!(self, Self::To(_))
    }
}

/// Counters that an entry sets back to zero.
#[derive(Clone, Debug)]
pub struct Reset {
    pub tenant: TenantName,
    pub limit: LimitName,
    pub key: Option<Key>,
}

/// See the module. `None` inside a map: the part is deleted.
#[derive(Debug)]
pub struct Draft<'a> {
    current: &'a Tree,
    default_plan: Changed<Option<PlanName>>,
    domains: BTreeMap<Domain, Option<TenantName>>,
    pub limits: BTreeMap<LimitName, Option<LimitSpec>>,
    pub plans: BTreeMap<PlanName, Option<Plan>>,
    pub tenants: BTreeMap<TenantName, Option<Arc<Tenant>>>,
    pub profiles: BTreeMap<ProfileName, Option<Profile>>,
    pub reset: Option<Reset>,
}

impl<'a> Draft<'a> {
    /// A draft that changes nothing.
    pub const fn new(current: &'a Tree) -> Self {
        Self {
            current,
            default_plan: Changed::No,
            domains: BTreeMap::new(),
            limits: BTreeMap::new(),
            plans: BTreeMap::new(),
            tenants: BTreeMap::new(),
            profiles: BTreeMap::new(),
            reset: None,
        }
    }

    /// The catalogue as it stands.
    pub const fn current(&self) -> &'a Tree {
        self.current
    }

    /// The default plan as it would be.
    pub fn default_plan(&self) -> Option<&PlanName> {
        self.default_plan.or(&self.current.default_plan).as_ref()
    }

    /// Whether the default plan would be another one.
    pub fn changes_default_plan(&self) -> bool {
        self.default_plan() != self.current.default_plan.as_ref()
    }

    /// A limit as it would be.
    pub fn limit(&self, name: &LimitName) -> Option<&LimitSpec> {
        match self.limits.get(name) {
            Some(changed) => changed.as_ref(),
            None => self.current.limits.get(name),
        }
    }

    /// All limits that there would be.
    pub fn limit_names(&self) -> BTreeSet<&LimitName> {
        let names = self.current.limits.keys().chain(self.limits.keys());
        names.filter(|name| self.limit(name).is_some()).collect()
    }

    /// A plan as it would be.
    pub fn plan(&self, name: &PlanName) -> Option<&Plan> {
        match self.plans.get(name) {
            Some(changed) => changed.as_ref(),
            None => self.current.plans.get(name),
        }
    }

    /// All plans that there would be.
    pub fn plan_names(&self) -> BTreeSet<&PlanName> {
        let names = self.current.plans.keys().chain(self.plans.keys());
        names.filter(|name| self.plan(name).is_some()).collect()
    }

    /// A tenant as it would be.
    pub fn tenant(&self, name: &TenantName) -> Option<&Tenant> {
        match self.tenants.get(name) {
            Some(changed) => changed.as_deref(),
            None => self.current.tenants.get(name).map(Arc::as_ref),
        }
    }

    /// The plan that would be in force for `tenant`.
    pub fn plan_of<'t>(&'t self, tenant: &'t Tenant) -> Option<&'t PlanName> {
        tenant.plan.as_ref().or_else(|| self.default_plan())
    }

    /// The document becomes exactly `tree`.
    pub fn replace(&mut self, tree: &Tree) {
        let current = self.current;
        self.default_plan = Changed::To(tree.default_plan.clone());
        self.domains = differences(&current.domains, &tree.domains);
        self.limits = differences(&current.limits, &tree.limits);
        self.plans = differences(&current.plans, &tree.plans);
        self.tenants = differences(&current.tenants, &tree.tenants);
        self.profiles = differences(&current.profiles, &tree.profiles);
    }

    /// What `tree` names is created or changed.
    pub fn patch(&mut self, tree: &Tree) {
        if tree.default_plan.is_some() {
            self.default_plan = Changed::To(tree.default_plan.clone());
        }
        for (domain, tenant) in &tree.domains {
            self.domains.insert(domain.clone(), Some(tenant.clone()));
        }
        for (name, spec) in &tree.limits {
            self.limits.insert(name.clone(), Some(spec.clone()));
        }
        for (name, named) in &tree.plans {
            let mut plan = self.plan(name).cloned().unwrap_or_default();
            plan.limits.extend(
                named
                    .limits
                    .iter()
                    .map(|(n, spec)| (n.clone(), spec.clone())),
            );
            self.plans.insert(name.clone(), Some(plan));
        }
        for (name, named) in &tree.tenants {
            let mut tenant = self.tenant(name).cloned().unwrap_or_default();
            patch_tenant(&mut tenant, named);
            self.tenants.insert(name.clone(), Some(Arc::new(tenant)));
        }
        for (name, profile) in &tree.profiles {
            self.profiles.insert(name.clone(), Some(profile.clone()));
        }
    }

    /// Everything that is wrong with the changed parts by themselves.
    pub fn check(&self) -> Result<(), Refused> {
        let root = FieldPath::root();
        let mut faults = Vec::new();
        if let Some(plan) = self.default_plan()
            && self.plan(plan).is_none()
        {
            let message = format!("there is no plan {plan:?}", plan = plan.as_str());
            faults.push(FieldError::new(&root.with("default_plan"), message));
        }
        for (name, spec) in &self.limits {
            if let Some(spec) = spec {
                check::limit(&root.with("limits").with(name.as_str()), spec, &mut faults);
            }
        }
        for (name, plan) in &self.plans {
            if let Some(plan) = plan {
                check::plan(&root.with("plans").with(name.as_str()), plan, &mut faults);
            }
        }
        for (name, tenant) in &self.tenants {
            if let Some(tenant) = tenant {
                let path = root.with("tenants").with(name.as_str());
                check::tenant(&path, tenant, &mut faults);
                self.check_plan(&path, tenant, &mut faults);
            }
        }
        for (name, profile) in &self.profiles {
            if let Some(profile) = profile {
                let path = root.with("profiles").with(name.as_str());
                faults.extend(Gateway::compile(&path, profile).err().into_iter().flatten());
            }
        }
        self.check_plans_in_use(&mut faults);
        bound(
            "profiles",
            &self.current.profiles,
            &self.profiles,
            PROFILES_MAX,
            &mut faults,
        );
        bound(
            "domains",
            &self.current.domains,
            &self.domains,
            DOMAINS_MAX,
            &mut faults,
        );
        bound(
            "plans",
            &self.current.plans,
            &self.plans,
            PLANS_MAX,
            &mut faults,
        );
        bound(
            "tenants",
            &self.current.tenants,
            &self.tenants,
            TENANTS_MAX,
            &mut faults,
        );
        faults.truncate(FAULTS_MAX);
        if faults.is_empty() {
            Ok(())
        } else {
            Err(Refused::Invalid(faults))
        }
    }

    fn check_plan(&self, path: &FieldPath, tenant: &Tenant, faults: &mut Vec<FieldError>) {
        if let Some(plan) = &tenant.plan
            && self.plan(plan).is_none()
        {
            let message = format!("there is no plan {:?}; define it first", plan.as_str());
            faults.push(FieldError::new(&path.with("plan"), message));
        }
    }

    /// Tenants that stay as they are, but whose plan would go.
    fn check_plans_in_use(&self, faults: &mut Vec<FieldError>) {
        if self.plans.values().all(Option::is_some) {
            return;
        }
        for (name, tenant) in &self.current.tenants {
            if faults.len() >= FAULTS_MAX {
                return;
            }
            if !self.tenants.contains_key(name) {
                let path = FieldPath::root().with("tenants").with(name.as_str());
                self.check_plan(&path, tenant, faults);
            }
        }
    }

    /// Ends the draft: what it would change, free of what stays.
    pub fn into_parts(self) -> Parts {
        Parts {
            default_plan: self.default_plan,
            domains: self.domains,
            limits: self.limits,
            plans: self.plans,
            tenants: self.tenants,
            profiles: self.profiles,
        }
    }
}

/// What a draft would change.
#[derive(Debug)]
pub struct Parts {
    default_plan: Changed<Option<PlanName>>,
    domains: BTreeMap<Domain, Option<TenantName>>,
    limits: BTreeMap<LimitName, Option<LimitSpec>>,
    plans: BTreeMap<PlanName, Option<Plan>>,
    tenants: BTreeMap<TenantName, Option<Arc<Tenant>>>,
    profiles: BTreeMap<ProfileName, Option<Profile>>,
}

impl Parts {
    /// Whether gateway profiles change.
    pub fn change_profiles(&self) -> bool {
        !self.profiles.is_empty()
    }

    /// Changes `tree`.
    pub fn install(self, tree: &mut Tree) {
        if let Changed::To(default_plan) = self.default_plan {
            tree.default_plan = default_plan;
        }
        install(self.domains, &mut tree.domains);
        install(self.limits, &mut tree.limits);
        install(self.plans, &mut tree.plans);
        install(self.tenants, &mut tree.tenants);
        install(self.profiles, &mut tree.profiles);
    }
}

fn install<K: Ord, V>(changes: BTreeMap<K, Option<V>>, map: &mut BTreeMap<K, V>) {
    for (name, changed) in changes {
        match changed {
            Some(part) => map.insert(name, part),
            None => map.remove(&name),
        };
    }
}

fn differences<K: Ord + Clone, V: PartialEq + Clone>(
    from: &BTreeMap<K, V>,
    to: &BTreeMap<K, V>,
) -> BTreeMap<K, Option<V>> {
    let gone = from
        .keys()
        .filter(|name| !to.contains_key(name))
        .map(|name| (name.clone(), None));
    let new = to
        .iter()
        .filter(|(name, part)| from.get(name) != Some(part))
        .map(|(name, part)| (name.clone(), Some(part.clone())));
    gone.chain(new).collect()
}

fn bound<K: Ord, V>(
    name: &str,
    current: &BTreeMap<K, V>,
    changes: &BTreeMap<K, Option<V>>,
    most: usize,
    faults: &mut Vec<FieldError>,
) {
    let touched = changes
        .keys()
        .filter(|name| current.contains_key(name))
        .count();
    let stay = current.len().saturating_sub(touched);
    let set = changes.values().filter(|change| change.is_some()).count();
    if set > 0 && stay.saturating_add(set) > most {
        let message = format!("must have at most {most} entries");
        faults.push(FieldError::new(&FieldPath::root().with(name), message));
    }
}

fn patch_tenant(tenant: &mut Tenant, named: &Tenant) {
    if named.plan.is_some() {
        tenant.plan.clone_from(&named.plan);
    }
    if named.time_zone.is_some() {
        tenant.time_zone.clone_from(&named.time_zone);
    }
    if named.anchor.is_some() {
        tenant.anchor = named.anchor;
    }
    for (name, named) in &named.limits {
        let limit = Arc::make_mut(tenant.limits.entry(name.clone()).or_default());
        // A limit that names nothing but overrides leaves the fields as they are.
        if named.spec != LimitSpec::default() {
            limit.spec.clone_from(&named.spec);
        }
        limit.keys.extend(
            named
                .keys
                .iter()
                .map(|(key, spec)| (key.clone(), spec.clone())),
        );
        if !named.own.amounts().is_empty() {
            let keys = std::mem::take(&mut limit.own.keys);
            limit.own.clone_from(&named.own);
            limit.own.keys = keys;
        }
        limit.own.keys.extend(
            named
                .own
                .keys
                .iter()
                .map(|(k, spec)| (k.clone(), spec.clone())),
        );
    }
}
