//! The catalogue as its users see it: documents and entries in, views and refusals out.

mod changes;
mod epochs;
mod laws;
mod layering;
mod scale;
mod tenants;
mod tokens;
mod validation;

use serde_json::Value;

use crate::catalogue::Catalogue;
use crate::catalogue::change::Applied;
use crate::catalogue::change::Author;
use crate::catalogue::change::Change;
use crate::catalogue::change::Entry;
use crate::catalogue::change::FieldError;
use crate::catalogue::change::Refused;
use crate::catalogue::document;
use crate::catalogue::path::FieldPath;
use crate::catalogue::tree::KeySpec;
use crate::catalogue::view::LimitView;
use crate::domain::limit::LimitSpec;
use crate::domain::name::Key;
use crate::domain::name::LimitName;
use crate::domain::name::PlanName;
use crate::domain::name::TenantName;
use crate::domain::time::Timestamp;

/// A catalogue, the index of its last entry and the time.
pub struct Fixture {
    pub catalogue: Catalogue,
    pub index: u64,
    pub now: Timestamp,
}

impl Fixture {
    /// An empty catalogue on 29 November 2026.
    pub fn empty() -> Self {
        Self {
            catalogue: Catalogue::new(),
            index: 0,
            now: Timestamp::from_unix_ms(1_796_000_000_000),
        }
    }

    /// The catalogue that `document` describes, at version 1.
    pub fn with(document: &Value) -> Self {
        let mut fixture = Self::empty();
        fixture.replace(document).expect("a good catalogue");
        fixture
    }

    pub fn apply(&mut self, author: Author, change: Change) -> Result<Applied, Refused> {
        self.apply_at(author, None, change)
    }

    pub fn apply_at(
        &mut self,
        author: Author,
        expected_version: Option<u64>,
        change: Change,
    ) -> Result<Applied, Refused> {
        self.index += 1;
        let before = self.catalogue.clone();
        let entry = Entry {
            author,
            expected_version,
            change,
        };
        let result = self.catalogue.apply(self.index, self.now, &entry);
        if result.is_err() {
            assert_eq!(self.catalogue, before, "a refused entry changes nothing");
            assert_eq!(
                self.catalogue.view(),
                before.view(),
                "a refused entry changes no view"
            );
        }
        result
    }

    /// By an administrator.
    pub fn change(&mut self, change: Change) -> Result<Applied, Refused> {
        self.apply(operator(), change)
    }

    pub fn replace(&mut self, document: &Value) -> Result<Applied, Refused> {
        let tree = document::read_tree(document).map_err(Refused::Invalid)?;
        self.change(Change::Replace { tree })
    }

    pub fn patch(&mut self, document: &Value) -> Result<Applied, Refused> {
        let tree = document::read_tree(document).map_err(Refused::Invalid)?;
        self.change(Change::Patch { tree })
    }

    pub fn put_limit(&mut self, name: &str, spec: &Value) -> Result<Applied, Refused> {
        self.change(Change::PutLimit {
            limit: limit(name),
            spec: spec_of(spec),
        })
    }

    pub fn reset(&mut self, of: &str, name: &str, key: Option<&str>) -> Result<Applied, Refused> {
        let key = key.map(|key| Key::new(key).expect("a key"));
        self.change(Change::Reset {
            tenant: tenant(of),
            limit: limit(name),
            key,
        })
    }

    /// A limit of a tenant as it is in force.
    #[track_caller]
    pub fn limit(&self, of: &str, name: &str) -> &LimitView {
        let view = self.catalogue.view().tenant(of).expect("a tenant");
        view.limit(name).expect("a limit")
    }

    #[track_caller]
    pub fn epoch(&self, of: &str, name: &str) -> u64 {
        self.limit(of, name).epoch
    }

    #[track_caller]
    pub fn quota(&self, of: &str, name: &str) -> u64 {
        self.limit(of, name).limit.rule.quota()
    }

    #[track_caller]
    pub fn key_quota(&self, of: &str, name: &str, key: &str) -> u64 {
        self.limit(of, name).at(key, self.now).0.rule.quota()
    }

    /// The catalogue after it was written and read again.
    pub fn reread(&self) -> Catalogue {
        let json = serde_json::to_string(&self.catalogue).expect("json");
        serde_json::from_str(&json).expect("a catalogue")
    }
}

pub fn operator() -> Author {
    Author::Operator {
        token: "config".to_owned(),
    }
}

pub fn tenant_author(name: &str) -> Author {
    Author::Tenant {
        tenant: tenant(name),
        token: "t1".to_owned(),
    }
}

pub fn limit(name: &str) -> LimitName {
    LimitName::new(name).expect("a limit's name")
}

pub fn tenant(name: &str) -> TenantName {
    TenantName::new(name).expect("a tenant's name")
}

pub fn plan(name: &str) -> PlanName {
    PlanName::new(name).expect("a plan's name")
}

pub fn spec_of(spec: &Value) -> LimitSpec {
    document::read_limit(&FieldPath::root(), spec).expect("a limit")
}

pub fn override_of(spec: &Value) -> KeySpec {
    document::read_override(&FieldPath::root(), spec).expect("an override")
}

/// The faults that a change is refused for.
#[track_caller]
pub fn faults(result: Result<Applied, Refused>) -> Vec<FieldError> {
    match result {
        Err(Refused::Invalid(faults)) => faults,
        other => panic!("expected faults, got {other:?}"),
    }
}

/// The only fault that a change is refused for, as `path: message`.
#[track_caller]
pub fn fault(result: Result<Applied, Refused>) -> String {
    let faults = faults(result);
    assert_eq!(faults.len(), 1, "{faults:?}");
    faults.first().map(ToString::to_string).unwrap_or_default()
}
