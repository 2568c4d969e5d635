//! Everything that reads bytes from outside, as one list.
//!
//! Each target reads any bytes and says whether they were taken; what is taken must survive being written
//! and read again where there is a written form, and must be fit for what the program does with it next.
//! `tests/laws/decoders.rs` runs the list on every `cargo test`, `fuzz_targets/decoder.rs` without an end.
//! A new decoder is one more entry in [`TARGETS`], with samples that are taken.

#[path = "catalogue.rs"]
mod catalogue;
#[path = "descriptors.rs"]
mod descriptors;
#[path = "gateways.rs"]
mod gateways;
#[path = "links.rs"]
mod links;
#[path = "replication.rs"]
mod replication;

use std::collections::BTreeMap;

use highwater::catalogue::intern::LimitId;
use highwater::domain::duration;
use highwater::domain::name::Key;
use highwater::domain::name::LimitName;
use highwater::domain::name::PlanName;
use highwater::domain::name::RegionName;
use highwater::domain::name::TenantName;
use highwater::domain::stamp::Stamp;
use highwater::domain::time::Timestamp;
use highwater::domain::time::WindowId;
use highwater::http::body;
use highwater::http::input;
use highwater::http::usage::UsageQuery;
use highwater::ledger::Bounds;
use highwater::ledger::Ledger;
use highwater::ledger::hold::HoldKey;
use highwater::ledger::hold::HoldRecord;
use highwater::ledger::hold::HoldState;
use highwater::ledger::hold::Receipt;
use highwater::ledger::idempotency::KeptAnswer;
use highwater::ledger::idempotency::Operation;
use highwater::ledger::idempotency::RequestId;
use highwater::ledger::restore::Restorer;
use highwater::region::config::Above;
use highwater::region::config::Config;
use highwater::store;
use highwater::usage::actor::Actor;
use highwater::usage::actor::ActorId;
use highwater::usage::actor::ActorTable;
use highwater::usage::record::BucketLevel;
use highwater::usage::record::CounterId;
use highwater::usage::record::CounterRecord;
use highwater::usage::record::LogEntry;
use serde::Serialize;

/// One decoder.
pub struct Target {
    /// Its name, for messages and the fuzzer's command line.
    pub name: &'static str,
    /// Reads the bytes; whether they were taken.
    pub run: fn(&[u8]) -> bool,
    /// Bytes that are taken, to begin from.
    pub samples: fn() -> Vec<Vec<u8>>,
}

/// All decoders.
pub const TARGETS: &[Target] = &[
    Target {
        name: "duration",
        run: duration,
        samples: durations,
    },
    Target {
        name: "names",
        run: names,
        samples: some_names,
    },
    Target {
        name: "check_body",
        run: check_body,
        samples: check_bodies,
    },
    Target {
        name: "batch_body",
        run: batch_body,
        samples: batch_bodies,
    },
    Target {
        name: "hold_bodies",
        run: hold_bodies,
        samples: some_hold_bodies,
    },
    Target {
        name: "usage_query",
        run: usage_query,
        samples: usage_queries,
    },
    Target {
        name: "idempotency_key",
        run: idempotency_key,
        samples: idempotency_keys,
    },
    Target {
        name: "limit_spec",
        run: catalogue::limit_spec,
        samples: catalogue::limit_specs,
    },
    Target {
        name: "catalogue",
        run: catalogue::catalogue,
        samples: catalogue::catalogues,
    },
    Target {
        name: "log_entry",
        run: catalogue::log_entry,
        samples: catalogue::log_entries,
    },
    Target {
        name: "config",
        run: config,
        samples: configs,
    },
    Target {
        name: "counter_row",
        run: counter_row,
        samples: counter_rows,
    },
    Target {
        name: "journal_group",
        run: journal_group,
        samples: journal_groups,
    },
    Target {
        name: "hold_row",
        run: hold_row,
        samples: hold_rows,
    },
    Target {
        name: "answer_row",
        run: answer_row,
        samples: answer_rows,
    },
    Target {
        name: "database_header",
        run: database_header,
        samples: database_headers,
    },
    links::LINK,
    replication::FRAME,
    gateways::RESP,
    gateways::PROFILE,
    Target {
        name: "descriptor_matching",
        run: descriptors::matching,
        samples: descriptors::matchings,
    },
    Target {
        name: "rate_limit_request",
        run: descriptors::request,
        samples: descriptors::requests,
    },
];

