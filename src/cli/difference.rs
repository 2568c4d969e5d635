//! What a catalogue file changes, and the catalogue that it leaves: pure functions of two documents.
//!
//! A file names items; an item that it names is replaced as a whole (a limit of all tenants, of a plan or
//! of a tenant, the override of a key), everything else stays. With pruning, limits, plans and
//! profiles that the file does not name go; tenants never do.

use std::collections::BTreeSet;
use std::fmt;

use serde_json::Map;
use serde_json::Value;

use crate::domain::duration;
use crate::region::config::document::join_path;
use crate::region::config::document::quote_key;

/// Fields of a limit that make its shape: another value starts its use from zero.
const SHAPE: [&str; 10] = [
    "algorithm",
    "window",
    "period",
    "every",
    "anchor",
    "time_zone",
    "per",
    "ttl",
    "key",
    "mode",
];
/// Fields of a tenant that are not limits.
const TENANT_FIELDS: [&str; 3] = ["plan", "time_zone", "anchor"];

/// One difference.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// Which item or field.
    pub path: Vec<String>,
    /// Its value on the server.
    pub before: Option<Value>,
    /// Its value by the file.
    pub after: Option<Value>,
    /// What the difference does to use that was counted.
    pub note: &'static str,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = join_path(&self.path);
        match (&self.before, &self.after) {
            (None, Some(after)) => write!(f, "+ {path} = {}", inline(after))?,
            (Some(before), None) => write!(f, "- {path} = {}", inline(before))?,
            (Some(before), Some(after)) => {
                write!(f, "~ {path}: {} -> {}", inline(before), inline(after))?;
            }
            (None, None) => write!(f, "  {path}")?,
        }
        if !self.note.is_empty() {
            write!(f, "  ({})", self.note)?;
        }
        Ok(())
    }
}

const FROM_ZERO: &str = "use starts from zero";
const CALENDAR_FROM_ZERO: &str = "use of the tenant's calendar limits starts from zero";

/// A value as TOML writes it on one line.
fn inline(value: &Value) -> String {
    match value {
        Value::Object(members) if members.is_empty() => "{}".to_owned(),
        Value::Object(members) => {
            let pair = |(name, value): (&String, &Value)| {
                format!("{} = {}", quote_key(name), inline(value))
            };
            format!(
                "{{ {} }}",
                members.iter().map(pair).collect::<Vec<_>>().join(", ")
            )
        }
        Value::Array(items) => format!(
            "[{}]",
            items.iter().map(inline).collect::<Vec<_>>().join(", ")
        ),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.to_string(),
    }
}

/// What the document `file` changes in the document `server`.
pub fn differences(file: &Value, server: &Value, prune: bool) -> Vec<Difference> {
    let mut found = Found::default();
    found.field(&[], "default_plan", file, server, "");
    for domain in names(file.get("domains")) {
        let part = |whole: &Value| whole.get("domains").cloned().unwrap_or_default();
        found.field(&["domains"], domain, &part(file), &part(server), "");
    }
    found.limits(&["limits"], file.get("limits"), server.get("limits"), prune);
    found.plans(file, server, prune);
    found.tenants(file, server);
    found.profiles(file.get("profiles"), server.get("profiles"), prune);
    found.0
}

#[derive(Default)]
struct Found(Vec<Difference>);

impl Found {
    fn push(
        &mut self,
        path: &[&str],
        before: Option<&Value>,
        after: Option<&Value>,
        note: &'static str,
    ) {
        self.0.push(Difference {
            path: path.iter().map(|part| (*part).to_owned()).collect(),
            before: before.cloned(),
            after: after.cloned(),
            note,
        });
    }

    /// A field that the file may leave out, which then stays.
    fn field(
        &mut self,
        path: &[&str],
        name: &str,
        file: &Value,
        server: &Value,
        note: &'static str,
    ) {
        let (after, before) = (file.get(name), server.get(name));
        if after.is_some() && !same(name, before, after) {
            let path: Vec<&str> = path.iter().copied().chain([name]).collect();
            self.push(&path, before, after, note);
        }
    }

    /// Limits by name. Those that only the server has are differences when pruning.
    fn limits(&mut self, path: &[&str], file: Option<&Value>, server: Option<&Value>, prune: bool) {
        for name in names(file) {
            let path: Vec<&str> = path.iter().copied().chain([name]).collect();
            self.item(&path, member(file, name), member(server, name));
        }
        if prune {
            self.only_on_server(path, file, server);
        }
    }

