//! Files of envoyproxy/ratelimit, and what comes of them.

use serde_json::Value;
use serde_json::json;

use crate::catalogue::Catalogue;
use crate::catalogue::change::Author;
use crate::catalogue::change::Change;
use crate::catalogue::change::Entry;
use crate::catalogue::document;
use crate::domain::time::Timestamp;

use super::envoy_ratelimit::Translated;
use super::envoy_ratelimit::translate;

fn translated(text: &str) -> Translated {
    translate(&[("c.yaml".to_owned(), text.to_owned())]).expect("a domain")
}

/// The limits of a tenant of a translated file, which a catalogue must take.
fn limits(translated: &Translated, tenant: &str) -> Value {
    let read: toml::Table = toml::from_str(&translated.toml).expect("TOML");
    let json = serde_json::to_value(read).expect("JSON");
    let tree = document::read_tree(&json).unwrap_or_else(|faults| panic!("{faults:?}"));
    let entry = Entry {
        author: Author::Operator {
            token: "t".to_owned(),
        },
        expected_version: None,
        change: Change::Replace { tree },
    };
    let at = Timestamp::from_unix_ms(1_796_000_000_000);
    let applied = Catalogue::new().apply(1, at, &entry);
    assert!(applied.is_ok(), "{applied:?}\n{}", translated.toml);
    json["tenants"][tenant]["limits"].clone()
}

fn lines(translated: &Translated) -> Vec<String> {
    translated.notes.iter().map(ToString::to_string).collect()
}

fn fixed(quota: u64, window: &str, matches: &[&str]) -> Value {
    json!({ "algorithm": "fixed_window", "quota": quota, "window": window, "match": matches })
}

fn keyed(mut limit: Value, key: &str) -> Value {
    limit["key"] = json!(key);
    limit
}

/// `examples/ratelimit/config/example.yaml`: everything has an equivalent.
#[test]
fn the_example_is_translated_whole() {
    let translated = translated(
        "---
domain: rl
descriptors:
  - { key: source_cluster, value: proxy, descriptors: [
      { key: destination_cluster, value: mock, rate_limit: { unit: minute, requests_per_unit: 1 } } ] }
  - key: foo
    rate_limit: { unit: minute, requests_per_unit: 2 }
    descriptors:
      - { key: bar, rate_limit: { unit: minute, requests_per_unit: 3 } }
      - { key: bar, value: banned, rate_limit: { unit: minute, requests_per_unit: 0 } }
      - { key: baz, rate_limit: { unit: second, requests_per_unit: 1 } }
      - { key: bay, rate_limit: { unlimited: true } }
      - { key: baz, value: shady, rate_limit: { unit: minute, requests_per_unit: 1 }, shadow_mode: true }
  - { key: qux, rate_limit: { unlimited: true } }
",
    );
    assert_eq!(lines(&translated), [""; 0]);
    let mut shady = keyed(fixed(1, "1m", &["foo", "baz=shady"]), "foo");
    shady["enforce"] = json!(false);
    assert_eq!(
        limits(&translated, "rl"),
        json!({
            "source_cluster-proxy-destination_cluster-mock":
                fixed(1, "1m", &["source_cluster=proxy", "destination_cluster=mock"]),
            "foo": keyed(fixed(2, "1m", &["foo"]), "foo"),
            "foo-bar": keyed(fixed(3, "1m", &["foo", "bar"]), "foo,bar"),
            "foo-bar-banned": keyed(fixed(0, "1m", &["foo", "bar=banned"]), "foo"),
            "foo-baz": keyed(fixed(1, "1s", &["foo", "baz"]), "foo,baz"),
            "foo-bay": { "unlimited": true, "match": ["foo", "bay"], "key": "foo,bay" },
            "foo-baz-shady": shady,
            "qux": { "unlimited": true, "match": ["qux"], "key": "qux" },
        })
    );
}

