//! What the catalogue reads: limits, whole documents, entries of the log.

use highwater::catalogue::Catalogue;
use highwater::catalogue::change::Author;
use highwater::catalogue::change::Change;
use highwater::catalogue::change::Entry;
use highwater::catalogue::document;
use highwater::domain::limit::LimitSpec;
use highwater::domain::name::LimitName;
use highwater::domain::time::Timestamp;

use super::texts;

/// Reads a limit.
pub fn limit_spec(bytes: &[u8]) -> bool {
    let Ok(spec) = serde_json::from_slice::<LimitSpec>(bytes) else {
        return false;
    };
    let written = serde_json::to_vec(&spec).expect("plain data");
    let read: LimitSpec = serde_json::from_slice(&written).expect("what was written is read");
    assert_eq!(read, spec);
    true
}

/// Limits.
pub fn limit_specs() -> Vec<Vec<u8>> {
    texts(&[
        r#"{"algorithm":"token_bucket","capacity":40000,"refill":40000,"per":"1m","key":"model"}"#,
        r#"{"algorithm":"calendar_window","quota":10,"period":"month","every":2,"anchor":"2026-01-31T00:00:00","time_zone":"Asia/Kolkata","actions":["export"]}"#,
        r#"{"quota":5,"ttl":"60s","always_allow":["a"],"match":["path=/v1/*","ip"],"overdraft":true,"durability":"sync","enforce":false,"unlimited":false}"#,
    ])
}

/// Puts what was read in force, as the admin API does.
fn apply(change: Change) -> bool {
    let mut catalogue = Catalogue::new();
    let entry = Entry {
        author: Author::Operator {
            token: "t".to_owned(),
        },
        expected_version: None,
        change,
    };
    let at = Timestamp::from_unix_ms(1_796_000_000_000);
    if catalogue.apply(1, at, &entry).is_err() {
        assert_eq!(
            catalogue,
            Catalogue::new(),
            "a refused change changes nothing"
        );
        return false;
    }
    let view = catalogue.view();
    for tenant in catalogue.tree().tenants.keys() {
        let tenant = view
            .tenant(tenant.as_str())
            .expect("the view has every tenant");
        for limit in tenant.limits() {
            let _ = limit.at("some-key", at);
        }
    }
    let written = serde_json::to_vec(&catalogue).expect("a catalogue can be written");
    let read: Catalogue = serde_json::from_slice(&written).expect("what was written is read");
    assert_eq!(read, catalogue);
    true
}

/// Reads a catalogue and puts it in force.
pub fn catalogue(bytes: &[u8]) -> bool {
    let Ok(value) = serde_json::from_slice::<serde_json::Value>(bytes) else {
        return false;
    };
    document::read_tree(&value).is_ok_and(|tree| apply(Change::Replace { tree }))
}

/// Catalogues.
pub fn catalogues() -> Vec<Vec<u8>> {
    texts(&[r#"{"default_plan":"free",
        "domains":{"edge":"acme"},
        "limits":{
            "account":{"algorithm":"sliding_window","quota":100,"window":"1s","actions":["api"]},
            "exports":{"algorithm":"calendar_window","quota":10,"period":"day"},
            "tokens":{"algorithm":"token_bucket","capacity":40000,"refill":40000,"per":"1m","key":"model"},
            "sockets":{"algorithm":"concurrency","quota":5,"ttl":"60s","key":"user"}},
        "plans":{"free":{},"pro":{"limits":{"exports":{"quota":500}}}},
        "tenants":{"acme":{"plan":"pro","time_zone":"Asia/Kolkata","anchor":"2026-01-31T00:00:00",
            "limits":{"tokens":{"keys":{"gpt-5":{"capacity":800000,"expires_at":"2027-01-01T00:00:00Z"}}}}}}}"#])
}

/// Reads an entry of the log and applies it.
pub fn log_entry(bytes: &[u8]) -> bool {
    let Ok(entry) = serde_json::from_slice::<Entry>(bytes) else {
        return false;
    };
    let written = serde_json::to_vec(&entry).expect("plain data");
    let read: Entry = serde_json::from_slice(&written).expect("what was written is read");
    assert_eq!(read, entry);
    apply(entry.change);
    true
}

/// Entries of the log.
pub fn log_entries() -> Vec<Vec<u8>> {
    let limit = LimitName::new("account").expect("a limit's name");
    let spec = serde_json::from_str(r#"{"algorithm":"fixed_window","quota":1,"window":"1s"}"#);
    let entry = Entry {
        author: Author::Operator {
            token: "t".to_owned(),
        },
        expected_version: Some(3),
        change: Change::PutLimit {
            limit,
            spec: spec.expect("a limit"),
        },
    };
    vec![serde_json::to_vec(&entry).expect("plain data")]
}