    fn only_on_server(&mut self, path: &[&str], file: Option<&Value>, server: Option<&Value>) {
        let named: BTreeSet<&str> = names(file).collect();
        for name in names(server).filter(|name| !named.contains(name)) {
            let path: Vec<&str> = path.iter().copied().chain([name]).collect();
            self.push(&path, member(server, name), None, "");
        }
    }

    /// An item that the file replaces as a whole, told field by field when both have it. The overrides in
    /// `keys` are items of their own, and what the tenant has chosen itself stays.
    fn item(&mut self, path: &[&str], file: Option<&Value>, server: Option<&Value>) {
        let (Some(after), Some(before)) = (file, server) else {
            self.push(path, server, file, "");
            return;
        };
        let fields: BTreeSet<&str> = names(file).chain(names(server)).collect();
        for field in fields
            .into_iter()
            .filter(|field| !matches!(*field, "keys" | "own"))
        {
            let (before, after) = (before.get(field), after.get(field));
            if !same(field, before, after) {
                let path: Vec<&str> = path.iter().copied().chain([field]).collect();
                let note = if SHAPE.contains(&field) {
                    FROM_ZERO
                } else {
                    ""
                };
                self.push(&path, before, after, note);
            }
        }
        let (file_keys, server_keys) = (after.get("keys"), before.get("keys"));
        for key in names(file_keys) {
            let path: Vec<&str> = path.iter().copied().chain(["keys", key]).collect();
            self.item(&path, member(file_keys, key), member(server_keys, key));
        }
    }

    fn plans(&mut self, file: &Value, server: &Value, prune: bool) {
        let (file, server) = (file.get("plans"), server.get("plans"));
        for name in names(file) {
            let (after, before) = (member(file, name), member(server, name));
            if before.is_none() {
                self.push(&["plans", name], None, after, "");
                continue;
            }
            let limits = |plan: Option<&Value>| plan.and_then(|plan| plan.get("limits")).cloned();
            self.limits(
                &["plans", name, "limits"],
                limits(after).as_ref(),
                limits(before).as_ref(),
                prune,
            );
        }
        if prune {
            self.only_on_server(&["plans"], file, server);
        }
    }

    /// Gateway profiles, told field by field; no use hangs on them.
    fn profiles(&mut self, file: Option<&Value>, server: Option<&Value>, prune: bool) {
        for name in names(file) {
            let (after, before) = (member(file, name), member(server, name));
            if before.is_none() {
                self.push(&["profiles", name], None, after, "");
                continue;
            }
            let fields: BTreeSet<&str> = names(after).chain(names(before)).collect();
            for field in fields {
                let (before, after) = (member(before, field), member(after, field));
                if !same(field, before, after) {
                    self.push(&["profiles", name, field], before, after, "");
                }
            }
        }
        if prune {
            self.only_on_server(&["profiles"], file, server);
        }
    }

    fn tenants(&mut self, file: &Value, server: &Value) {
        let (file, server) = (file.get("tenants"), server.get("tenants"));
        for name in names(file) {
            let (Some(after), before) = (member(file, name), member(server, name)) else {
                continue;
            };
            let Some(before) = before else {
                self.push(&["tenants", name], None, Some(after), "");
                continue;
            };
            for field in TENANT_FIELDS {
                let note = if field == "plan" {
                    ""
                } else {
                    CALENDAR_FROM_ZERO
                };
                self.field(&["tenants", name], field, after, before, note);
            }
            self.limits(
                &["tenants", name, "limits"],
                after.get("limits"),
                before.get("limits"),
                false,
            );
        }
    }
}

fn names(object: Option<&Value>) -> impl Iterator<Item = &str> {
    object
        .and_then(Value::as_object)
        .into_iter()
        .flat_map(Map::keys)
        .map(String::as_str)
}

fn member<'a>(object: Option<&'a Value>, name: &str) -> Option<&'a Value> {
    object.and_then(|object| object.get(name))
}

/// Whether two values of the field `name` mean the same, however they are written.
fn same(name: &str, before: Option<&Value>, after: Option<&Value>) -> bool {
    let meaning = |value: Option<&Value>| value.map(|value| normal(name, value));
    meaning(before) == meaning(after)
}

/// The one form of a value that can be written in several.
fn normal(name: &str, value: &Value) -> Value {
    match (name, value) {
        ("window" | "per" | "ttl", Value::String(text)) => duration::parse(text).map_or_else(
            |_| value.clone(),
            |span| Value::from(duration::format(span)),
        ),
        ("anchor", Value::String(text)) => text
            .parse::<jiff::civil::DateTime>()
            .map_or_else(|_| value.clone(), |at| Value::from(at.to_string())),
        ("expires_at", Value::String(text)) => text
            .parse::<jiff::Timestamp>()
            .map_or_else(|_| value.clone(), |at| Value::from(at.to_string())),
        ("actions" | "always_allow", Value::Array(items)) => {
            let sorted: BTreeSet<String> = items.iter().map(Value::to_string).collect();
            sorted.into_iter().map(Value::from).collect()
        }
        _ => value.clone(),
    }
}