/// `test/config/share_threshold.yaml`, its kinds.
#[test]
fn wildcards_are_counted_together_or_apart() {
    let translated = translated(
        "domain: d
descriptors:
  - { key: files, value: files/*, share_threshold: true, rate_limit: { unit: minute, requests_per_unit: 100 } }
  - { key: apart, value: a/*, rate_limit: { unit: hour, requests_per_unit: 7 } }
  - { key: path, value: path/*, share_threshold: true, descriptors: [
      { key: file, value: file/*, share_threshold: false, descriptors: [
        { key: type, rate_limit: { unit: minute, requests_per_unit: 120 } } ] } ] }
  - { key: route, value: api/*, share_threshold: true, value_to_metric: true, descriptors: [
      { key: method, rate_limit: { unit: minute, requests_per_unit: 60 } } ] }
  - { key: midpath, value: /api*v1, share_threshold: true, rate_limit: { unit: minute, requests_per_unit: 100 } }
  - { key: multi, rate_limit: { unit: minute, requests_per_unit: 20, unit_multiplier: 5 } }
",
    );
    assert_eq!(
        limits(&translated, "d"),
        json!({
            "files-files-any": fixed(100, "1m", &["files=files/*"]),
            "apart-a-any": keyed(fixed(7, "1h", &["apart=a/*"]), "apart"),
            "path-path-any-file-file-any-type":
                keyed(fixed(120, "1m", &["path=path/*", "file=file/*", "type"]), "file,type"),
            "route-api-any-method": keyed(fixed(60, "1m", &["route=api/*", "method"]), "method"),
            "midpath-api-any-v1": fixed(100, "1m", &["midpath=/api*v1"]),
            "multi": keyed(fixed(20, "5m", &["multi"]), "multi"),
        })
    );
    let told = lines(&translated);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(
        told[0].starts_with("c.yaml:8: value_to_metric: has no equivalent"),
        "{told:?}"
    );
}

/// `test/config/basic_config.yaml`: a value without a limit is free, and hides what would match it too.
#[test]
fn what_is_hidden_there_is_free_here() {
    let translated = translated(
        "domain: d
descriptors:
  - { key: key2, rate_limit: { unit: minute, requests_per_unit: 20 }, descriptors: [
      { key: sub, rate_limit: { unit: minute, requests_per_unit: 5 } } ] }
  - { key: key2, value: value2, rate_limit: { unit: minute, requests_per_unit: 30 } }
  - { key: key2, value: value3 }
",
    );
    assert_eq!(lines(&translated), [""; 0]);
    let free = |matches: &[&str]| json!({ "unlimited": true, "match": matches });
    assert_eq!(
        limits(&translated, "d"),
        json!({
            "key2": keyed(fixed(20, "1m", &["key2"]), "key2"),
            "key2-sub": keyed(fixed(5, "1m", &["key2", "sub"]), "key2,sub"),
            "key2-value2": fixed(30, "1m", &["key2=value2"]),
            "key2-value2-sub-free": keyed(free(&["key2=value2", "sub"]), "sub"),
            "key2-value3-free": free(&["key2=value3"]),
            "key2-value3-sub-free": keyed(free(&["key2=value3", "sub"]), "sub"),
        })
    );
}

/// Every line without an equivalent is told, with its number, also in the file.
#[test]
fn what_differs_is_told_line_by_line() {
    let translated = translated(
        "domain: d
colour: red
descriptors:
  - key: a
    value: 5
    rate_limit:
      unit: fortnight
      requests_per_unit: 1
  - key: b
    quota_mode: true
    detailed_metric: true
    rate_limit:
      name: My Limit
      unit: minute
      requests_per_unit: 3
      replaces: [{ name: other }]
  - key: b
  - value: c
  - key: x=y
    rate_limit: { unit: minute, requests_per_unit: 3 }
  - key: e
    shadowmode: true
    rate_limit: { unit: minute, requests_per_unit: -3 }
  - { key: w, value: a*, rate_limit: { unit: minute, requests_per_unit: 1 } }
  - { key: w, value: ab*, rate_limit: { unit: minute, requests_per_unit: 1 } }
",
    );
    let told = lines(&translated);
    for expected in [
        "c.yaml:2: colour: is unknown",
        "c.yaml:7: unit: fortnight is no unit",
        "c.yaml:10: quota_mode: has no equivalent",
        "c.yaml:11: detailed_metric: has no equivalent",
        "c.yaml:9: the limit \"My Limit\" is called my-limit here",
        "c.yaml:16: replaces: has no equivalent",
        "c.yaml:17: b stands twice",
        "c.yaml:18: the descriptor has no key",
        "c.yaml:19: key \"x=y\" has a = or a *",
        "c.yaml:22: shadowmode: is unknown",
        "c.yaml:23: requests_per_unit: must be a plain whole number",
        "c.yaml:25: a value that w=a* matches too",
    ] {
        assert!(
            told.iter().any(|line| line.starts_with(expected)),
            "{expected} in {told:#?}"
        );
    }
    let numbers: Vec<usize> = translated.notes.iter().map(|note| note.line).collect();
    assert!(numbers.is_sorted(), "{told:#?}");
    assert!(
        told.iter()
            .all(|line| translated.toml.contains(&format!("#   {line}\n"))),
        "{}",
        translated.toml
    );
    let limits = limits(&translated, "d");
    let names: Vec<&String> = limits.as_object().expect("limits").keys().collect();
    assert_eq!(names, ["my-limit", "w-a-any", "w-ab-any"]);
}

/// A value is the text that is written, and what is no text leaves the limit out: it would hold for every value.
#[test]
fn values_are_texts_as_they_are_written() {
    let rule = "rate_limit: { unit: minute, requests_per_unit: 3 }";
    let values = [
        "1.10", "0123", "0x1F", "12e3", "true", "'7'", "~", "[x]", "{ a: b }",
    ];
    let entries: String = values
        .iter()
        .enumerate()
        .map(|(n, value)| format!("  - {{ key: k{n}, value: {value}, {rule} }}\n"))
        .collect();
    let translated = translated(&format!("domain: d\ndescriptors:\n{entries}"));
    let limits = limits(&translated, "d");
    let matches: Vec<String> = limits
        .as_object()
        .expect("limits")
        .values()
        .map(|limit| limit["match"][0].as_str().expect("an entry").to_owned())
        .collect();
    assert_eq!(
        matches,
        [
            "k0=1.10", "k1=0123", "k2=0x1F", "k3=12e3", "k4=true", "k5=7", "k6"
        ]
    );
    let told = lines(&translated);
    for expected in [
        "c.yaml:10: value must be a text",
        "c.yaml:11: the descriptor is left out",
    ] {
        assert!(
            told.iter().any(|line| line.starts_with(expected)),
            "{expected} in {told:#?}"
        );
    }
}

#[test]
fn amounts_that_mean_something_else_there_are_told() {
    let translated = translated(
        "domain: d
base: &base { unit: hour, requests_per_unit: 5 }
descriptors:
  - { key: a, rate_limit: { unit: minute, requests_per_unit: 010 } }
  - { key: b, rate_limit: { unit: minute } }
  - { key: c, rate_limit: { unlimited: true, unit: minute, requests_per_unit: 3 } }
  - { key: d, rate_limit: { unlimited: yes } }
  - key: e
    rate_limit:
      <<: *base
  - { key: f, rate_limit: *base }
",
    );
    let told = lines(&translated);
    for expected in [
        "c.yaml:4: requests_per_unit: must be a plain whole number",
        "c.yaml:5: requests_per_unit is missing",
        "c.yaml:6: unlimited beside",
        "c.yaml:10: <<: is not followed",
    ] {
        assert!(
            told.iter().any(|line| line.starts_with(expected)),
            "{expected} in {told:#?}"
        );
    }
    let limits = limits(&translated, "d");
    let names: Vec<&String> = limits.as_object().expect("limits").keys().collect();
    assert_eq!(names, ["b", "c", "d", "f"]);
    assert_eq!(limits["b"]["quota"], 0);
    assert_eq!(limits["f"]["window"], "1h");
}

#[test]
fn several_files_are_several_tenants() {
    let file = |domain: &str| {
        format!(
            "domain: {domain}\ndescriptors:\n  - {{ key: k, rate_limit: {{ unit: day, requests_per_unit: 1 }} }}\n"
        )
    };
    let files = [
        ("a.yaml".to_owned(), file("a.b")),
        ("b.yaml".to_owned(), file("\"c d\"")),
    ];
    let translated = translate(&files).expect("domains");
    for tenant in ["a.b", "c d"] {
        assert_eq!(
            limits(&translated, tenant)["k"]["window"],
            "1d",
            "{}",
            translated.toml
        );
    }
    let none = translate(&[("x.yaml".to_owned(), "- [".to_owned())]).expect_err("no domain");
    assert!(none.to_string().contains("x.yaml:"), "{none}");
}

#[test]
fn hostile_files_are_told_and_not_followed() {
    let bomb = format!(
        "domain: d\na: &a [x, x, x, x, x, x, x, x, x, x]\n{}",
        ["b", "c", "d", "e", "f", "g", "h", "i"]
            .iter()
            .zip(["a", "b", "c", "d", "e", "f", "g", "h"])
            .map(|(name, of)| format!("{name}: &{name} [*{of}, *{of}, *{of}, *{of}, *{of}, *{of}, *{of}, *{of}, *{of}, *{of}]\n"))
            .collect::<String>()
    );
    for text in [
        bomb.as_str(),
        "",
        "domain: [",
        "domain: d\ndescriptors: 7\n",
        "7",
        "domain: d\n---\ndomain: e\n",
    ] {
        match translate(&[("x".to_owned(), text.to_owned())]) {
            Ok(translated) => assert!(!translated.notes.is_empty(), "{text}"),
            Err(error) => assert!(error.to_string().contains("x:"), "{error}"),
        }
    }
}
