//! What gateways send: requests of the rate limit service, and descriptors against any `match`.

use std::sync::LazyLock;

use highwater::catalogue::Catalogue;
use highwater::catalogue::change::Author;
use highwater::catalogue::change::Change;
use highwater::catalogue::change::Entry as LogEntry;
use highwater::catalogue::descriptor;
use highwater::catalogue::descriptor::Entry;
use highwater::catalogue::descriptor::Index;
use highwater::catalogue::document;
use highwater::domain::name::is_key;
use highwater::domain::time::Timestamp;
use highwater::grpc::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use highwater::grpc::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor;
use highwater::grpc::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use highwater::grpc::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use highwater::grpc::select;
use prost::Message;
use serde::Deserialize;

use super::texts;

#[derive(Deserialize)]
struct Case {
    #[serde(rename = "match")]
    matches: Vec<Vec<String>>,
    key: Option<String>,
    descriptor: Vec<(String, String)>,
}

/// Reads lists as limits write them and looks a descriptor up among them.
pub fn matching(bytes: &[u8]) -> bool {
    let Ok(case) = serde_json::from_slice::<Case>(bytes) else {
        return false;
    };
    let mut index = Index::default();
    for list in &case.matches {
        let parsed = list.iter().map(|text| Entry::parse(text));
        let Ok(entries) = parsed.collect::<Result<Vec<Entry>, _>>() else {
            return false;
        };
        let Ok(counted) = descriptor::counted(&entries, case.key.as_deref()) else {
            return false;
        };
        index.insert(&entries, (entries.len(), counted));
    }
    let entries: descriptor::Entries<'_> = case
        .descriptor
        .iter()
        .map(|(key, value)| (key.as_str(), value.as_str()))
        .collect();
    for (depth, counted) in index.find(&entries) {
        assert_eq!(*depth, entries.len(), "the depth is the same");
        let key = descriptor::key(&entries, counted);
        assert_eq!(key.is_empty(), counted.is_empty());
        assert!(key.is_empty() || is_key(&key), "{key:?}");
        assert!(is_key(&descriptor::key_per_unit(&key, "minute")));
    }
    true
}

/// Lists and descriptors.
pub fn matchings() -> Vec<Vec<u8>> {
    texts(&[
        r#"{"match":[["a","b=1"],["a","b=1*"],["a=x*y","b"]],"key":"a,b","descriptor":[["a","xzy"],["b","12"]]}"#,
        r#"{"match":[["files=files/*"]],"key":null,"descriptor":[["files","files/a"]]}"#,
    ])
}

static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(|| {
    let limit = |matches: &[&str]| serde_json::json!({ "algorithm": "fixed_window", "quota": 1, "window": "1m", "key": "a", "match": matches });
    let tree = document::read_tree(&serde_json::json!({
        "domains": { "edge": "acme" },
        "limits": { "one": limit(&["a"]), "two": limit(&["a", "b"]), "three": limit(&["a", "b=*"]) },
        "tenants": { "acme": {} },
    }));
    let entry = LogEntry {
        author: Author::Operator {
            token: "t".to_owned(),
        },
        expected_version: None,
        change: Change::Replace {
            tree: tree.expect("a catalogue"),
        },
    };
    let mut catalogue = Catalogue::new();
    let at = Timestamp::from_unix_ms(1_796_000_000_000);
    catalogue.apply(1, at, &entry).expect("it is put in force");
    catalogue
});

/// Reads a request and finds its limits.
pub fn request(bytes: &[u8]) -> bool {
    let Ok(request) = RateLimitRequest::decode(bytes) else {
        return false;
    };
    assert_eq!(
        RateLimitRequest::decode(request.encode_to_vec().as_slice()),
        Ok(request.clone())
    );
    if select::form(&request).is_err() {
        return false;
    }
    let now = Timestamp::from_unix_ms(1_796_000_000_000);
    let Ok(selection) = select::select(CATALOGUE.view(), &request, now) else {
        return false;
    };
    let Some(selection) = selection else {
        return true;
    };
    selection.items().is_ok_and(|items| {
        let all = items.charged.iter().chain(&items.given_back);
        all.for_each(|item| assert!(is_key(item.key), "{:?}", item.key));
        true
    })
}

/// Requests.
pub fn requests() -> Vec<Vec<u8>> {
    let entry = |key: &str, value: &str| rate_limit_descriptor::Entry {
        key: key.to_owned(),
        value: value.to_owned(),
    };
    let request = RateLimitRequest {
        domain: "edge".to_owned(),
        descriptors: vec![
            RateLimitDescriptor {
                entries: vec![entry("a", "1"), entry("b", "2")],
                limit: Some(RateLimitOverride {
                    requests_per_unit: 7,
                    unit: 2,
                }),
                hits_addend: Some(3),
                is_negative_hits: true,
            },
            RateLimitDescriptor {
                entries: vec![entry("a", "")],
                ..RateLimitDescriptor::default()
            },
        ],
        hits_addend: 2,
    };
    vec![request.encode_to_vec()]
}
