//! Puts an outcome in force: the half of a change that cannot fail.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::catalogue::Catalogue;
use crate::catalogue::IsCounted;
use crate::catalogue::change::Applied;
use crate::catalogue::change::FAULTS_MAX;
use crate::catalogue::draft::Changed;
use crate::catalogue::draft::Draft;
use crate::catalogue::draft::Parts;
use crate::catalogue::epoch::COUNTED_AGAIN;
use crate::catalogue::epoch::Departed;
use crate::catalogue::epoch::FORGOTTEN_PER_ENTRY;
use crate::catalogue::epoch::KeyReset;
use crate::catalogue::epoch::LimitEpochs;
use crate::catalogue::epoch::Memory;
use crate::catalogue::epoch::REMEMBERED_MAX;
use crate::catalogue::epoch::TenantResets;
use crate::catalogue::epoch::lifetime_of_all;
use crate::catalogue::epoch::memories_of;
use crate::catalogue::path::FieldPath;
use crate::catalogue::profile::Gateway;
use crate::catalogue::profile::Profile;
use crate::catalogue::rebuild::Cause;
use crate::catalogue::rebuild::Outcome;
use crate::catalogue::rebuild::OutcomeSlot;
use crate::catalogue::rebuild::Rebuild;
use crate::catalogue::rebuild::TenantOutcome;
use crate::catalogue::sharded::ShardedMap;
use crate::catalogue::view::Slot;
use crate::catalogue::view::TenantView;
use crate::domain::name::LimitName;
use crate::domain::name::ProfileName;
use crate::domain::name::TenantName;
use crate::domain::time::Timestamp;

impl Catalogue {
    /// Puts what an entry comes to in force. `crowded`: too many unnamed tenants would have to be
    /// remembered; the outcome lets them all start from zero instead.
    pub(super) fn install(
        &mut self,
        parts: Parts,
        mut outcome: Outcome,
        at: Timestamp,
        crowded: bool,
    ) -> Applied {
        if crowded {
            self.forget_all_departed();
            let message = "more than 100000 tenants were deleted lately: all tenants that the \
                           catalogue does not name start from zero";
            outcome.warnings.push(message.to_owned());
        }
        self.install_plans_epochs(&outcome, at);
        for (name, tenant) in &outcome.tenants {
            self.install_tenants_epochs(name, tenant, &outcome, at);
        }
        let mut new_epochs = std::mem::take(&mut outcome.new_epochs);
        let mut warnings = std::mem::take(&mut outcome.warnings);
        if new_epochs.len() > FAULTS_MAX {
            let more = new_epochs.len() - FAULTS_MAX;
            warnings.push(format!("{more} more limits of tenants start from zero"));
            new_epochs.truncate(FAULTS_MAX);
        }
        self.install_view(outcome);
        let domains = Arc::clone(&self.view.domains);
        self.install_parts(parts);
        if !Arc::ptr_eq(&domains, &self.view.domains) {
            warnings.extend(self.domains_of_nobody().take(FAULTS_MAX));
        }
        Applied {
            version: self.version,
            warnings,
            new_epochs,
        }
    }

    /// A word on each domain that stands for a tenant without limits.
    fn domains_of_nobody(&self) -> impl Iterator<Item = String> {
        let are_all_limited = self.tree.default_plan.is_some();
        let of_nobody = self.tree.domains.iter().filter(move |(_, tenant)| {
            !are_all_limited && !self.tree.tenants.contains_key(*tenant)
        });
        of_nobody.map(|(domain, tenant)| {
            format!("domains: {domain} stands for the tenant {tenant}, which there is not: nothing limits its calls")
        })
    }

    /// Changes the document, and of the view what no limit depends on.
    pub(super) fn install_parts(&mut self, parts: Parts) {
        let rebuild_gateways = parts.change_profiles();
        parts.install(&mut self.tree);
        if rebuild_gateways {
            let compiled = |(name, profile): (&ProfileName, &Profile)| {
                let path = FieldPath::root().with("profiles").with(name.as_str());
                // It was judged as part of the draft.
                let gateway = Gateway::compile(&path, profile).ok()?;
                Some((name.clone(), Arc::new(gateway)))
            };
            let gateways = self.tree.profiles.iter().filter_map(compiled).collect();
            Arc::make_mut(&mut self.view).gateways = Arc::new(gateways);
        }
        if *self.view.domains != self.tree.domains {
            Arc::make_mut(&mut self.view).domains = Arc::new(self.tree.domains.clone());
        }
    }

