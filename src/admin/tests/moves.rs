//! How the cluster looks, planned moves, and the ledger: with one region, which is its own leader.

use std::time::Duration;

use axum::http::Method;
use serde_json::Value;
use serde_json::json;

use super::Server;

const LEADER: &str = "/admin/v1/cluster/leader";
const PREFERENCE: &str = "/admin/v1/cluster/leader-preference";
const OWN: &str = "/admin/v1/cluster/regions/us-east-1";
const OTHER: &str = "/admin/v1/cluster/regions/eu-west-1";
const LEDGER: &str = "/admin/v1/tenants/acme/limits/invoices/ledger";
/// A day is the window of the strict limit.
const DAY_MS: i64 = 86_400_000;

async fn status(server: &Server) -> Value {
    server.get("/admin/v1/cluster").await.ok()
}

#[tokio::test]
async fn a_region_alone_leads_its_cluster() {
    let server = Server::with_catalogue().await;
    let status = status(&server).await;
    assert_eq!(status["role"], "leader", "{status}");
    assert_eq!(status["leader"], "us-east-1");
    assert_eq!(status["enrolled"], true);
    assert_eq!(status["leader_preference"], Value::Null);
    let id = status["cluster_id"].as_str().expect("an id");
    assert!(
        id.len() == 16 && u64::from_str_radix(id, 16).is_ok(),
        "{id}"
    );
    assert!(status["term"].as_u64().expect("a term") >= 1);
    let index = |name: &str| status["log"][name].as_u64().expect("an index");
    assert!(index("applied_index") >= 3, "{status}");
    assert!(index("applied_index") <= index("committed_index"));
    assert!(index("committed_index") <= index("last_index"));
    assert_eq!(status["log"]["fault"], Value::Null);
    assert_eq!(
        status["strict"],
        json!({ "reservations": 0, "counters": 0 })
    );
    let members = status["members"].as_array().expect("a list");
    assert_eq!(members.len(), 1, "{status}");
    let own = &members[0];
    assert_eq!(
        (&own["region"], &own["role"], &own["connected"], &own["lag"]),
        (
            &json!("us-east-1"),
            &json!("leader"),
            &json!(true),
            &json!(0)
        )
    );
    for field in ["version", "ready", "catalogue_version", "store", "peers"] {
        assert!(!status[field].is_null(), "{field}: {status}");
    }
}