fn texts(samples: &[&str]) -> Vec<Vec<u8>> {
    samples
        .iter()
        .map(|text| text.as_bytes().to_vec())
        .collect()
}

fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

fn duration(bytes: &[u8]) -> bool {
    let Some(Ok(span)) = text(bytes).map(duration::parse) else {
        return false;
    };
    assert_eq!(duration::parse(&duration::format(span)), Ok(span));
    true
}

fn durations() -> Vec<Vec<u8>> {
    texts(&[
        "1ms",
        "30s",
        "90m",
        "24h",
        "35d",
        "0s",
        "213503d",
        "18446744073709ms",
    ])
}

fn names(bytes: &[u8]) -> bool {
    let Some(text) = text(bytes) else {
        return false;
    };
    let limit = LimitName::new(text).map(|name| assert_eq!(name.as_str(), text));
    let tenant = TenantName::new(text).map(|name| assert_eq!(name.as_str(), text));
    let plan = PlanName::new(text).map(|name| assert_eq!(name.as_str(), text));
    let region = RegionName::new(text).map(|name| assert_eq!(name.as_str(), text));
    let key = Key::new(text).map(|name| assert_eq!(name.as_str(), text));
    assert_eq!(tenant.is_ok(), plan.is_ok());
    assert!(
        tenant.is_ok() || limit.is_err(),
        "a limit's name is a plain text too"
    );
    assert!(
        limit.is_ok() || region.is_err(),
        "a region's name is stricter than a limit's"
    );
    tenant.is_ok() || key.is_ok()
}

fn some_names() -> Vec<Vec<u8>> {
    texts(&[
        "a",
        "us-east-1",
        "regional_api",
        "a:b",
        "日本",
        "a\u{0}b",
        " ",
    ])
}

fn check_body(bytes: &[u8]) -> bool {
    let Ok(parsed) = body::parse::<body::CheckBody<'_>>(bytes) else {
        return false;
    };
    assert_eq!(parsed.fingerprint(), parsed.fingerprint());
    parsed.form().is_ok()
}

fn check_bodies() -> Vec<Vec<u8>> {
    texts(&[
        r#"{"tenant":"acme","limit":"tokens","key":"gpt-5","cost":120}"#,
        r#"{"tenant":"acme","checks":[{"limit":"account"},{"limit":"endpoint","key":"POST /v1/sms","cost":0}]}"#,
        r#"{"tenant":"acme","action":"api","keys":{"endpoint":"\u00e4","ip":"203.0.113.9"},"cost":9007199254740991,"max_wait_ms":0}"#,
    ])
}

fn batch_body(bytes: &[u8]) -> bool {
    body::parse::<body::BatchBody<'_>>(bytes).is_ok()
}

fn batch_bodies() -> Vec<Vec<u8>> {
    texts(&[
        r#"{"items":[{"tenant":"acme","limit":"tokens","key":"k","idempotency_key":"1"},{"tenant":7}]}"#,
    ])
}

fn hold_bodies(bytes: &[u8]) -> bool {
    let settle = body::parse::<body::SettleBody<'_>>(bytes).is_ok();
    let renew = body::parse::<body::RenewBody>(bytes).is_ok();
    let refund = body::parse::<body::RefundBody<'_>>(bytes).is_ok();
    settle || renew || refund
}

