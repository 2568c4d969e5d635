//! The catalogue: which limits every tenant has, as a pure state machine fed by the log.
//!
//! ```text
//!   Entry (author, expected version, change)
//!     │ intent   who may do this, what must be there      ─► Refused::{Forbidden, NotFound, InUse, …}
//!     ▼
//!   Draft        the parts that would differ              ─► Refused::Invalid (values: check)
//!     │ rebuild  base < plan < tenant < own < key,
//!     ▼          compile, epochs                          ─► Refused::Invalid (limits: effective)
//!   Outcome
//!     │ install  cannot fail
//!     ▼
//!   Tree (the document) + Epochs + tokens ─► View (what checks read)
//! ```
//!
//! Invariants:
//! - a refused entry changes nothing (`tests::laws::a_refused_entry_changes_nothing`);
//! - the same entries give the same catalogue, also when it was written and read in between
//!   (`tests::laws::a_snapshot_is_the_whole_catalogue`);
//! - the epoch of a counter only rises (`tests::laws::epochs_only_rise`);
//! - all work is in proportion to what an entry changes, not to the number of tenants.
//!
//! Not here: clocks, files, the network, randomness. Entries come with their index and time.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Deserialize;
use serde::Serialize;
use serde::Serializer;

use crate::catalogue::change::Applied;
use crate::catalogue::change::Change;
use crate::catalogue::change::Entry;
use crate::catalogue::change::FieldError;
use crate::catalogue::change::Refused;
use crate::catalogue::draft::Draft;
use crate::catalogue::effective::Layers;
use crate::catalogue::epoch::Epochs;
use crate::catalogue::epoch::Memory;
use crate::catalogue::intent::Intent;
use crate::catalogue::intern::Interner;
use crate::catalogue::path::FieldPath;
use crate::catalogue::rebuild::Cause;
use crate::catalogue::rebuild::Rebuild;
use crate::catalogue::token::TokenRecord;
use crate::catalogue::token::TokenTable;
use crate::catalogue::tree::Tree;
use crate::catalogue::view::View;
use crate::domain::limit::Limit;
use crate::domain::limit::LimitSpec;
use crate::domain::name::Key;
use crate::domain::name::LimitName;
use crate::domain::name::TenantName;
use crate::domain::time::Timestamp;

pub mod change;
pub mod descriptor;
pub mod document;
pub mod explain;
pub mod intern;
pub mod path;
pub mod profile;
pub mod token;
pub mod tree;
pub mod view;

mod amounts;
mod check;
mod draft;
mod effective;
mod epoch;
mod field;
mod install;
mod intent;
mod rebuild;
mod sharded;
#[cfg(test)]
mod tests;
mod tokens;

/// Whether a key of a limit, or anything, of a tenant is counted at present.
pub type IsCounted<'a> = &'a dyn Fn(&TenantName, Option<(&LimitName, &Key)>) -> bool;

/// A limit that is written in one place, completed as one of `limits`, where so many `regions` share it.
///
/// # Errors
/// Everything that is wrong with it, field by field.
pub fn complete(
    name: &LimitName,
    spec: &LimitSpec,
    regions: u32,
) -> Result<Limit, Vec<FieldError>> {
    let mut faults = Vec::new();
    let path = FieldPath::root().with("limits").with(name.as_str());
    check::limit(&path, spec, &mut faults);
    if !faults.is_empty() {
        return Err(faults);
    }
    let layers = Layers {
        limit: name,
        base: Some(spec),
        plan: None,
        tenant: None,
        time_zone: None,
        anchor: None,
    };
    layers.compile(regions).map(|compiled| compiled.limit)
}

/// See the module.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "Snapshot")]
pub struct Catalogue {
    version: u64,
    tree: Tree,
    epochs: Epochs,
    tokens: BTreeMap<String, TokenRecord>,
    names: Interner,
    /// Among so many a quota is shared where `fallback_quota` is left open. Not part of what is written: whoever
    /// keeps the catalogue knows the regions.
    regions: u32,
    /// Built from all the rest.
    view: Arc<View>,
    /// What is to be forgotten when; built from `epochs`.
    memories: BTreeSet<(Timestamp, Memory)>,
}

/// The catalogue as it is written; the rest is built from it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Snapshot {
    version: u64,
    tree: Tree,
    epochs: Epochs,
    tokens: BTreeMap<String, TokenRecord>,
    names: Interner,
}

