//! What would be in force for one tenant, named or not.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::catalogue::amounts;
use crate::catalogue::amounts::Overrides;
use crate::catalogue::change::FieldError;
use crate::catalogue::change::NewEpoch;
use crate::catalogue::effective::Layers;
use crate::catalogue::epoch::KeyReset;
use crate::catalogue::epoch::KeyResets;
use crate::catalogue::epoch::LimitEpochs;
use crate::catalogue::epoch::TenantResets;
use crate::catalogue::epoch::lifetime;
use crate::catalogue::epoch::same_shape;
use crate::catalogue::path::FieldPath;
use crate::catalogue::rebuild::Cause;
use crate::catalogue::rebuild::OutcomeSlot;
use crate::catalogue::rebuild::Rebuild;
use crate::catalogue::rebuild::TenantOutcome;
use crate::catalogue::tree::Tenant;
use crate::catalogue::tree::TenantLimit;
use crate::catalogue::view::LimitView;
use crate::catalogue::view::TenantView;
use crate::domain::limit::Limit;
use crate::domain::limit::LimitSpec;
use crate::domain::limit::Rule;
use crate::domain::name::Key;
use crate::domain::name::LimitName;
use crate::domain::name::PlanName;
use crate::domain::name::TenantName;

/// A tenant while its view is built.
struct Subject<'s> {
    name: &'s TenantName,
    /// Its definition; `None`: the catalogue does not name it.
    definition: Option<&'s Tenant>,
    plan: Option<PlanName>,
    /// What it is like unless something differs.
    reference: Arc<TenantView>,
    old: Option<Arc<TenantView>>,
}

/// One limit of a tenant while the view is built.
struct Piece {
    limit: Arc<Limit>,
    overrides: Option<Arc<Overrides>>,
    differs: bool,
}

impl<'a> Rebuild<'a> {
    /// Looks at one tenant.
    pub(super) fn tenant(&mut self, name: &TenantName) {
        let draft = self.draft;
        let definition = draft.tenant(name);
        let (plan, reference) = match definition {
            Some(tenant) => {
                let plan = draft.plan_of(tenant);
                (plan.cloned(), self.plan_view(plan))
            }
            None => {
                let unknown = self.outcome.unknown.or(&self.catalogue.view.unknown);
                (draft.default_plan().cloned(), unknown.clone())
            }
        };
        let Some(reference) = reference else {
            let gone = TenantOutcome {
                known: false,
                slot: None,
                exceptions: LimitEpochs::new(),
                resets: TenantResets::new(),
            };
            self.outcome.tenants.insert(name.clone(), gone);
            return;
        };
        let old = match self.cause {
            Cause::Entry(_) => self.catalogue.view.tenant(name.as_str()).cloned(),
            Cause::Snapshot => None,
        };
        let subject = Subject {
            name,
            definition,
            plan,
            reference,
            old,
        };
        let outcome = self.tenant_outcome(&subject);
        self.outcome.tenants.insert(name.clone(), outcome);
    }

    fn tenant_outcome(&mut self, subject: &Subject<'_>) -> TenantOutcome {
        let definition = subject.definition;
        let mut names: BTreeSet<&LimitName> = subject
            .reference
            .limits()
            .map(|view| &view.limit.name)
            .collect();
        names.extend(definition.iter().flat_map(|tenant| tenant.limits.keys()));
        let mut exceptions = LimitEpochs::new();
        let mut resets = TenantResets::new();
        // Also when all that differs waits for a limit that does not exist yet: it must be found then.
        let mut differs = definition.is_some_and(|tenant| {
            let mut items = tenant.limits.values();
            tenant.time_zone.is_some()
                || tenant.anchor.is_some()
                || items.any(|item| !item.is_empty())
        });
        let mut views = Vec::with_capacity(names.len());
        for name in names {
            let piece = match self.piece(subject, name) {
                Ok(Some(piece)) => piece,
                Ok(None) => continue,
                Err(faults) => {
                    self.faults.extend(faults);
                    continue;
                }
            };
            let shared = subject.reference.limit(name.as_str());
            let epoch = self.tenant_epoch(subject, name, &piece.limit, shared);
            if shared.is_none_or(|shared| shared.epoch != epoch) {
                exceptions.insert(name.clone(), epoch);
            }
            let Some(id) = self.intern(name) else {
                continue;
            };
            let mut view = LimitView {
                limit: piece.limit,
                id,
                epoch,
                overrides: piece.overrides,
                resets: None,
            };
            view.resets = self.key_resets(subject, name, &view);
            if let Some(of_limit) = &view.resets {
                resets.insert(name.clone(), of_limit.clone());
            }
            differs |= piece.differs;
            views.push(view);
        }
        differs |= !exceptions.is_empty() || !resets.is_empty();
        let known = definition.is_some();
        let slot = match (differs, known) {
            (true, _) => {
                let view = TenantView::new(subject.plan.clone(), known, views);
                Some(OutcomeSlot::Own(Arc::new(view)))
            }
            (false, true) => Some(OutcomeSlot::Shared(subject.plan.clone())),
            (false, false) => None,
        };
        TenantOutcome {
            known,
            slot,
            exceptions,
            resets,
        }
    }