    /// Replaces what the outcome has looked at in the view.
    pub(super) fn install_view(&mut self, outcome: Outcome) {
        let view = Arc::make_mut(&mut self.view);
        view.version = self.version;
        for (plan, plan_view) in outcome.plans {
            view.plans.set(plan.as_ref(), plan_view);
        }
        if let Changed::To(unknown) = outcome.unknown {
            view.unknown = unknown;
        }
        for (name, tenant) in outcome.tenants {
            let slot = match tenant.slot {
                Some(OutcomeSlot::Own(own)) => Some(Slot::Own(own)),
                Some(OutcomeSlot::Shared(plan)) => {
                    view.plans.index(plan.as_ref()).map(Slot::Shared)
                }
                None => None,
            };
            match slot {
                Some(slot) => view.tenants.insert(name, slot),
                None => view.tenants.remove(name.as_str()),
            }
        }
        self.names = outcome.names;
    }

    fn install_plans_epochs(&mut self, outcome: &Outcome, at: Timestamp) {
        for (plan, view) in &outcome.plans {
            match (plan, view) {
                (None, Some(view)) => self.epochs.base = epochs_of(view),
                (Some(plan), Some(view)) => {
                    self.epochs.plans.insert(plan.clone(), epochs_of(view));
                }
                (Some(plan), None) => {
                    self.epochs.plans.remove(plan);
                }
                (None, None) => {}
            }
        }
        // Also when only the plan has changed: what differs from it may be something else now.
        let unknown = outcome.unknown.or(&self.view.unknown).clone();
        self.epochs.unknown = match unknown {
            None => {
                if let Some(before) = &self.view.unknown {
                    self.anyone_departed(at.plus(lifetime_of_all(before)));
                }
                LimitEpochs::new()
            }
            Some(unknown) => {
                let plan = self.epochs.of_plan(unknown.plan.as_ref());
                differing(&unknown, |limit| {
                    plan.and_then(|plan| plan.get(limit)).copied()
                })
            }
        };
    }

    fn install_tenants_epochs(
        &mut self,
        name: &TenantName,
        tenant: &TenantOutcome,
        outcome: &Outcome,
        at: Timestamp,
    ) {
        let before = self.view.tenant(name.as_str()).cloned();
        let was_named = self.tree.tenants.contains_key(name);
        self.epochs.tenants.remove(name);
        if let Some(departed) = self.epochs.departed.remove(name) {
            self.memories
                .remove(&(departed.forget_at, Memory::Tenant(name.clone())));
        }
        self.install_resets(name, &tenant.resets);
        if tenant.known {
            if !tenant.exceptions.is_empty() {
                self.epochs
                    .tenants
                    .insert(name.clone(), tenant.exceptions.clone());
            }
            return;
        }
        let unknown = outcome.unknown.or(&self.view.unknown);
        // With a default plan a tenant without a slot is as all others that are not named; without one it
        // is nobody, but must not find its old use when it is named again.
        if tenant.slot.is_some() || (was_named && unknown.is_none()) {
            self.remember(name, tenant, before.as_deref(), at);
        }
    }

    fn anyone_departed(&mut self, until: Timestamp) {
        self.epochs.anyone_departed_until = self.epochs.anyone_departed_until.max(until);
    }

    fn remember(
        &mut self,
        name: &TenantName,
        tenant: &TenantOutcome,
        before: Option<&TenantView>,
        at: Timestamp,
    ) {
        let now = match &tenant.slot {
            Some(OutcomeSlot::Own(view)) => Some(view.as_ref()),
            _ => None,
        };
        let last = [before, now]
            .into_iter()
            .flatten()
            .map(lifetime_of_all)
            .max();
        let keys = tenant.resets.values().flat_map(ShardedMap::iter);
        let last_key = keys.map(|(_, reset)| reset.forget_at).max().unwrap_or(at);
        let forget_at = at.plus(last.unwrap_or_default()).max(last_key);
        if self.epochs.departed.len() >= REMEMBERED_MAX {
            self.anyone_departed(forget_at);
            return;
        }
        let departed = Departed {
            epochs: tenant.exceptions.clone(),
            forget_at,
        };
        self.epochs.departed.insert(name.clone(), departed);
        self.memories
            .insert((forget_at, Memory::Tenant(name.clone())));
    }

