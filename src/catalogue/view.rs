//! The catalogue as checks read it: immutable, shared, complete.
//!
//! A check loads the newest [`View`], finds its tenant and the limits that it names, and never sees a
//! half-applied change. A view shares with the one before all that did not change. Tenants of a plan for
//! whom nothing differs share one [`TenantView`], so a change of a plan costs the same however many
//! tenants it has.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::catalogue::amounts::Overrides;
use crate::catalogue::descriptor;
use crate::catalogue::descriptor::Entry;
use crate::catalogue::descriptor::Index;
use crate::catalogue::epoch::KeyResets;
use crate::catalogue::intern::LimitId;
use crate::catalogue::profile::Gateway;
use crate::catalogue::sharded::ShardedMap;
use crate::catalogue::token::TokenHash;
use crate::catalogue::token::TokenRecord;
use crate::catalogue::token::TokenTable;
use crate::domain::limit::Limit;
use crate::domain::name::Domain;
use crate::domain::name::PlanName;
use crate::domain::name::ProfileName;
use crate::domain::name::TenantName;
use crate::domain::name::is_tenant_name;
use crate::domain::time::Timestamp;

/// The whole catalogue at one version.
#[derive(Clone, Debug)]
pub struct View {
    pub(super) version: u64,
    /// One entry per plan, and one for tenants without a plan.
    pub(super) plans: PlanViews,
    /// Named tenants, and unknown ones that have a history of their own.
    pub(super) tenants: ShardedMap<TenantName, Slot>,
    /// Everybody else, when there is a default plan.
    pub(super) unknown: Option<Arc<TenantView>>,
    pub(super) tokens: Arc<TokenTable>,
    pub(super) gateways: Arc<BTreeMap<ProfileName, Arc<Gateway>>>,
    /// Domains of gateways that stand for a tenant of another name.
    pub(super) domains: Arc<BTreeMap<Domain, TenantName>>,
}

/// How a tenant is found.
#[derive(Clone, Debug)]
pub(super) enum Slot {
    /// Nothing differs from the other tenants of the plan.
    Shared(PlanIndex),
    /// Something does.
    Own(Arc<TenantView>),
}

/// A plan's place in [`PlanViews`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct PlanIndex(usize);

/// The views that the tenants of each plan share.
#[derive(Clone, Debug, Default)]
pub(super) struct PlanViews {
    places: Arc<BTreeMap<Option<PlanName>, PlanIndex>>,
    views: Vec<Option<Arc<TenantView>>>,
}

impl PlanViews {
    pub(super) fn index(&self, plan: Option<&PlanName>) -> Option<PlanIndex> {
        // A borrowed key would need an owned option; the few plans of a catalogue make a copy cheap.
        self.places.get(&plan.cloned()).copied()
    }

    pub(super) fn get(&self, plan: Option<&PlanName>) -> Option<&Arc<TenantView>> {
        self.at(self.index(plan)?)
    }

    fn at(&self, index: PlanIndex) -> Option<&Arc<TenantView>> {
        self.views.get(index.0)?.as_ref()
    }

    pub(super) fn set(&mut self, plan: Option<&PlanName>, view: Option<Arc<TenantView>>) {
        match (self.index(plan), view) {
            (Some(index), None) => {
                Arc::make_mut(&mut self.places).remove(&plan.cloned());
                if let Some(place) = self.views.get_mut(index.0) {
                    *place = None;
                }
            }
            (Some(index), view) => {
                if let Some(place) = self.views.get_mut(index.0) {
                    *place = view;
                }
            }
            (None, None) => {}
            (None, Some(view)) => {
                let free = self.views.iter().position(Option::is_none);
                let index = free.unwrap_or(self.views.len());
                if free.is_none() {
                    self.views.push(None);
                }
                if let Some(place) = self.views.get_mut(index) {
                    *place = Some(view);
                }
                Arc::make_mut(&mut self.places).insert(plan.cloned(), PlanIndex(index));
            }
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Option<&PlanName>, &Arc<TenantView>)> {
        self.places
            .iter()
            .filter_map(|(plan, index)| Some((plan.as_ref(), self.at(*index)?)))
    }
}

impl PartialEq for PlanViews {
    /// Places may differ: they tell only in which order plans were made.
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl View {
    pub(super) fn empty() -> Self {
        Self {
            version: 0,
            plans: PlanViews::default(),
            tenants: ShardedMap::default(),
            unknown: None,
            tokens: Arc::default(),
            gateways: Arc::default(),
            domains: Arc::default(),
        }
    }

    /// The catalogue's version.
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// What `name` is subject to: as the catalogue says, else as everybody under the default plan.
    /// `None`: the tenant is unknown.
    pub fn tenant(&self, name: &str) -> Option<&Arc<TenantView>> {
        match self.tenants.get(name) {
            Some(Slot::Shared(plan)) => self.plans.at(*plan),
            Some(Slot::Own(view)) => Some(view),
            None => self.unknown.as_ref(),
        }
    }

    /// The gateway profile called `name`.
    pub fn gateway(&self, name: &str) -> Option<&Arc<Gateway>> {
        self.gateways.get(name)
    }

    /// The tenant that a gateway's domain stands for. `None`: the domain is unknown.
    pub fn domain<'v>(&'v self, domain: &'v str) -> Option<(&'v str, &'v Arc<TenantView>)> {
        if let Some(tenant) = self.domains.get(domain) {
            return Some((tenant.as_str(), self.tenant(tenant.as_str())?));
        }
        let view = self.tenant(domain)?;
        (view.known || is_tenant_name(domain)).then_some((domain, view))
    }