fn some_hold_bodies() -> Vec<Vec<u8>> {
    texts(&[
        r#"{"cost":3}"#,
        r#"{"checks":[{"limit":"tokens","key":"gpt-5","cost":90}]}"#,
        r#"{"ttl":"30s"}"#,
        r#"{"tenant":"acme","limit":"tokens","key":"gpt-5","cost":2}"#,
    ])
}

fn usage_query(bytes: &[u8]) -> bool {
    text(bytes).is_some_and(|raw| input::query::<UsageQuery>(Some(raw)).is_ok())
}

fn usage_queries() -> Vec<Vec<u8>> {
    texts(&[
        "tenant=acme&limit=tokens&key=a%26b&at=1796000400000",
        "tenant=%E6%97%A5&limit=a",
    ])
}

fn idempotency_key(bytes: &[u8]) -> bool {
    let Some(Ok(key)) = text(bytes).map(input::plain_key) else {
        return false;
    };
    let quoted = format!("\"{}\"", key.replace('\\', "\\\\").replace('"', "\\\""));
    assert_eq!(input::plain_key(&quoted).ok(), Some(key));
    true
}

fn idempotency_keys() -> Vec<Vec<u8>> {
    texts(&[
        "8e03978e-40d5-43e8-bc93-6894a57f9324",
        r#""a \"quoted\" \\ key""#,
        " padded ",
    ])
}

fn config(bytes: &[u8]) -> bool {
    let Some(text) = text(bytes) else {
        return false;
    };
    match Config::resolve("region.toml", text, Above::default()) {
        Ok(config) => !config.to_toml().is_empty(),
        Err(problems) => {
            assert!(!problems.is_empty(), "a refusal says why");
            false
        }
    }
}