    /// The limit as the tenant has it; `None`: it does not.
    fn piece(
        &mut self,
        subject: &Subject<'_>,
        name: &LimitName,
    ) -> Result<Option<Piece>, Vec<FieldError>> {
        let shared = subject.reference.limit(name.as_str());
        let item = subject
            .definition
            .and_then(|tenant| tenant.limits.get(name));
        let item = item.filter(|item| !item.is_empty());
        let has_calendar = subject
            .definition
            .is_some_and(|tenant| tenant.time_zone.is_some() || tenant.anchor.is_some());
        let is_calendar = |view: &LimitView| matches!(view.limit.rule, Rule::CalendarWindow { .. });
        let special = item.is_some() || (has_calendar && shared.is_some_and(is_calendar));
        if !special {
            let piece = |shared: &LimitView| Piece {
                limit: Arc::clone(&shared.limit),
                overrides: None,
                differs: false,
            };
            return Ok(shared.map(piece));
        }
        if let Some(old) = self.unchanged(subject, name) {
            let limit = Arc::clone(&old.limit);
            return Ok(Some(Piece {
                limit,
                overrides: old.overrides.clone(),
                differs: true,
            }));
        }
        let nothing = TenantLimit::default();
        let item = item.map_or(&nothing, Arc::as_ref);
        let layers = self.layers(subject, name, item);
        let path = FieldPath::root()
            .with("tenants")
            .with(subject.name.as_str());
        let path = path.with("limits").with(name.as_str());
        if shared.is_none() && item.spec == LimitSpec::default() {
            return nothing_below(&path, name, item);
        }
        let compiled = layers.compile(self.catalogue.regions)?;
        let (limit, overrides) = amounts::lay_over(&path, &compiled, item, self.catalogue.regions)?;
        let limit = match shared {
            Some(shared) if *shared.limit == limit => Arc::clone(&shared.limit),
            _ => Arc::new(limit),
        };
        if self.draft.tenants.contains_key(subject.name) {
            self.warn(&layers, &limit);
            self.warn_of_ends(&path, item);
        }
        let overrides = (!overrides.is_empty()).then(|| Arc::new(overrides));
        Ok(Some(Piece {
            limit,
            overrides,
            differs: true,
        }))
    }

    /// The tenant's limit as it was, when the draft cannot have changed it.
    fn unchanged(&self, subject: &Subject<'_>, name: &LimitName) -> Option<LimitView> {
        let old = subject.old.as_ref()?;
        let touched = self.draft.tenants.contains_key(subject.name)
            || !old.known
            || old.plan != subject.plan
            || self
                .affected
                .get(&subject.plan)
                .is_some_and(|names| names.contains(name));
        if touched {
            None
        } else {
            old.limit(name.as_str()).cloned()
        }
    }