/// The whole catalogue after `file` was applied to `server` with pruning: the file's limits, plans and
/// profiles alone, and all tenants, changed as the file says.
pub fn pruned(file: &Value, server: &Value) -> Value {
    let empty = || Value::Object(Map::new());
    let part = |name: &str| file.get(name).cloned().unwrap_or_else(empty);
    let mut whole = Map::new();
    if let Some(plan) = file
        .get("default_plan")
        .or_else(|| server.get("default_plan"))
    {
        whole.insert("default_plan".to_owned(), plan.clone());
    }
    // Like tenants, domains that the file does not name stay.
    let mut domains = server.get("domains").cloned().unwrap_or_else(empty);
    match (file.get("domains"), domains.as_object_mut()) {
        (Some(Value::Object(named)), Some(domains)) => domains.extend(named.clone()),
        (Some(wrong), _) => domains = wrong.clone(),
        (None, _) => {}
    }
    if domains
        .as_object()
        .is_none_or(|domains| !domains.is_empty())
    {
        whole.insert("domains".to_owned(), domains);
    }
    whole.insert("limits".to_owned(), part("limits"));
    whole.insert("plans".to_owned(), part("plans"));
    let mut tenants = server.get("tenants").cloned().unwrap_or_else(empty);
    if let Some(wrong) = file.get("tenants").filter(|tenants| !tenants.is_object()) {
        tenants = wrong.clone();
    }
    for name in names(file.get("tenants")) {
        let named = member(file.get("tenants"), name)
            .cloned()
            .unwrap_or_else(empty);
        tenants[name] = match tenants.get(name) {
            Some(before) => merged_tenant(before, &named),
            None => named,
        };
    }
    whole.insert("tenants".to_owned(), tenants);
    // What a newer file may name at the top is the server's to judge, not dropped here.
    for (name, value) in file.as_object().into_iter().flatten() {
        whole.entry(name.clone()).or_insert_with(|| value.clone());
    }
    Value::Object(whole)
}

/// A tenant after its fields and limits in the file were applied: fields and limits that are named are
/// replaced, the overrides and own choices of a limit stay unless they are named.
fn merged_tenant(before: &Value, named: &Value) -> Value {
    if !named.is_object() || !before.is_object() {
        return named.clone();
    }
    let mut tenant = before.clone();
    for (field, value) in named.as_object().into_iter().flatten() {
        if field != "limits" {
            tenant[field.as_str()] = value.clone();
            continue;
        }
        for limit in names(Some(value)) {
            let before = member(tenant.get("limits"), limit)
                .cloned()
                .unwrap_or(Value::Null);
            let after = member(Some(value), limit).cloned().unwrap_or(Value::Null);
            tenant["limits"][limit] = merged_limit(&before, &after);
        }
    }
    tenant
}

