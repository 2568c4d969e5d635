//! `POST /v1/check/batch`: independent items in order.

use serde_json::Value;
use serde_json::json;

use crate::counter::Counter;
use crate::server::Server;

fn server() -> Server {
    let server = Server::start();
    server.catalogue(&json!({
        "limits": {
            "fixed": { "algorithm": "fixed_window", "quota": 3, "window": "60s" },
            "keyed": { "algorithm": "fixed_window", "quota": 3, "window": "60s", "key": "user", "durability": "sync" },
        },
        "tenants": { "t": {}, "u": {} },
    }));
    server
}

/// A bad item fails alone, the others are charged; the answer keeps the order.
#[test]
fn a_bad_item_fails_alone() {
    let server = server();
    let fixed = Counter::new(&server, "t", "fixed");
    let items = [
        fixed.body(),
        json!({ "tenant": "nobody", "limit": "fixed" }),
        fixed.costing(2),
        json!({ "tenant": "t", "limit": "fixed", "cost": -1 }),
        fixed.body(),
        json!(17),
        json!({ "tenant": "t", "limit": "fixed", "colour": "red" }),
        Counter::keyed(&server, "u", "keyed", "k").body(),
        json!({ "tenant": "t", "checks": [{ "limit": "fixed" }, { "limit": "fixed" }] }),
        fixed.costing(0),
    ];
    let results = server.batch(&items);
    let statuses: Vec<u64> = results
        .iter()
        .filter_map(|result| result["status"].as_u64())
        .collect();
    assert_eq!(statuses, [200, 404, 200, 400, 429, 400, 400, 200, 400, 429]);
    for (at, code) in [
        (1, "unknown_tenant"),
        (3, "malformed"),
        (5, "malformed"),
        (6, "unknown_field"),
        (8, "duplicate_check"),
    ] {
        assert_eq!(results[at]["code"], code, "{}", results[at]);
    }
    assert_eq!(results[2]["results"][0]["used"], 3, "{}", results[2]);
    assert_eq!(
        results[4]["results"][0]["retry_after_ms"], 60_000,
        "{}",
        results[4]
    );
    assert_eq!(
        (
            fixed.used(),
            Counter::keyed(&server, "u", "keyed", "k").used()
        ),
        (3, 1)
    );
}

/// Items of one batch see each other, in order.
#[test]
fn items_are_charged_one_after_the_other() {
    let server = server();
    let items = vec![Counter::new(&server, "t", "fixed").body(); 1000];
    let remaining: Vec<u64> = server
        .batch(&items)
        .iter()
        .filter(|item| item["status"] == 200)
        .filter_map(|item| item["results"][0]["remaining"].as_u64())
        .collect();
    assert_eq!(remaining, [2, 1, 0]);
}

/// Each item may have its own idempotency key.
#[test]
fn items_carry_their_own_idempotency_keys() {
    let server = server();
    let counter = Counter::keyed(&server, "t", "keyed", "k");
    let item = |key: &str, cost: u64| {
        let mut item = counter.costing(cost);
        item["idempotency_key"] = key.into();
        item
    };
    let statuses = |items: &[Value]| -> Vec<Value> {
        server
            .batch(items)
            .iter()
            .map(|item| item["status"].clone())
            .collect()
    };
    assert_eq!(statuses(&[item("a", 1), item("b", 1)]), [200, 200]);
    assert_eq!(counter.used(), 2);
    assert_eq!(
        statuses(&[item("a", 1), item("b", 2), item("c", 1)]),
        [200, 422, 200]
    );
    assert_eq!(counter.used(), 3);
}

/// 1 to 1000 items, and nothing but items.
#[test]
fn a_batch_has_1_to_1000_items() {
    let server = server();
    let fixed = Counter::new(&server, "t", "fixed");
    let batch = |body: Value| server.post("/v1/check/batch", &body);
    batch(json!({ "items": [] })).problem(400, "malformed");
    batch(json!({ "items": vec![fixed.body(); 1001] })).problem(400, "malformed");
    batch(json!({ "items": { "0": fixed.body() } })).problem(400, "malformed");
    batch(json!({})).problem(400, "malformed");
    batch(json!([fixed.body()])).problem(400, "malformed");
    batch(json!({ "items": [fixed.body()], "colour": "red" })).problem(400, "unknown_field");
    assert_eq!(fixed.used(), 0);
}
