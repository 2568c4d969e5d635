//! Judges a draft and works out what would be in force: the fallible half of a change.
//!
//! ```text
//!   draft ─► plans that change ─► unknown tenants ─► tenants that differ ─► Outcome (or faults)
//!            compile, epochs       epochs             compile, epochs
//! ```
//!
//! Only what the draft can change is looked at: the limits it names, the plans that have them, and those
//! tenants of these plans for whom something differs. All others follow their plan without being touched.
//!
//! The same code builds everything from a snapshot; then epochs are read instead of worked out.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::sync::Arc;

use crate::catalogue::Catalogue;
use crate::catalogue::REGIONS;
use crate::catalogue::amounts;
use crate::catalogue::amounts::Overrides;
use crate::catalogue::change::FAULTS_MAX;
use crate::catalogue::change::FieldError;
use crate::catalogue::change::NewEpoch;
use crate::catalogue::draft::Draft;
use crate::catalogue::effective::Layer;
use crate::catalogue::effective::Layers;
use crate::catalogue::epoch::KeyReset;
use crate::catalogue::epoch::KeyResets;
use crate::catalogue::epoch::LimitEpochs;
use crate::catalogue::epoch::TenantResets;
use crate::catalogue::epoch::lifetime;
use crate::catalogue::epoch::same_shape;
use crate::catalogue::field::Field;
use crate::catalogue::intern::Interner;
use crate::catalogue::intern::LIMIT_NAMES_MAX;
use crate::catalogue::intern::LimitId;
use crate::catalogue::path::FieldPath;
use crate::catalogue::tree::Tenant;
use crate::catalogue::tree::TenantLimit;
use crate::catalogue::view::LimitView;
use crate::catalogue::view::Slot;
use crate::catalogue::view::TenantView;
use crate::domain::limit::Limit;
use crate::domain::limit::Rule;
use crate::domain::name::LimitName;
use crate::domain::name::PlanName;
use crate::domain::name::TenantName;
use crate::domain::time::Timestamp;

/// Calls that a sliding log may hold without a word about memory.
const SLIDING_LOG_QUIET: u64 = 100_000;

/// How epochs come about.
#[derive(Clone, Copy, Debug)]
pub enum Cause {
    /// An entry of the log with its index.
    Entry(u64),
    /// A snapshot: they are in it.
    Snapshot,
}

/// What would be in force for one tenant.
#[derive(Debug)]
pub struct TenantOutcome {
    /// Whether the catalogue names the tenant.
    pub known: bool,
    /// How it is found; `None`: like everybody whom the catalogue does not name.
    pub slot: Option<OutcomeSlot>,
    /// Where its epochs differ from those of its plan, or of the other unknown tenants.
    pub exceptions: LimitEpochs,
    /// Its single keys that were reset.
    pub resets: TenantResets,
}

/// A slot before the places of new plans are known.
#[derive(Debug)]
pub enum OutcomeSlot {
    /// As all tenants of the plan.
    Shared(Option<PlanName>),
    /// By itself.
    Own(Arc<TenantView>),
}

/// What a draft comes to.
#[derive(Debug)]
pub struct Outcome {
    /// Limit names with their numbers.
    pub names: Interner,
    /// Plans that are looked at (or gone).
    pub plans: BTreeMap<Option<PlanName>, Option<Arc<TenantView>>>,
    /// Unknown tenants, when they are looked at.
    pub unknown: Option<Option<Arc<TenantView>>>,
    /// Tenants that are looked at.
    pub tenants: BTreeMap<TenantName, TenantOutcome>,
    /// What the author should know.
    pub warnings: Vec<String>,
    /// Counters that start from zero.
    pub new_epochs: Vec<NewEpoch>,
}

