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
use crate::catalogue::change::FAULTS_MAX;
use crate::catalogue::change::FieldError;
use crate::catalogue::change::NewEpoch;
use crate::catalogue::draft::Changed;
use crate::catalogue::draft::Draft;
use crate::catalogue::effective::Layer;
use crate::catalogue::effective::Layers;
use crate::catalogue::epoch::LimitEpochs;
use crate::catalogue::epoch::TenantResets;
use crate::catalogue::epoch::same_shape;
use crate::catalogue::field::Field;
use crate::catalogue::intern::Interner;
use crate::catalogue::intern::LIMIT_NAMES_MAX;
use crate::catalogue::intern::LimitId;
use crate::catalogue::path::FieldPath;
use crate::catalogue::view::LimitView;
use crate::catalogue::view::Slot;
use crate::catalogue::view::TenantView;
use crate::domain::limit::Limit;
use crate::domain::limit::Mode;
use crate::domain::limit::Rule;
use crate::domain::name::CL_THROTTLE;
use crate::domain::name::LimitName;
use crate::domain::name::PlanName;
use crate::domain::name::TenantName;
use crate::domain::time::NANOS_PER_MS;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;

mod tenant;

/// Calls that a sliding log may hold without a word about memory.
const SLIDING_LOG_QUIET: u64 = 100_000;
/// An approximate window is warned about when it is shorter than 20 intervals of telling.
const SHORT_WINDOW: Span = Span::from_seconds(2);
/// How long a charge is unknown to regions 50 ms away: that time and half an interval.
const UNKNOWN_FOR: Span = Span::from_ms(100);

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
    /// Unknown tenants, when they are looked at; `To(None)`: there is no default plan.
    pub unknown: Changed<Option<Arc<TenantView>>>,
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
                unknown: Changed::No,
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
            match layers.compile(self.catalogue.regions) {
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
            if self.catalogue.view.unknown.is_some() {
                self.outcome.unknown = Changed::To(None);
            }
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
        self.outcome.unknown = Changed::To(Some(Arc::new(view)));
    }

    fn tenants_to_look_at(&self) -> BTreeSet<TenantName> {
        let draft = self.draft;
        let mut names: BTreeSet<TenantName> = draft.tenants.keys().cloned().collect();
        names.extend(draft.reset.iter().map(|reset| reset.tenant.clone()));
        names.extend(self.extra.iter().cloned());
        if self.outcome.plans.is_empty() && !self.outcome.unknown.is_changed() {
            return names;
        }
        for (name, slot) in self.catalogue.view.tenants.iter() {
            let Slot::Own(view) = slot else { continue };
            let follows = if view.known {
                self.outcome.plans.contains_key(&view.plan)
            } else {
                self.outcome.unknown.is_changed()
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

    fn intern(&mut self, name: &LimitName) -> Option<LimitId> {
        if *name == CL_THROTTLE {
            let message = "is the limit that CL.THROTTLE counts under, with amounts of each call; choose another name";
            let path = FieldPath::root().with("limits").with(name.as_str());
            self.faults.push(FieldError::new(&path, message));
            return None;
        }
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
        self.warn_of_short_window(layers, limit);
        let quota = limit.rule.quota();
        if let Rule::SlidingLog { .. } = limit.rule
            && quota > SLIDING_LOG_QUIET
        {
            let layer = layers.merge().origin_of(Field::Quota);
            let path = layers.path(layer.unwrap_or(Layer::Base));
            self.warning(format!(
                "{path}: a sliding_log keeps every call of its window in memory, here up to {quota} calls per \
                 key at some 32 bytes each; sliding_window needs no more than two counters"
            ));
        }
    }

    /// A window that is short against the time in which regions hear of each other is shared badly.
    fn warn_of_short_window(&mut self, layers: &Layers<'_>, limit: &Limit) {
        let regions = u64::from(self.catalogue.regions);
        let window = match limit.rule {
            Rule::FixedWindow { window, .. } | Rule::SlidingWindow { window, .. } => window,
            _ => return,
        };
        if limit.mode != Mode::Approximate || window >= SHORT_WINDOW || regions < 2 {
            return;
        }
        // (1 − Σp²)·D·(L + G/2) with even traffic at twice the limit, L = 50 ms, G = 100 ms.
        let quota = u128::from(limit.rule.quota());
        let unknown_ns = u128::from(2 * UNKNOWN_FOR.as_nanos());
        let expected = quota * unknown_ns * u128::from(regions - 1)
            / u128::from(regions)
            / u128::from(window.as_nanos().max(1));
        let layer = layers.merge().origin_of(Field::Window);
        let path = layers.path(layer.unwrap_or(Layer::Base));
        self.warning(format!(
            "{path}: a window of {} ms is short for an approximate limit: regions hear of each other every 100 ms. \
             Units that may pass beyond the quota: (1 - sum of p^2) * D * (L + 50 ms), with p the share of traffic of \
             each region, D the demand and L the time to another region; for {regions} regions 50 ms apart with even \
             traffic at twice the limit up to {expected}",
            window.as_nanos() / NANOS_PER_MS
        ));
    }

    fn warning(&mut self, text: String) {
        if self.outcome.warnings.len() < FAULTS_MAX && !self.outcome.warnings.contains(&text) {
            self.outcome.warnings.push(text);
        }
    }
}
