//! Three regions as one cluster: founded when all are there, moved as operators ask, proven by the ledger.

use reqwest::Method;
use serde_json::Value;
use serde_json::json;

use crate::answer::Answer;
use crate::ports::free_ports;
use crate::regions::FOUND_WITHIN;
use crate::regions::NAMES;
use crate::regions::start;
use crate::regions::status;
use crate::server::Server;
use crate::server::Stop;
use crate::server::wait_until;

const LEDGER: &str = "/admin/v1/tenants/acme/limits/exports/ledger?key=u";

fn leader(server: &Server) -> Option<String> {
    status(server)["leader"].as_str().map(str::to_owned)
}

fn members(server: &Server) -> usize {
    status(server)["members"].as_array().map_or(0, Vec::len)
}

fn wait_until_joined(regions: &[Server]) {
    for region in regions {
        wait_until("the region has joined and enrolled", FOUND_WITHIN, || {
            let status = status(region);
            status["ready"] == true && status["enrolled"] == true && !status["leader"].is_null()
        });
    }
}

fn three() -> [Server; 3] {
    let ports = free_ports(3);
    let regions = std::array::from_fn(|own| start(own, &ports, &[]));
    wait_until_joined(&regions);
    regions
}

fn hand_over(server: &Server, to: &str) -> Answer {
    let path = "/admin/v1/cluster/leader";
    server.admin(Method::POST, path, &json!({ "region": to }))
}

fn position(name: &str) -> usize {
    let position = NAMES.iter().position(|known| *known == name);
    position.expect("one of ours")
}

/// A region that was never in a cluster has no catalogue to serve by, and says what it waits for; one that
/// was serves by what it has.
#[test]
fn a_region_is_ready_once_it_has_been_in_a_cluster() {
    let ports = free_ports(3);
    let mut first = start(0, &ports, &[]);
    let ready = first.get("/readyz");
    assert_eq!(ready.status, 503, "{ready:?}");
    assert!(ready.text.contains("no cluster yet"), "{ready:?}");
    let alone = status(&first);
    assert_eq!(
        (&alone["role"], &alone["ready"], &alone["members"]),
        (&json!("waiting"), &json!(false), &json!([]))
    );
    let refused = hand_over(&first, "us-east-1");
    refused.problem(503, "unavailable");
    assert!(refused.text.contains("has not joined"), "{refused:?}");

    let others = [start(1, &ports, &[]), start(2, &ports, &[])];
    wait_until("the cluster is founded", FOUND_WITHIN, || {
        first.get("/readyz").status == 200
    });
    wait_until_joined(&others);
    drop(others);
    first.restart(Stop::Kill);
    assert_eq!(first.get("/readyz").status, 200, "by what it has");
    assert_eq!(status(&first)["role"], "voter");
    assert_eq!(status(&first)["enrolled"], false, "nobody leads");
}

#[test]
fn moves_are_made_from_whichever_region_is_asked() {
    let regions = three();
    let [us, eu, ap] = &regions;
    for to in ["eu-west-1", "us-east-1"] {
        let moved = hand_over(ap, to);
        moved.succeeded();
        assert_eq!(moved.body["leader"], to, "{moved:?}");
        for region in &regions {
            wait_until("all follow the new leader", FOUND_WITHIN, || {
                leader(region).as_deref() == Some(to)
            });
        }
    }
    let refused = us.admin(
        Method::DELETE,
        "/admin/v1/cluster/regions/us-east-1",
        &Value::Null,
    );
    refused.problem(409, "in_use");
    assert!(refused.text.contains("us-east-1 leads"), "{refused:?}");

    let path = "/admin/v1/cluster/regions/ap-south-1";
    let gone = eu.admin(Method::DELETE, path, &Value::Null);
    gone.succeeded();
    let left = json!({ "voters": ["eu-west-1", "us-east-1"], "learners": [] });
    assert_eq!(gone.body, left);
    let again = us.admin(Method::DELETE, path, &Value::Null);
    again.problem(404, "not_found");
    assert_eq!((members(us), members(eu)), (2, 2));
    let back = eu.admin(Method::PUT, path, &json!({}));
    back.succeeded();
    assert_eq!(back.body["voters"].as_array().map(Vec::len), Some(3));
    wait_until("it is enrolled again", FOUND_WITHIN, || {
        members(ap) == 3 && status(ap)["enrolled"] == true
    });
    wait_until("every member knows how far all are", FOUND_WITHIN, || {
        let status = status(ap);
        let members = status["members"].as_array().expect("a list");
        members.iter().all(|member| member["lag"] == 0)
    });
}

#[test]
fn the_preferred_region_is_handed_the_lead_and_a_lost_one_cannot_take_it() {
    let mut regions = three();
    let leads = leader(&regions[0]).expect("a leader");
    let preferred = NAMES[(position(&leads) + 1) % 3];
    let lost = (position(&leads) + 2) % 3;
    let prefer = json!({ "region": preferred });
    regions[0]
        .admin(Method::PUT, "/admin/v1/cluster/leader-preference", &prefer)
        .succeeded();
    regions[lost].stop(Stop::Kill);
    let there = &regions[position(preferred)];
    wait_until("the preferred region leads", 2 * FOUND_WITHIN, || {
        leader(there).as_deref() == Some(preferred)
    });
    assert_eq!(status(there)["leader_preference"], preferred);
    let refused = hand_over(there, NAMES[lost]);
    refused.problem(503, "unavailable");
    assert!(refused.text.contains("it was not done"), "{refused:?}");
    assert_eq!(leader(there).as_deref(), Some(preferred));
}

#[test]
fn the_ledger_of_any_region_accounts_for_what_all_were_granted() {
    let regions = three();
    regions[0].catalogue(&json!({
        "limits": { "exports": { "quota": 10, "period": "year", "mode": "strict", "key": "user" } },
        "tenants": { "acme": {} },
    }));
    let mut allowed = 0;
    for turn in 0..14 {
        let region = &regions[turn % 3];
        wait_until("the limit is in force everywhere", FOUND_WITHIN, || {
            status(region)["catalogue_version"] == 1
        });
        let body = json!({ "tenant": "acme", "limit": "exports", "key": "u", "max_wait_ms": 5000 });
        let mut answer = region.check(&body);
        wait_until("the check is decided", FOUND_WITHIN, || {
            if answer.status == 503 {
                answer = region.check(&body);
            }
            answer.status != 503
        });
        assert!([200, 429].contains(&answer.status), "{answer:?}");
        allowed += u64::from(answer.status == 200);
    }
    assert!((1..=10).contains(&allowed), "{allowed} of 10");
    for region in &regions {
        let ledger = || region.admin(Method::GET, LEDGER, &Value::Null).body;
        wait_until("the ledger tells all that was spent", FOUND_WITHIN, || {
            ledger()["used"] == allowed
        });
        let ledger = ledger();
        assert_eq!(
            (&ledger["adds_up"], &ledger["quota"]),
            (&json!(true), &json!(10))
        );
        let rows = ledger["rows"].as_array().expect("rows");
        let sum =
            |column: &str| -> i64 { rows.iter().filter_map(|row| row[column].as_i64()).sum() };
        let out = sum("granted") - sum("returned");
        assert_eq!(
            out + ledger["free"].as_i64().expect("units"),
            10,
            "{ledger}"
        );
    }
}