/// Works out an [`Outcome`].
pub struct Rebuild<'a> {
    catalogue: &'a Catalogue,
    draft: &'a Draft<'a>,
    cause: Cause,
    at: Timestamp,
    /// All unknown tenants start from zero: there are too many to remember how they differ.
    restart_unknown: bool,
    /// Tenants to look at besides those that the draft touches.
    extra: BTreeSet<TenantName>,
    affected: BTreeMap<Option<PlanName>, BTreeSet<LimitName>>,
    outcome: Outcome,
    faults: Vec<FieldError>,
}

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
    pub fn new(
        catalogue: &'a Catalogue,
        draft: &'a Draft<'a>,
        cause: Cause,
        at: Timestamp,
    ) -> Self {
        Self {
            catalogue,
            draft,
            cause,
            at,
            restart_unknown: false,
            extra: BTreeSet::new(),
            affected: BTreeMap::new(),
            outcome: Outcome {
                names: catalogue.names.clone(),
                plans: BTreeMap::new(),
                unknown: None,
                tenants: BTreeMap::new(),
                warnings: Vec::new(),
                new_epochs: Vec::new(),
            },
            faults: Vec::new(),
        }
    }

    /// Unknown tenants lose what they differ in, and all start from zero.
    pub const fn restart_unknown(&mut self) {
        self.restart_unknown = true;
    }

    /// Looks at `tenant`, whether the draft touches it or not.
    pub fn look_at(&mut self, tenant: &TenantName) {
        self.extra.insert(tenant.clone());
    }

    /// Looks at all tenants that are remembered without being named.
    pub fn look_at_departed(&mut self) {
        self.extra
            .extend(self.catalogue.epochs.departed.keys().cloned());
    }

    /// The outcome.
    ///
    /// # Errors
    /// Every limit that would be incomplete or contradictory, at most [`FAULTS_MAX`] faults.
    pub fn run(mut self) -> Result<Outcome, Vec<FieldError>> {
        self.plans();
        if self.faults.is_empty() {
            self.unknown();
            for tenant in self.tenants_to_look_at() {
                self.tenant(&tenant);
                if self.faults.len() >= FAULTS_MAX {
                    break;
                }
            }
        }
        self.faults.truncate(FAULTS_MAX);
        if self.faults.is_empty() {
            Ok(self.outcome)
        } else {
            Err(self.faults)
        }
    }

    fn plans(&mut self) {
        let draft = self.draft;
        for (name, changed) in &draft.plans {
            if changed.is_none() {
                self.outcome.plans.insert(Some(name.clone()), None);
            }
        }
        let plans = draft.plan_names().into_iter().map(Some);
        for plan in std::iter::once(None).chain(plans) {
            let affected = self.affected_by_draft(plan);
            let old = self.catalogue.view.plans.get(plan).cloned();
            if old.is_none() || !affected.is_empty() {
                let view = self.plan(plan, &affected, old.as_deref());
                self.affected.insert(plan.cloned(), affected);
                self.outcome
                    .plans
                    .insert(plan.cloned(), Some(Arc::new(view)));
            }
        }
    }

    /// The limits that the draft may change for all tenants of `plan`.
    fn affected_by_draft(&self, plan: Option<&PlanName>) -> BTreeSet<LimitName> {
        let mut affected: BTreeSet<LimitName> = self.draft.limits.keys().cloned().collect();
        let Some(plan) = plan.filter(|plan| self.draft.plans.contains_key(*plan)) else {
            return affected;
        };
        let new = self.draft.plan(plan).map(|plan| &plan.limits);
        let old = self
            .draft
            .current()
            .plans
            .get(plan)
            .map(|plan| &plan.limits);
        for (ours, theirs) in [(new, old), (old, new)] {
            let changed = ours
                .into_iter()
                .flatten()
                .filter(|(name, spec)| theirs.and_then(|theirs| theirs.get(*name)) != Some(*spec));
            affected.extend(changed.map(|(name, _)| name.clone()));
        }
        affected
    }

    fn plan(
        &mut self,
        plan: Option<&PlanName>,
        affected: &BTreeSet<LimitName>,
        old: Option<&TenantView>,
    ) -> TenantView {
        let draft = self.draft;
        let definition = plan.and_then(|plan| Some((plan, draft.plan(plan)?)));
        let mut names = draft.limit_names();
        names.extend(definition.iter().flat_map(|(_, plan)| plan.limits.keys()));
        let mut views = Vec::with_capacity(names.len());
        for name in names {
            let known = old.and_then(|old| old.limit(name.as_str()));
            if let Some(known) = known.filter(|_| !affected.contains(name)) {
                views.push(known.clone());
                continue;
            }
            let spec = definition.and_then(|(plan, of)| Some((plan, of.limits.get(name)?)));
            let layers = Layers {
                limit: name,
                base: draft.limit(name),
                plan: spec,
                tenant: None,
                time_zone: None,
                anchor: None,
            };
            if plan.is_some() && spec.is_none() && self.same_as_base(name, &mut views, known, plan)
            {
                continue;
            }
            match layers.compile(REGIONS) {
                Ok(compiled) => {
                    self.warn(&layers, &compiled.limit);
                    let limit = Arc::new(compiled.limit);
                    views.extend(self.plan_limit(plan, name, limit, known));
                }
                Err(faults) => self.faults.extend(faults),
            }
        }
        TenantView::new(plan.cloned(), true, views)
    }

    /// A plan that does not change a limit has the very limit of tenants without a plan. Tells whether
    /// that one is known, or known to be faulty.
    fn same_as_base(
        &mut self,
        name: &LimitName,
        views: &mut Vec<LimitView>,
        known: Option<&LimitView>,
        plan: Option<&PlanName>,
    ) -> bool {
        let base = self.plan_view(None);
        match base.as_ref().and_then(|base| base.limit(name.as_str())) {
            Some(base) => {
                let limit = Arc::clone(&base.limit);
                views.extend(self.plan_limit(plan, name, limit, known));
                true
            }
            None => !self.faults.is_empty(),
        }
    }

    fn plan_limit(
        &mut self,
        plan: Option<&PlanName>,
        name: &LimitName,
        limit: Arc<Limit>,
        old: Option<&LimitView>,
    ) -> Option<LimitView> {
        let epoch = match (self.cause, old) {
            (Cause::Snapshot, _) => {
                let epochs = self.catalogue.epochs.of_plan(plan);
                epochs
                    .and_then(|epochs| epochs.get(name))
                    .copied()
                    .unwrap_or(0)
            }
            (Cause::Entry(_), Some(old)) if same_shape(&old.limit, &limit) => old.epoch,
            (Cause::Entry(index), Some(_)) => {
                self.starts_from_zero(NewEpoch {
                    limit: name.clone(),
                    plan: plan.cloned(),
                    tenant: None,
                    key: None,
                });
                index
            }
            (Cause::Entry(index), None) => self.epoch_of_new_limit(plan, name, &limit, index),
        };
        let id = self.intern(name)?;
        Some(LimitView {
            limit,
            id,
            epoch,
            overrides: None,
            resets: None,
        })
    }

    fn epoch_of_new_limit(
        &mut self,
        plan: Option<&PlanName>,
        name: &LimitName,
        limit: &Limit,
        index: u64,
    ) -> u64 {
        // Nobody has a new plan yet, so its limits may take any epoch. That of the tenants without a plan
        // is most likely what those have who will move there.
        if plan.is_some() && self.catalogue.view.plans.get(plan).is_none() {
            let base = self.plan_view(None);
            let base = base.as_ref().and_then(|base| base.limit(name.as_str()));
            if let Some(base) = base.filter(|base| same_shape(&base.limit, limit)) {
                return base.epoch;
            }
        }
        let made_again = plan.is_none()
            && self.catalogue.names.get(name.as_str()).is_some()
            && !self.draft.current().limits.contains_key(name);
        if made_again {
            self.starts_from_zero(NewEpoch {
                limit: name.clone(),
                plan: None,
                tenant: None,
                key: None,
            });
        }
        index
    }

    /// The view that tenants of `plan` would share.
    fn plan_view(&self, plan: Option<&PlanName>) -> Option<Arc<TenantView>> {
        match self.outcome.plans.get(&plan.cloned()) {
            Some(changed) => changed.clone(),
            None => self.catalogue.view.plans.get(plan).cloned(),
        }
    }

    fn unknown(&mut self) {
        let draft = self.draft;
        let Some(plan) = draft.default_plan() else {
            self.outcome.unknown = self.catalogue.view.unknown.is_some().then_some(None);
            return;
        };
        let plan_changes = self.outcome.plans.contains_key(&Some(plan.clone()));
        if !plan_changes && !draft.changes_default_plan() && !self.restart_unknown {
            return;
        }
        let Some(reference) = self.plan_view(Some(plan)) else {
            return;
        };
        let old = self.catalogue.view.unknown.clone();
        let views = reference.limits().map(|shared| {
            let name = &shared.limit.name;
            let old = old.as_ref().and_then(|old| old.limit(name.as_str()));
            let epoch = match (self.cause, old) {
                (Cause::Snapshot, _) => self
                    .catalogue
                    .epochs
                    .unknown
                    .get(name)
                    .copied()
                    .unwrap_or(shared.epoch),
                (Cause::Entry(_), Some(old))
                    if same_shape(&old.limit, &shared.limit) && !self.restart_unknown =>
                {
                    old.epoch
                }
                (Cause::Entry(index), _) => index,
            };
            LimitView {
                epoch,
                ..shared.clone()
            }
        });
        let view = TenantView::new(Some(plan.clone()), false, views.collect());
        self.outcome.unknown = Some(Some(Arc::new(view)));
    }

    fn tenants_to_look_at(&self) -> BTreeSet<TenantName> {
        let draft = self.draft;
        let mut names: BTreeSet<TenantName> = draft.tenants.keys().cloned().collect();
        names.extend(draft.reset.iter().map(|reset| reset.tenant.clone()));
        names.extend(self.extra.iter().cloned());
        if self.outcome.plans.is_empty() && self.outcome.unknown.is_none() {
            return names;
        }
        for (name, slot) in self.catalogue.view.tenants.iter() {
            let Slot::Own(view) = slot else { continue };
            let follows = match view.known {
                true => self.outcome.plans.contains_key(&view.plan),
                false => self.outcome.unknown.is_some(),
            };
            if follows {
                names.insert(name.clone());
            }
        }
        if draft.changes_default_plan() {
            let planless = draft
                .current()
                .tenants
                .iter()
                .filter(|(_, t)| t.plan.is_none());
            names.extend(planless.map(|(name, _)| name.clone()));
        }
        names
    }

    fn tenant(&mut self, name: &TenantName) {
        let draft = self.draft;
        let definition = draft.tenant(name);
        let unknown = || match &self.outcome.unknown {
            Some(changed) => changed.clone(),
            None => self.catalogue.view.unknown.clone(),
        };
        let (plan, reference) = match definition {
            Some(tenant) => {
                let plan = draft.plan_of(tenant);
                (plan.cloned(), self.plan_view(plan))
            }
            None => (draft.default_plan().cloned(), unknown()),
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
        let mut differs =
            definition.is_some_and(|tenant| tenant.time_zone.is_some() || tenant.anchor.is_some());
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
        let item = item.unwrap_or(&nothing);
        let layers = self.layers(subject, name, item);
        let compiled = layers.compile(REGIONS)?;
        let path = FieldPath::root()
            .with("tenants")
            .with(subject.name.as_str());
        let path = path.with("limits").with(name.as_str());
        let (limit, overrides) = amounts::lay_over(&path, &compiled, item, REGIONS)?;
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

    fn intern(&mut self, name: &LimitName) -> Option<LimitId> {
        let id = self.outcome.names.intern(name);
        if id.is_none() {
            let message = format!(
                "is one too many: this catalogue has had {LIMIT_NAMES_MAX} different limit names, \
                 and none is ever given up; use an earlier name again"
            );
            let path = FieldPath::root().with("limits").with(name.as_str());
            self.faults.push(FieldError::new(&path, message));
        }
        id
    }

    fn starts_from_zero(&mut self, counters: NewEpoch) {
        self.outcome.new_epochs.push(counters);
    }

    fn warn(&mut self, layers: &Layers<'_>, limit: &Limit) {
        let quota = limit.rule.quota();
        if let Rule::SlidingLog { .. } = limit.rule
            && quota > SLIDING_LOG_QUIET
        {
            let layer = layers.merge().origin_of(Field::Quota);
            let path = layers.path(layer.unwrap_or(Layer::Base));
            self.warning(format!(
                "{path}: a sliding_log keeps every call of its window, here up to {quota} calls per \
                 key at some 32 bytes each; sliding_window needs no more than two counters"
            ));
        }
    }

    fn warn_of_ends(&mut self, path: &FieldPath, item: &TenantLimit) {
        for (key, spec) in &item.keys {
            if spec.expires_at.is_some_and(|end| end <= self.at) {
                let path = path.with("keys").with(key.as_str());
                self.warning(format!("{path}: has ended already and changes nothing"));
            }
        }
    }

    fn warning(&mut self, text: String) {
        if self.outcome.warnings.len() < FAULTS_MAX && !self.outcome.warnings.contains(&text) {
            self.outcome.warnings.push(text);
        }
    }
}