    fn layers<'l>(
        &self,
        subject: &'l Subject<'_>,
        name: &'l LimitName,
        item: &'l TenantLimit,
    ) -> Layers<'l>
    where
        'a: 'l,
    {
        let draft = self.draft;
        let plan = subject.plan.as_ref();
        Layers {
            limit: name,
            base: draft.limit(name),
            plan: plan.and_then(|plan| Some((plan, draft.plan(plan)?.limits.get(name)?))),
            tenant: Some((subject.name, &item.spec)),
            time_zone: subject
                .definition
                .and_then(|tenant| tenant.time_zone.as_deref()),
            anchor: subject.definition.and_then(|tenant| tenant.anchor),
        }
    }

    fn tenant_epoch(
        &mut self,
        subject: &Subject<'_>,
        name: &LimitName,
        limit: &Limit,
        shared: Option<&LimitView>,
    ) -> u64 {
        let index = match self.cause {
            Cause::Entry(index) => index,
            Cause::Snapshot => {
                let epochs = self.catalogue.epochs.of_tenant(subject.name);
                let exception = epochs.and_then(|epochs| epochs.get(name)).copied();
                return exception.or(shared.map(|shared| shared.epoch)).unwrap_or(0);
            }
        };
        let starts = NewEpoch {
            limit: name.clone(),
            plan: None,
            tenant: Some(subject.name.clone()),
            key: None,
        };
        let reset = self.draft.reset.as_ref();
        if reset.is_some_and(|reset| {
            reset.tenant == *subject.name && reset.limit == *name && reset.key.is_none()
        }) {
            self.starts_from_zero(starts);
            return index;
        }
        let Some(old) = &subject.old else {
            // Named for the first time: as everybody in the plan, unless there may be use from before.
            let fresh = !self.catalogue.epochs.may_have_use(subject.name, self.at);
            let alike = shared.filter(|shared| fresh && same_shape(&shared.limit, limit));
            return alike.map_or(index, |shared| shared.epoch);
        };
        let restart = self.restart_unknown && subject.definition.is_none();
        match old.limit(name.as_str()) {
            Some(old) if same_shape(&old.limit, limit) && !restart => old.epoch,
            Some(_) => {
                // What starts from zero for the whole plan is told once for all.
                if shared.is_none_or(|shared| shared.epoch != index) {
                    self.starts_from_zero(starts);
                }
                index
            }
            None => index,
        }
    }

    fn key_resets(
        &mut self,
        subject: &Subject<'_>,
        name: &LimitName,
        view: &LimitView,
    ) -> Option<KeyResets> {
        let resets = self.catalogue.epochs.resets_of(subject.name, name);
        let old = subject
            .old
            .as_ref()
            .and_then(|old| old.limit(name.as_str()));
        let kept = match self.cause {
            Cause::Snapshot => true,
            Cause::Entry(_) => old.is_some_and(|old| old.epoch == view.epoch),
        };
        let mut resets = resets.filter(|_| kept).cloned();
        let reset = self.draft.reset.as_ref();
        let reset = reset.filter(|reset| reset.tenant == *subject.name && reset.limit == *name);
        if let (Cause::Entry(index), Some(key)) =
            (self.cause, reset.and_then(|reset| reset.key.as_ref()))
        {
            let (limit, _) = view.at(key.as_str(), self.at);
            let forget_at = self.at.plus(lifetime(limit));
            let of_limit = resets.get_or_insert_default();
            of_limit.insert(
                key.clone(),
                KeyReset {
                    epoch: index,
                    forget_at,
                },
            );
            self.starts_from_zero(NewEpoch {
                limit: name.clone(),
                plan: None,
                tenant: Some(subject.name.clone()),
                key: Some(key.clone()),
            });
        }
        resets.filter(|resets| !resets.is_empty())
    }

    fn warn_of_ends(&mut self, path: &FieldPath, item: &TenantLimit) {
        for (key, spec) in &item.keys {
            if spec.expires_at.is_some_and(|end| end <= self.at) {
                let path = path.with("keys").with(key.as_str());
                self.warning(format!("{path}: has ended already and changes nothing"));
            }
        }
    }
}

/// What changes a limit that does not exist: an administrator's overrides are faults, a tenant's own choice
/// waits for better days.
fn nothing_below(
    path: &FieldPath,
    name: &LimitName,
    item: &TenantLimit,
) -> Result<Option<Piece>, Vec<FieldError>> {
    let fault = |key: &Key| {
        let message = format!("there is no limit {name} whose keys could be overridden");
        FieldError::new(&path.with("keys").with(key.as_str()), message)
    };
    let faults: Vec<FieldError> = item.keys.keys().map(fault).collect();
    if faults.is_empty() {
        Ok(None)
    } else {
        Err(faults)
    }
}