/// Nobody else is there to be heard of, so silence says nothing about who leads.
#[tokio::test]
async fn a_region_alone_takes_changes_after_a_pause() {
    let server = Server::start().await;
    let consensus = server.region.consensus().expect("a log");
    let silent_for = || consensus.status().since_majority.unwrap_or_default();
    for _ in 0..500 {
        if silent_for() > Duration::from_millis(1_500) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(silent_for() > Duration::from_millis(1_500), "it was idle");
    let none = json!({ "region": null });
    assert_eq!(server.put(PREFERENCE, &none).await.ok(), none);
}

#[tokio::test]
async fn the_lead_goes_to_regions_with_a_vote_only() {
    let server = Server::start().await;
    let answer = server
        .root(Method::POST, LEADER, &json!({ "region": "us-east-1" }))
        .await
        .ok();
    assert_eq!(answer["leader"], "us-east-1");
    let unknown = server
        .root(Method::POST, LEADER, &json!({ "region": "eu-west-1" }))
        .await;
    unknown.problem(422, "invalid");
    assert!(unknown.text.contains("eu-west-1 is none of the cluster's"));
    let odd = server
        .root(Method::POST, LEADER, &json!({ "region": "No Name" }))
        .await;
    odd.problem(422, "invalid");
    assert_eq!(odd.body["errors"][0]["path"], "region");
    for body in [
        json!({}),
        json!({ "region": null }),
        json!([]),
        json!({ "to": "a" }),
    ] {
        let answer = server.root(Method::POST, LEADER, &body).await;
        assert_eq!(answer.status, 400, "{body}: {answer:?}");
    }
}

#[tokio::test]
async fn a_preference_is_noted_and_taken_back() {
    let server = Server::start().await;
    let preferred = json!({ "region": "us-east-1" });
    assert_eq!(server.put(PREFERENCE, &preferred).await.ok(), preferred);
    assert_eq!(status(&server).await["leader_preference"], "us-east-1");
    let unknown = server
        .put(PREFERENCE, &json!({ "region": "eu-west-1" }))
        .await;
    unknown.problem(422, "invalid");
    for body in [
        json!({}),
        json!({ "region": 1 }),
        json!({ "region": "us-east-1", "x": 1 }),
    ] {
        let answer = server.put(PREFERENCE, &body).await;
        assert_eq!(answer.status, 400, "{body}: {answer:?}");
    }
    assert_eq!(status(&server).await["leader_preference"], "us-east-1");
    let none = json!({ "region": null });
    assert_eq!(server.put(PREFERENCE, &none).await.ok(), none);
    assert_eq!(status(&server).await["leader_preference"], Value::Null);
}

#[tokio::test]
async fn regions_come_by_address_and_the_last_one_stays() {
    let server = Server::start().await;
    let members = json!({ "voters": ["us-east-1"], "learners": [] });
    assert_eq!(server.put(OWN, &Value::Null).await.ok(), members);
    assert_eq!(server.put(OWN, &json!({})).await.ok(), members);
    let elsewhere = server
        .put(OWN, &json!({ "url": "http://127.0.0.1:9" }))
        .await;
    elsewhere.problem(409, "in_use");
    assert!(elsewhere.text.contains("is a member already"));
    for (body, message) in [
        (json!({}), "say where its peer listener is"),
        (
            json!({ "url": "https://example.org" }),
            "write http://HOST:PORT",
        ),
    ] {
        let refused = server.put(OTHER, &body).await;
        refused.problem(422, "invalid");
        assert_eq!(refused.body["errors"][0]["path"], "url", "{refused:?}");
        assert!(refused.text.contains(message), "{refused:?}");
    }
    server
        .put(OTHER, &json!([]))
        .await
        .problem(400, "malformed");
    server
        .put(OTHER, &json!({ "url": 1 }))
        .await
        .problem(400, "malformed");
    let last = server.delete(OWN).await;
    last.problem(409, "in_use");
    assert!(last.text.contains("the last region"), "{last:?}");
    server.delete(OTHER).await.problem(404, "not_found");
    server
        .delete("/admin/v1/cluster/regions/No%20Name")
        .await
        .problem(400, "malformed");
    assert_eq!(
        status(&server).await["members"].as_array().map(Vec::len),
        Some(1)
    );
}

/// With a strict limit of ten a day, and others that have no ledger.
async fn with_strict_limits() -> Server {
    let server = Server::with_catalogue().await;
    let change = json!({ "limits": {
        "invoices": { "quota": 10, "period": "day", "mode": "strict", "key": "user" },
        "calls": { "algorithm": "sliding_window", "quota": 10, "window": "1m", "mode": "strict" },
    } });
    server
        .root(Method::PATCH, "/admin/v1/catalogue", &change)
        .await
        .ok();
    server
}

async fn set_clock(server: &Server, unix_ms: i64) {
    server
        .put("/admin/v1/clock", &json!({ "unix_ms": unix_ms }))
        .await
        .ok();
}

async fn spend(server: &Server, cost: u64) {
    // The machine may be busy: the default wait for the leader is short.
    let check = json!({
        "tenant": "acme", "limit": "invoices", "key": "u", "cost": cost, "max_wait_ms": 10_000,
    });
    server.root(Method::POST, "/v1/check", &check).await.ok();
}

fn units(ledger: &Value, column: &str) -> u64 {
    let rows = ledger["rows"].as_array().expect("rows");
    rows.iter()
        .map(|row| row[column].as_u64().expect(column))
        .sum()
}

/// Polls the ledger until `units` are known to be spent.
async fn spent(server: &Server, path: &str, wanted: u64) -> Value {
    for _ in 0..500 {
        let ledger = server.get(path).await.ok();
        if units(&ledger, "spent") == wanted {
            return ledger;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!(
        "the region did not tell what it spent: {:?}",
        server.get(path).await
    );
}

#[tokio::test]
async fn the_ledger_adds_up_while_a_window_runs_and_after_it_has_ended() {
    let server = with_strict_limits().await;
    // In 2035: log time never goes back.
    let noon = 23_741 * DAY_MS + DAY_MS / 2;
    set_clock(&server, noon).await;
    let path = format!("{LEDGER}?key=u");
    server.get(&path).await.problem(404, "not_found");
    spend(&server, 3).await;
    let running = spent(&server, &path, 3).await;
    assert_eq!(running["adds_up"], true, "{running}");
    assert_eq!(
        (
            &running["limit"],
            &running["key"],
            &running["quota"],
            &running["used"]
        ),
        (&json!("invoices"), &json!("u"), &json!(10), &json!(3))
    );
    assert_eq!(
        running["rows"].as_array().map(Vec::len),
        Some(1),
        "{running}"
    );
    assert_eq!(running["rows"][0]["region"], "us-east-1");
    let left = running["free"].as_i64().expect("units");
    let out = units(&running, "granted") - units(&running, "returned");
    assert_eq!(left + i64::try_from(out).expect("fits"), 10, "{running}");
    let (start, end) = (&running["window_start_ms"], &running["window_end_ms"]);
    let length = end.as_i64().expect("an end") - start.as_i64().expect("a start");
    assert_eq!(length, DAY_MS);

    set_clock(&server, noon + DAY_MS).await;
    spend(&server, 1).await;
    let today = spent(&server, &path, 1).await;
    assert_eq!(&today["window_start_ms"], end);
    for at in [noon.to_string(), jiff_text(noon)] {
        let yesterday = server.get(&format!("{path}&at={at}")).await.ok();
        assert_eq!(yesterday["adds_up"], true, "{yesterday}");
        assert_eq!(
            (&yesterday["used"], &yesterday["window_start_ms"]),
            (&json!(3), start)
        );
    }
    assert!(
        server.region.replica.core().machine.book().counters() == 1,
        "yesterday is closed"
    );
    // After 35 days, which is what a region keeps by default, it is gone.
    set_clock(&server, noon + 36 * DAY_MS).await;
    let old = server.get(&format!("{path}&at={noon}")).await;
    old.problem(404, "not_found");
}

fn jiff_text(unix_ms: i64) -> String {
    let at = jiff::Timestamp::from_millisecond(unix_ms).expect("a time");
    at.to_string()
}

#[tokio::test]
async fn only_strict_limits_with_windows_have_a_ledger() {
    let server = with_strict_limits().await;
    let of =
        |limit: &str, query: &str| format!("/admin/v1/tenants/acme/limits/{limit}/ledger{query}");
    let regional = server.get(&of("api", "")).await;
    regional.problem(422, "invalid");
    assert!(regional.text.contains("only strict limits"), "{regional:?}");
    let sliding = server.get(&of("calls", "")).await;
    sliding.problem(422, "invalid");
    assert!(sliding.text.contains("one by one"), "{sliding:?}");
    server
        .get(&of("nothing", ""))
        .await
        .problem(404, "unknown_limit");
    let stranger = "/admin/v1/tenants/nobody/limits/invoices/ledger?key=u";
    server.get(stranger).await.problem(404, "not_found");
    server
        .get(&of("invoices", ""))
        .await
        .problem(400, "key_required");
    for odd in ["?key=u&at=soon", "?key=u&colour=red", "?key="] {
        let answer = server.get(&of("invoices", odd)).await;
        assert_eq!(answer.status, 400, "{odd}: {answer:?}");
    }
}