fn merged_limit(before: &Value, named: &Value) -> Value {
    if !named.is_object() {
        return named.clone();
    }
    let mut limit = named.clone();
    if let Some(own) = before.get("own").filter(|_| limit.get("own").is_none()) {
        limit["own"] = own.clone();
    }
    for key in names(before.get("keys")) {
        if member(named.get("keys"), key).is_none() {
            limit["keys"][key] = before["keys"][key].clone();
        }
    }
    limit
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn told(file: &Value, server: &Value, prune: bool) -> Vec<String> {
        differences(file, server, prune)
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    fn server() -> Value {
        json!({
            "default_plan": "free",
            "limits": {
                "exports": { "algorithm": "fixed_window", "quota": 10, "window": "1m", "enforce": false },
                "old": { "quota": 1, "window": "1s", "algorithm": "fixed_window" },
            },
            "plans": { "free": { "limits": {} }, "pro": { "limits": { "exports": { "quota": 500 } } }, "gone": { "limits": {} } },
            "tenants": {
                "acme": {
                    "plan": "free",
                    "limits": { "exports": {
                        "quota": 20,
                        "keys": { "a": { "quota": 1 }, "b": { "quota": 2, "expires_at": "2027-01-01T00:00:00Z" } },
                        "own": { "quota": 15 },
                    } },
                },
                "other": { "plan": "pro" },
            },
        })
    }

    #[test]
    fn the_same_catalogue_written_otherwise_does_not_differ() {
        assert!(told(&server(), &server(), true).is_empty());
        let file = json!({
            "limits": { "exports": { "window": "60s", "quota": 10, "algorithm": "fixed_window", "enforce": false } },
            "tenants": { "acme": { "limits": { "exports": {
                "quota": 20, "keys": { "b": { "quota": 2, "expires_at": "2027-01-01T01:00:00+01:00" } },
            } } } },
        });
        assert!(told(&file, &server(), false).is_empty());
        assert!(told(&json!({}), &server(), false).is_empty());
    }

    #[test]
    fn differences_are_told_field_by_field_with_what_starts_from_zero() {
        let file = json!({
            "default_plan": "pro",
            "limits": {
                "exports": { "algorithm": "sliding_window", "quota": 11, "window": "1m" },
                "new": { "quota": 1, "window": "1s", "algorithm": "fixed_window" },
            },
            "plans": { "pro": { "limits": { "exports": { "quota": 600 } } }, "max": {} },
            "tenants": {
                "acme": { "plan": "pro", "time_zone": "Asia/Kolkata", "limits": { "exports": {
                    "quota": 20, "keys": { "a": { "quota": 5 }, "c d": { "unlimited": true } },
                } } },
                "fresh": { "plan": "pro" },
            },
        });
        assert_eq!(
            told(&file, &server(), false),
            [
                "~ default_plan: \"free\" -> \"pro\"",
                "~ limits.exports.algorithm: \"fixed_window\" -> \"sliding_window\"  (use starts from zero)",
                "- limits.exports.enforce = false",
                "~ limits.exports.quota: 10 -> 11",
                "+ limits.new = { algorithm = \"fixed_window\", quota = 1, window = \"1s\" }",
                "+ plans.max = {}",
                "~ plans.pro.limits.exports.quota: 500 -> 600",
                "~ tenants.acme.plan: \"free\" -> \"pro\"",
                "+ tenants.acme.time_zone = \"Asia/Kolkata\"  (use of the tenant's calendar limits starts from zero)",
                "~ tenants.acme.limits.exports.keys.a.quota: 1 -> 5",
                "+ tenants.acme.limits.exports.keys.\"c d\" = { unlimited = true }",
                "+ tenants.fresh = { plan = \"pro\" }",
            ]
        );
    }

    #[test]
    fn pruning_takes_limits_and_plans_that_the_file_does_not_name_and_no_tenants() {
        let file = json!({
            "limits": { "exports": server()["limits"]["exports"] },
            "plans": { "free": {}, "pro": {} },
        });
        assert_eq!(
            told(&file, &server(), true),
            [
                "- limits.old = { algorithm = \"fixed_window\", quota = 1, window = \"1s\" }",
                "- plans.pro.limits.exports = { quota = 500 }",
                "- plans.gone = { limits = {} }",
            ]
        );
    }

    #[test]
    fn the_pruned_catalogue_keeps_tenants_overrides_and_own_choices() {
        let file = json!({
            "limits": { "exports": { "quota": 1 } },
            "tenants": {
                "acme": { "plan": "pro", "limits": { "exports": { "quota": 30, "keys": { "a": { "quota": 9 } } }, "api": { "quota": 1 } } },
                "fresh": { "plan": "pro" },
            },
            "surprise": 1,
        });
        let expected = json!({
            "default_plan": "free",
            "limits": { "exports": { "quota": 1 } },
            "plans": {},
            "tenants": {
                "acme": { "plan": "pro", "limits": {
                    "exports": {
                        "quota": 30,
                        "keys": { "a": { "quota": 9 }, "b": { "quota": 2, "expires_at": "2027-01-01T00:00:00Z" } },
                        "own": { "quota": 15 },
                    },
                    "api": { "quota": 1 },
                } },
                "fresh": { "plan": "pro" },
                "other": { "plan": "pro" },
            },
            "surprise": 1,
        });
        assert_eq!(pruned(&file, &server()), expected);
    }

    #[test]
    fn values_of_the_wrong_kind_are_left_for_the_server_to_refuse() {
        let wrong = [
            json!({ "tenants": 5 }),
            json!({ "tenants": { "acme": 5 } }),
            json!({ "tenants": { "acme": { "limits": { "exports": 5 } } } }),
            json!({ "limits": 5, "plans": [] }),
        ];
        for file in wrong {
            let whole = pruned(&file, &server());
            assert!(whole.to_string().contains('5'), "{whole}");
            differences(&file, &server(), true);
        }
    }
}
