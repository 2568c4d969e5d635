//! Reads parts of the catalogue from JSON and tells every fault with the path of its field.
//!
//! Serde alone stops at the first fault and does not say where it was. Here a part is given to serde as a
//! whole, and only when that fails is it read field by field to find what is wrong.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Map;
use serde_json::Value;

use crate::catalogue::change::FAULTS_MAX;
use crate::catalogue::change::FieldError;
use crate::catalogue::path::FieldPath;
use crate::catalogue::profile::Profile;
use crate::catalogue::tree::KeySpec;
use crate::catalogue::tree::OwnLimit;
use crate::catalogue::tree::Plan;
use crate::catalogue::tree::Tenant;
use crate::catalogue::tree::TenantLimit;
use crate::catalogue::tree::Tree;
use crate::domain::limit::LimitSpec;

/// Reads a whole catalogue, or the part of one that a PATCH names.
///
/// # Errors
/// Every fault, at most [`FAULTS_MAX`].
pub fn read_tree(value: &Value) -> Result<Tree, Vec<FieldError>> {
    Reader::read(&FieldPath::root(), value, Reader::tree)
}

/// Reads a limit that stands at `path`.
///
/// # Errors
/// Every fault, at most [`FAULTS_MAX`].
pub fn read_limit(path: &FieldPath, value: &Value) -> Result<LimitSpec, Vec<FieldError>> {
    Reader::read(path, value, Reader::flat)
}

/// Reads a plan that stands at `path`.
///
/// # Errors
/// Every fault, at most [`FAULTS_MAX`].
pub fn read_plan(path: &FieldPath, value: &Value) -> Result<Plan, Vec<FieldError>> {
    Reader::read(path, value, Reader::plan)
}

/// Reads a tenant that stands at `path`.
///
/// # Errors
/// Every fault, at most [`FAULTS_MAX`].
pub fn read_tenant(path: &FieldPath, value: &Value) -> Result<Tenant, Vec<FieldError>> {
    Reader::read(path, value, Reader::tenant)
}

/// Reads a gateway profile that stands at `path`.
///
/// # Errors
/// Every fault, at most [`FAULTS_MAX`].
pub fn read_profile(path: &FieldPath, value: &Value) -> Result<Profile, Vec<FieldError>> {
    Reader::read(path, value, Reader::flat)
}

/// Reads the override of one key that stands at `path`.
///
/// # Errors
/// Every fault, at most [`FAULTS_MAX`].
pub fn read_override(path: &FieldPath, value: &Value) -> Result<KeySpec, Vec<FieldError>> {
    Reader::read(path, value, Reader::flat)
}

/// Collects faults. Each method answers `None` when it has found at least one.
#[derive(Default)]
struct Reader {
    faults: Vec<FieldError>,
}

impl Reader {
    fn read<T>(
        path: &FieldPath,
        value: &Value,
        part: impl FnOnce(&mut Self, &FieldPath, &Value) -> Option<T>,
    ) -> Result<T, Vec<FieldError>> {
        let mut reader = Self::default();
        match part(&mut reader, path, value) {
            Some(whole) if reader.faults.is_empty() => Ok(whole),
            _ => Err(reader.faults),
        }
    }

    fn fault(&mut self, path: &FieldPath, message: impl Into<String>) {
        if self.faults.len() < FAULTS_MAX {
            self.faults.push(FieldError::new(path, message));
        }
    }