fn configs() -> Vec<Vec<u8>> {
    texts(&[r#"
cluster = "prod"
region = "us-east-1"
data_dir = "data/us-east-1"
listen.check = "127.0.0.1:7110"
listen.admin = "127.0.0.1:7111"
listen.peer = "127.0.0.1:7112"
auth.admin_token = "secret"
auth.check = "open"
store.flush_interval = "100ms"
memory.max_keys = 20000000
headers.style = ["ietf", "github"]
"#])
}

/// A ledger that takes over what was read, as a start does.
fn restore(records: Vec<CounterRecord>, holds: &[HoldRecord]) {
    let region = RegionName::new("us-east-1").expect("a region's name");
    let actors = ActorTable::alone(Actor {
        region,
        incarnation: 7,
    });
    let bounds = Bounds {
        keys_max: 100,
        keys_per_tenant_max: 100,
    };
    let ledger = Ledger::new(bounds, actors, 1, [1, 2]);
    let mut restorer = Restorer::new(&ledger);
    for record in records {
        let mut joined = record.clone();
        joined.merge(record.clone());
        assert_eq!(
            joined,
            pruned(record.clone()),
            "a record joined with itself is itself"
        );
        restorer.counter(record, LimitId(1));
    }
    restorer.finish(|_| Some(LimitId(1)));
    for hold in holds {
        ledger.restore_leases(hold, |_| Some(LimitId(1)));
    }
    ledger.sweep(Timestamp::MAX, 1 << 18);
}

/// What a record says once it has cut itself off at its own horizons.
fn pruned(mut record: CounterRecord) -> CounterRecord {
    record
        .windows
        .retain(|window, _| Some(*window) >= record.windows_from);
    record
        .log
        .retain(|_, entry| Some(entry.at) >= record.log_from);
    record
}

/// The bytes that a store's blob of `value` has.
fn blob(value: &impl Serialize) -> Vec<u8> {
    postcard::to_extend(value, vec![1]).expect("plain data")
}

fn record() -> CounterRecord {
    let limit = LimitName::new("tokens").expect("a limit's name");
    let (tenant, key) = ("acme".into(), "gpt-5".into());
    let mut record = CounterRecord::empty(CounterId { limit, tenant, key }, 17);
    record.set_slot(WindowId(1_796_000_400_000_000_000), ActorId(0), 12, 3);
    record.set_slot(WindowId(1_796_000_460_000_000_000), ActorId(3), 1 << 60, 0);
    let at = Timestamp::from_unix_ms(1_796_000_400_000);
    let stamp = Stamp { start: 4, count: 9 };
    record.bucket = Some(BucketLevel {
        stamp,
        at,
        drawn: 1 << 100,
    });
    record.log.insert(stamp, LogEntry { at, cost: 5 });
    record.dead_at = at;
    record
}

/// A counter's row is three columns; here the name's length stands in front, and the death is fixed.
fn counter_row(bytes: &[u8]) -> bool {
    let Some((length, rest)) = bytes.split_first() else {
        return false;
    };
    let (id, body) = rest.split_at(usize::from(*length).min(rest.len()));
    let Ok(record) = store::decode_row(id, 1_796_000_400_000_000_000, body) else {
        return false;
    };
    restore(vec![record], &[]);
    true
}

fn counter_rows() -> Vec<Vec<u8>> {
    let record = record();
    let id = postcard::to_allocvec(&record.id).expect("plain data");
    let CounterRecord {
        epoch,
        windows,
        bucket,
        log,
        windows_from,
        log_from,
        ..
    } = record;
    let body = blob(&(epoch, windows, bucket, log, windows_from, log_from));
    let length = u8::try_from(id.len()).expect("a short name");
    vec![[vec![length], id, body].concat()]
}

fn journal_group(bytes: &[u8]) -> bool {
    let Ok(group) = store::decode_group(bytes) else {
        return false;
    };
    restore(group.records, &group.holds);
    true
}

fn journal_groups() -> Vec<Vec<u8>> {
    vec![blob(&(vec![record(), record()], vec![hold()]))]
}

fn hold() -> HoldRecord {
    let record = record();
    let at = Timestamp::from_unix_ms(1_796_000_400_000);
    HoldRecord {
        key: HoldKey(0x4f00_0000_0000_0000_0000_0000_0000_0001),
        tenant: "acme".to_owned(),
        receipts: vec![Receipt {
            counter: record.id,
            epoch: 17,
            window: WindowId(1_796_000_400_000_000_000),
            at,
            entry: Stamp { start: 4, count: 9 },
            units: 5,
        }],
        expires_at: at,
        forget_at: at,
        state: HoldState::Open,
        version: 2,
    }
}

fn hold_row(bytes: &[u8]) -> bool {
    let Ok(hold) = store::decode_hold(bytes) else {
        return false;
    };
    restore(Vec::new(), &[hold]);
    true
}

fn hold_rows() -> Vec<Vec<u8>> {
    let mut closed = hold();
    closed.state = HoldState::Closed {
        fingerprint: 7,
        answer: Box::from(&b"{}"[..]),
    };
    vec![blob(&hold()), blob(&closed)]
}

fn answer_row(bytes: &[u8]) -> bool {
    store::decode_answer(bytes).is_ok()
}

fn answer_rows() -> Vec<Vec<u8>> {
    let answer = KeptAnswer {
        request: RequestId {
            tenant: "acme".to_owned(),
            operation: Operation::Refund,
            key: "8e03978e".to_owned(),
        },
        fingerprint: 7,
        status: 200,
        headers: vec![("cache-control".to_owned(), "no-store".to_owned())],
        body: Box::from(&b"{}"[..]),
        expires_at: Timestamp::from_unix_ms(1_796_000_400_000),
    };
    vec![blob(&answer)]
}

fn database_header(bytes: &[u8]) -> bool {
    store::decode_header(bytes).is_ok()
}

fn database_headers() -> Vec<Vec<u8>> {
    let mut header = b"SQLite format 3\0".to_vec();
    header.resize(100, 0);
    vec![header]
}

/// The targets by name.
pub fn by_name() -> BTreeMap<&'static str, &'static Target> {
    TARGETS.iter().map(|target| (target.name, target)).collect()
}