#[derive(Serialize)]
struct SnapshotRef<'a> {
    version: u64,
    tree: &'a Tree,
    epochs: &'a Epochs,
    tokens: &'a BTreeMap<String, TokenRecord>,
    names: &'a Interner,
}

impl Serialize for Catalogue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self {
            version,
            tree,
            epochs,
            tokens,
            names,
            ..
        } = self;
        SnapshotRef {
            version: *version,
            tree,
            epochs,
            tokens,
            names,
        }
        .serialize(serializer)
    }
}

impl TryFrom<Snapshot> for Catalogue {
    type Error = Refused;

    fn try_from(snapshot: Snapshot) -> Result<Self, Refused> {
        snapshot.build(1)
    }
}

impl Snapshot {
    /// A snapshot is judged like a change: a build that cannot keep one of its limits says which.
    fn build(self, regions: u32) -> Result<Catalogue, Refused> {
        let snapshot = self;
        let mut catalogue = Catalogue::empty();
        catalogue.regions = regions;
        catalogue.version = snapshot.version;
        catalogue.epochs = snapshot.epochs;
        catalogue.tokens = snapshot.tokens;
        catalogue.names = snapshot.names;
        let nothing = Tree::default();
        let mut draft = Draft::new(&nothing);
        draft.replace(&snapshot.tree);
        draft.check()?;
        let mut rebuild = Rebuild::new(&catalogue, &draft, Cause::Snapshot, Timestamp::EPOCH);
        rebuild.look_at_departed();
        let outcome = rebuild.run().map_err(Refused::Invalid)?;
        let parts = draft.into_parts();
        catalogue.memories = catalogue.epochs.memories();
        catalogue.install_view(outcome);
        let tokens = Arc::new(TokenTable::new(catalogue.tokens.values()));
        Arc::make_mut(&mut catalogue.view).tokens = tokens;
        catalogue.install_parts(parts);
        Ok(catalogue)
    }
}

impl PartialEq for Catalogue {
    /// The rest follows from these.
    fn eq(&self, other: &Self) -> bool {
        self.version == other.version
            && self.tree == other.tree
            && self.epochs == other.epochs
            && self.tokens == other.tokens
            && self.names == other.names
    }
}

impl Default for Catalogue {
    fn default() -> Self {
        Self::new()
    }
}

impl Catalogue {
    /// An empty catalogue at version 0.
    pub fn new() -> Self {
        let mut catalogue = Self::empty();
        let mut view = View::empty();
        view.plans.set(
            None,
            Some(Arc::new(view::TenantView::new(None, true, Vec::new()))),
        );
        catalogue.view = Arc::new(view);
        catalogue
    }

    fn empty() -> Self {
        Self {
            version: 0,
            tree: Tree::default(),
            epochs: Epochs::default(),
            tokens: BTreeMap::new(),
            names: Interner::default(),
            regions: 1,
            view: Arc::new(View::empty()),
            memories: BTreeSet::new(),
        }
    }

    /// Index of the last entry that changed the document or reset a counter.
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// The document.
    pub const fn tree(&self) -> &Tree {
        &self.tree
    }

    /// What checks read.
    pub const fn view(&self) -> &Arc<View> {
        &self.view
    }

    /// All tokens by id, expired ones included.
    pub const fn tokens(&self) -> &BTreeMap<String, TokenRecord> {
        &self.tokens
    }

    /// The numbers of all limit names that were ever used.
    pub const fn names(&self) -> &Interner {
        &self.names
    }

    /// Every limit name that was ever used; its position is its number.
    pub fn limit_names(&self) -> &[LimitName] {
        self.names.names()
    }

    /// Says among how many regions a quota is shared where `fallback_quota` is left open; at least 1. Every
    /// limit is compiled again when the number is another one.
    pub fn set_regions(&mut self, regions: u32) {
        let regions = regions.max(1);
        if regions == self.regions {
            return;
        }
        let snapshot = Snapshot {
            version: self.version,
            tree: self.tree.clone(),
            epochs: self.epochs.clone(),
            tokens: self.tokens.clone(),
            names: self.names.clone(),
        };
        // What was applied once fits again: the number of regions makes no limit valid or invalid.
        if let Ok(catalogue) = snapshot.build(regions) {
            *self = catalogue;
        }
    }