    fn install_resets(&mut self, name: &TenantName, resets: &TenantResets) {
        let old = self.epochs.resets.remove(name).unwrap_or_default();
        for (limit, of_limit) in &old {
            if resets.get(limit).is_none_or(|new| !new.is_same(of_limit)) {
                for memory in memories_of(name, limit, of_limit) {
                    self.memories.remove(&memory);
                }
            }
        }
        for (limit, of_limit) in resets {
            if old.get(limit).is_none_or(|old| !old.is_same(of_limit)) {
                self.memories.extend(memories_of(name, limit, of_limit));
            }
        }
        if !resets.is_empty() {
            self.epochs.resets.insert(name.clone(), resets.clone());
        }
    }

    fn forget_all_departed(&mut self) {
        let departed = std::mem::take(&mut self.epochs.departed);
        for (name, departed) in departed {
            self.memories
                .remove(&(departed.forget_at, Memory::Tenant(name.clone())));
            self.anyone_departed(departed.forget_at);
        }
    }

    /// Forgets what cannot matter any more, a bounded part of it.
    pub(super) fn forget(&mut self, at: Timestamp, is_counted: IsCounted<'_>) {
        for _ in 0..FORGOTTEN_PER_ENTRY {
            let Some((forget_at, _)) = self.memories.first() else {
                return;
            };
            if *forget_at > at {
                return;
            }
            let Some((_, memory)) = self.memories.pop_first() else {
                return;
            };
            let is_needed = match &memory {
                Memory::Tenant(tenant) => is_counted(tenant, None),
                Memory::Key(tenant, limit, key) => is_counted(tenant, Some((limit, key))),
            };
            if is_needed {
                self.postpone(memory, at.plus(COUNTED_AGAIN));
                continue;
            }
            match memory {
                Memory::Tenant(name) => {
                    self.epochs.departed.remove(&name);
                    self.install_resets(&name, &TenantResets::new());
                    Arc::make_mut(&mut self.view).tenants.remove(name.as_str());
                }
                Memory::Key(tenant, limit, key) => self.forget_key(&tenant, &limit, key.as_str()),
            }
        }
    }

    fn postpone(&mut self, memory: Memory, forget_at: Timestamp) {
        match &memory {
            Memory::Tenant(tenant) => {
                if let Some(departed) = self.epochs.departed.get_mut(tenant) {
                    departed.forget_at = forget_at;
                }
            }
            Memory::Key(tenant, limit, key) => {
                let limits = self.epochs.resets.get_mut(tenant);
                let Some(resets) = limits.and_then(|limits| limits.get_mut(limit)) else {
                    return;
                };
                let Some(epoch) = resets.get(key).map(|reset| reset.epoch) else {
                    return;
                };
                resets.insert(key.clone(), KeyReset { epoch, forget_at });
            }
        }
        self.memories.insert((forget_at, memory));
    }

    fn forget_key(&mut self, tenant: &TenantName, limit: &LimitName, key: &str) {
        let Some(limits) = self.epochs.resets.get_mut(tenant) else {
            return;
        };
        let Some(resets) = limits.get_mut(limit) else {
            return;
        };
        resets.remove(key);
        if resets.is_empty() {
            limits.remove(limit);
        }
        if limits.is_empty() {
            self.epochs.resets.remove(tenant);
        }
        self.look_again(tenant);
    }

    /// Builds one tenant's view again from the state.
    fn look_again(&mut self, tenant: &TenantName) {
        let draft = Draft::new(&self.tree);
        let mut rebuild = Rebuild::new(self, &draft, Cause::Snapshot, Timestamp::EPOCH);
        rebuild.look_at(tenant);
        // The state was judged when it came in; a limit that is in force compiles.
        if let Ok(outcome) = rebuild.run() {
            self.install_view(outcome);
        }
    }
}

fn epochs_of(view: &TenantView) -> LimitEpochs {
    view.limits()
        .map(|limit| (limit.limit.name.clone(), limit.epoch))
        .collect()
}

fn differing(view: &TenantView, of_plan: impl Fn(&LimitName) -> Option<u64>) -> LimitEpochs {
    let epochs: BTreeMap<LimitName, u64> = epochs_of(view);
    epochs
        .into_iter()
        .filter(|(limit, epoch)| of_plan(limit) != Some(*epoch))
        .collect()
}