    /// The live token whose text hashes to `hash`.
    pub fn token(&self, hash: &TokenHash, now: Timestamp) -> Option<&Arc<TokenRecord>> {
        self.tokens.find(hash, now)
    }
}

impl PartialEq for View {
    /// Places of plans may differ: they tell only in which order plans were made.
    fn eq(&self, other: &Self) -> bool {
        self.version == other.version
            && self.plans == other.plans
            && self.unknown == other.unknown
            && self.tokens == other.tokens
            && self.gateways == other.gateways
            && self.domains == other.domains
            && self.tenants.len() == other.tenants.len()
            && self.tenants.iter().all(|(name, slot)| {
                let shared = |slot: &Slot| matches!(slot, Slot::Shared(_));
                other
                    .tenants
                    .get(name)
                    .is_some_and(|theirs| shared(theirs) == shared(slot))
                    && self.tenant(name.as_str()) == other.tenant(name.as_str())
            })
    }
}

/// What one tenant, or all alike, are subject to.
#[derive(Clone, Debug, PartialEq)]
pub struct TenantView {
    /// The plan that is in force.
    pub plan: Option<PlanName>,
    /// Whether the catalogue names the tenant; otherwise it is counted under the default plan.
    pub known: bool,
    /// In name order.
    limits: Box<[LimitView]>,
    /// By action, each in name order.
    actions: Box<[(String, Box<[LimitView]>)]>,
    /// By the descriptors of gateways.
    descriptors: Index<Selected>,
}

impl TenantView {
    pub(super) fn new(plan: Option<PlanName>, known: bool, limits: Vec<LimitView>) -> Self {
        let mut actions: BTreeMap<&str, Vec<LimitView>> = BTreeMap::new();
        for view in &limits {
            for action in &view.limit.actions {
                actions.entry(action).or_default().push(view.clone());
            }
        }
        let actions = actions
            .into_iter()
            .map(|(action, views)| (action.to_owned(), views.into_boxed_slice()))
            .collect();
        let mut descriptors = Index::default();
        for view in limits.iter().filter(|view| !view.limit.matches.is_empty()) {
            let parsed = view.limit.matches.iter().map(|text| Entry::parse(text));
            // No other list is compiled into a limit.
            let Ok(entries) = parsed.collect::<Result<Vec<Entry>, _>>() else {
                continue;
            };
            if let Ok(counted) = descriptor::counted(&entries, view.limit.key.as_deref()) {
                let view = view.clone();
                descriptors.insert(&entries, Selected { view, counted });
            }
        }
        Self {
            plan,
            known,
            limits: limits.into_boxed_slice(),
            actions,
            descriptors,
        }
    }

    /// The limit called `name`.
    pub fn limit(&self, name: &str) -> Option<&LimitView> {
        let at = self
            .limits
            .binary_search_by(|view| view.limit.name.as_str().cmp(name))
            .ok()?;
        self.limits.get(at)
    }

    /// All limits, in name order.
    pub fn limits(&self) -> impl Iterator<Item = &LimitView> {
        self.limits.iter()
    }

    /// The limits that `action` is subject to, in name order.
    pub fn action(&self, action: &str) -> &[LimitView] {
        let at = self
            .actions
            .binary_search_by(|(name, _)| name.as_str().cmp(action));
        at.ok()
            .and_then(|at| self.actions.get(at))
            .map_or(&[], |(_, views)| views)
    }

    /// The limits that a gateway's descriptor selects, in name order.
    pub fn descriptor(&self, entries: &[(&str, &str)]) -> &[Selected] {
        self.descriptors.find(entries)
    }
}

/// A limit that a gateway's descriptor selects.
#[derive(Clone, Debug, PartialEq)]
pub struct Selected {
    /// The limit.
    pub view: LimitView,
    /// Places of the descriptor's values that make the counter's key.
    pub counted: Box<[usize]>,
}

/// One limit of one tenant.
#[derive(Clone, Debug, PartialEq)]
pub struct LimitView {
    /// The limit, for all keys that have no override.
    pub limit: Arc<Limit>,
    /// The number of the limit's name.
    pub id: LimitId,
    /// The epoch of all keys that were not reset by themselves.
    pub epoch: u64,
    pub(super) overrides: Option<Arc<Overrides>>,
    pub(super) resets: Option<KeyResets>,
}

impl LimitView {
    /// The limit and the epoch of `key` (the empty text when the limit has none) at `now`.
    pub fn at(&self, key: &str, now: Timestamp) -> (&Arc<Limit>, u64) {
        let limit = self
            .overrides
            .as_ref()
            .and_then(|overrides| overrides.get(key))
            .and_then(|pieces| pieces.iter().find(|(end, _)| now < *end))
            .map_or(&self.limit, |(_, limit)| limit);
        let reset = self.resets.as_ref().and_then(|resets| resets.get(key));
        (
            limit,
            reset.map_or(self.epoch, |reset| self.epoch.max(reset.epoch)),
        )
    }
}