    fn object<'v>(&mut self, path: &FieldPath, value: &'v Value) -> Option<&'v Map<String, Value>> {
        let object = value.as_object();
        if object.is_none() {
            self.fault(
                path,
                format!("must be a table of fields, not {}", kind(value)),
            );
        }
        object
    }

    fn tree(&mut self, path: &FieldPath, value: &Value) -> Option<Tree> {
        let fields = self.object(path, value)?;
        self.only(
            path,
            fields,
            &[
                "default_plan",
                "domains",
                "limits",
                "plans",
                "profiles",
                "tenants",
            ],
        );
        Some(Tree {
            default_plan: self.scalar(path, fields, "default_plan"),
            domains: self.table(path, fields, "domains", Self::text),
            limits: self.table(path, fields, "limits", Self::flat),
            plans: self.table(path, fields, "plans", Self::plan),
            tenants: self.table(path, fields, "tenants", |reader, path, value| {
                reader.tenant(path, value).map(Arc::new)
            }),
            profiles: self.table(path, fields, "profiles", Self::flat),
        })
    }

    fn plan(&mut self, path: &FieldPath, value: &Value) -> Option<Plan> {
        let fields = self.object(path, value)?;
        self.only(path, fields, &["limits"]);
        Some(Plan {
            limits: self.table(path, fields, "limits", Self::flat),
        })
    }

    fn tenant(&mut self, path: &FieldPath, value: &Value) -> Option<Tenant> {
        let fields = self.object(path, value)?;
        self.only(path, fields, &["plan", "time_zone", "anchor", "limits"]);
        Some(Tenant {
            plan: self.scalar(path, fields, "plan"),
            time_zone: self.scalar(path, fields, "time_zone"),
            anchor: self.scalar(path, fields, "anchor"),
            limits: self.table(path, fields, "limits", |reader, path, value| {
                reader.tenant_limit(path, value).map(Arc::new)
            }),
        })
    }

    fn tenant_limit(&mut self, path: &FieldPath, value: &Value) -> Option<TenantLimit> {
        let fields = self.object(path, value)?;
        let keys = self.table(path, fields, "keys", Self::flat);
        let own = match fields.get("own") {
            None | Some(Value::Null) => Some(OwnLimit::default()),
            Some(own) => self.own(&path.with("own"), own),
        };
        let mut spec = fields.clone();
        spec.remove("keys");
        spec.remove("own");
        let spec = self.flat(path, &Value::Object(spec))?;
        Some(TenantLimit {
            spec,
            keys,
            own: own?,
        })
    }

    fn own(&mut self, path: &FieldPath, value: &Value) -> Option<OwnLimit> {
        let fields = self.object(path, value)?;
        let keys = self.table(path, fields, "keys", Self::flat);
        let mut amounts = fields.clone();
        amounts.remove("keys");
        let amounts: OwnLimit = self.flat(path, &Value::Object(amounts))?;
        Some(OwnLimit { keys, ..amounts })
    }

    /// A table of plain fields.
    fn flat<T: for<'de> Deserialize<'de>>(&mut self, path: &FieldPath, value: &Value) -> Option<T> {
        let fields = self.object(path, value)?;
        let error = match T::deserialize(value) {
            Ok(part) => return Some(part),
            Err(error) => error,
        };
        let before = self.faults.len();
        for (name, value) in fields {
            let mut alone = Map::new();
            alone.insert(name.clone(), value.clone());
            if let Err(error) = T::deserialize(&Value::Object(alone)) {
                self.fault(&path.with(name), error.to_string());
            }
        }
        if self.faults.len() == before {
            self.fault(path, error.to_string());
        }
        None
    }

    fn text<T: FromStr<Err: ToString>>(&mut self, path: &FieldPath, value: &Value) -> Option<T> {
        let read = match value {
            Value::String(text) => T::from_str(text).map_err(|error| error.to_string()),
            value => Err(format!("must be a text, not {}", kind(value))),
        };
        match read {
            Ok(value) => Some(value),
            Err(message) => {
                self.fault(path, message);
                None
            }
        }
    }

    fn scalar<T: for<'de> Deserialize<'de>>(
        &mut self,
        path: &FieldPath,
        fields: &Map<String, Value>,
        name: &str,
    ) -> Option<T> {
        match Option::<T>::deserialize(fields.get(name)?) {
            Ok(value) => value,
            Err(error) => {
                self.fault(&path.with(name), error.to_string());
                None
            }
        }
    }

    fn table<K: FromStr<Err: ToString> + Ord, V>(
        &mut self,
        path: &FieldPath,
        fields: &Map<String, Value>,
        name: &str,
        mut part: impl FnMut(&mut Self, &FieldPath, &Value) -> Option<V>,
    ) -> BTreeMap<K, V> {
        let path = path.with(name);
        let mut table = BTreeMap::new();
        let Some(entries) = fields.get(name).filter(|value| !value.is_null()) else {
            return table;
        };
        for (name, value) in self.object(&path, entries).into_iter().flatten() {
            let path = path.with(name);
            match K::from_str(name) {
                Ok(key) => {
                    if let Some(value) = part(self, &path, value) {
                        table.insert(key, value);
                    }
                }
                Err(error) => self.fault(&path, error.to_string()),
            }
        }
        table
    }

    fn only(&mut self, path: &FieldPath, fields: &Map<String, Value>, known: &[&str]) {
        for name in fields.keys().filter(|name| !known.contains(&name.as_str())) {
            let message = format!("unknown field; here may stand {}", known.join(", "));
            self.fault(&path.with(name), message);
        }
    }
}

const fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a table",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn paths(value: &Value) -> Vec<String> {
        read_tree(value)
            .expect_err("faults")
            .into_iter()
            .map(|fault| fault.path)
            .collect()
    }

    #[test]
    fn every_fault_is_told_with_its_path() {
        let tree = json!({
            "default_plan": 7,
            "limit": {},
            "domains": { "": "acme", "a": 7, "b": "." },
            "limits": {
                "Bad Name": { "quota": 1 },
                "api": { "quota": -1, "window": "soon", "mode": "global", "qouta": 3 },
            },
            "plans": { "pro": { "limits": { "api": { "quota": "many" } }, "tier": 1 } },
            "tenants": {
                "acme": {
                    "anchor": "yesterday",
                    "limits": { "api": {
                        "per": 7,
                        "keys": { "": {}, "k.1": { "quota": 1.5, "expires_at": "never" } },
                        "own": { "window": "1s" },
                    } },
                },
                "b": [],
            },
        });
        let mut found = paths(&tree);
        found.sort();
        assert_eq!(
            found,
            [
                "default_plan",
                "domains.\"\"",
                "domains.a",
                "domains.b",
                "limit",
                r#"limits."Bad Name""#,
                "limits.api.mode",
                "limits.api.qouta",
                "limits.api.quota",
                "limits.api.window",
                "plans.pro.limits.api.quota",
                "plans.pro.tier",
                "tenants.acme.anchor",
                r#"tenants.acme.limits.api.keys."""#,
                r#"tenants.acme.limits.api.keys."k.1".expires_at"#,
                r#"tenants.acme.limits.api.keys."k.1".quota"#,
                "tenants.acme.limits.api.own.window",
                "tenants.acme.limits.api.per",
                "tenants.b",
            ]
        );
    }

    #[test]
    fn anything_but_a_table_is_refused() {
        for value in [
            json!(null),
            json!([]),
            json!("x"),
            json!(1),
            json!({ "limits": [] }),
        ] {
            assert_eq!(paths(&value).len(), 1, "{value}");
        }
    }

    #[test]
    fn faults_are_bounded() {
        let limits: Map<String, Value> = (0..1_000)
            .map(|i| (format!("l{i}"), json!({ "x": 1 })))
            .collect();
        assert_eq!(paths(&json!({ "limits": limits })).len(), FAULTS_MAX);
    }

    #[test]
    fn what_was_written_is_read_back() {
        let tree = json!({
            "default_plan": "free",
            "domains": { "edge": "acme" },
            "limits": { "api": { "algorithm": "fixed_window", "quota": 1, "window": "1m" } },
            "plans": { "free": { "limits": {} } },
            "tenants": { "acme": {
                "plan": "free", "time_zone": "UTC", "anchor": "2026-01-31T00:00:00",
                "limits": { "api": { "quota": 2, "keys": { "k": { "unlimited": true } } } },
            } },
        });
        let read = read_tree(&tree).expect("a catalogue");
        assert_eq!(serde_json::to_value(&read).expect("json"), tree);
        assert_eq!(
            serde_json::from_value::<Tree>(tree).expect("a catalogue"),
            read
        );
    }

    #[test]
    fn null_is_as_absent() {
        let tree = json!({ "default_plan": null, "limits": null, "plans": {} });
        assert_eq!(read_tree(&tree), Ok(Tree::default()));
    }
}