    /// Applies the entry at `index` of the log, written at `at`. Indexes rise from entry to entry.
    ///
    /// # Errors
    /// Then nothing has changed.
    pub fn apply(&mut self, index: u64, at: Timestamp, entry: &Entry) -> Result<Applied, Refused> {
        self.apply_beside(index, at, entry, &|_, _| false)
    }

    /// The same beside a book that tells epochs apart for as long as it counts: `is_counted` says whether it
    /// counts a key of a limit, or anything, of a tenant. Its resets are not forgotten yet then.
    ///
    /// # Errors
    /// Then nothing has changed.
    pub fn apply_beside(
        &mut self,
        index: u64,
        at: Timestamp,
        entry: &Entry,
        is_counted: IsCounted<'_>,
    ) -> Result<Applied, Refused> {
        let intent = Intent {
            catalogue: self,
            author: &entry.author,
            at,
        };
        if let Change::CreateToken { token } = &entry.change {
            intent.authorise(&entry.change)?;
            return self.create_token(at, token);
        }
        if let Change::RevokeToken { id } = &entry.change {
            intent.authorise(&entry.change)?;
            return self.revoke_token(id);
        }
        if let Some(expected) = entry.expected_version
            && expected != self.version
        {
            return Err(Refused::VersionMismatch {
                current: self.version,
            });
        }
        let draft = intent.draft(&entry.change)?;
        let crowded = self.departures_of(&draft) > epoch::REMEMBERED_MAX;
        let mut rebuild = Rebuild::new(self, &draft, Cause::Entry(index), at);
        if crowded {
            rebuild.restart_unknown();
        }
        let outcome = rebuild
            .run()
            .map_err(|faults| refusal_of(&entry.change, faults))?;
        let parts = draft.into_parts();
        self.version = index;
        let applied = self.install(parts, outcome, at, crowded);
        self.forget(at, is_counted);
        Ok(applied)
    }

    /// The layers of a limit of a tenant as they stand, the tenant's own choices left out.
    fn layers<'a>(&'a self, tenant: &'a TenantName, limit: &'a LimitName) -> Layers<'a> {
        let definition = self.tree.tenants.get(tenant);
        let plan = definition.and_then(|tenant| tenant.plan.as_ref());
        let plan = plan.or(self.tree.default_plan.as_ref());
        let of_plan = |plan| Some((plan, self.tree.plans.get(plan)?.limits.get(limit)?));
        let item = definition.and_then(|tenant| tenant.limits.get(limit));
        Layers {
            limit,
            base: self.tree.limits.get(limit),
            plan: plan.and_then(of_plan),
            tenant: item.map(|item| (tenant, &item.spec)),
            time_zone: definition.and_then(|tenant| tenant.time_zone.as_deref()),
            anchor: definition.and_then(|tenant| tenant.anchor),
        }
    }

    /// Whether one more reset can be remembered.
    fn has_room_for_reset(
        &self,
        tenant: &TenantName,
        limit: &LimitName,
        key: Option<&Key>,
    ) -> bool {
        let again = match key {
            Some(key) => {
                let resets = self.epochs.resets_of(tenant, limit);
                resets.is_some_and(|resets| resets.get(key.as_str()).is_some())
            }
            None => {
                self.tree.tenants.contains_key(tenant) || self.epochs.departed.contains_key(tenant)
            }
        };
        again || self.memories.len() < epoch::REMEMBERED_MAX
    }

    /// Unnamed tenants that would have to be remembered.
    fn departures_of(&self, draft: &Draft<'_>) -> usize {
        let deleted = draft
            .tenants
            .values()
            .filter(|change| change.is_none())
            .count();
        self.epochs.departed.len().saturating_add(deleted)
    }
}

/// Deleting a limit that others build on is refused as in use, whatever they lack without it.
fn refusal_of(change: &Change, faults: Vec<FieldError>) -> Refused {
    let Change::DeleteLimit { limit } = change else {
        return Refused::Invalid(faults);
    };
    let users: Vec<&str> = faults
        .iter()
        .take(3)
        .map(|fault| fault.path.as_str())
        .collect();
    Refused::InUse(format!(
        "limit {limit} is needed by {} (and {} more); delete these first",
        users.join(", "),
        faults.len().saturating_sub(users.len()),
    ))
}
