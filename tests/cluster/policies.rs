//! FAIL-1 with the numbers of the case: limits of 3 in 60 s, a hundred calls at once at a region that is cut off from
//! the others, has a full disk, or a store that fails. Time stands still, so all of it is one window.

use std::thread;
use std::time::Duration;

use serde_json::Value;
use serde_json::json;

use crate::answer::Answer;
use crate::answer::REDUCED_CAPACITY;
use crate::counter::Counter;
use crate::group::Cluster;
use crate::group::LONG;
use crate::group::Setup;
use crate::group::WITHIN;
use crate::group::version;
use crate::load::decided;
use crate::load::wait_used;
use crate::server::Server;
use crate::server::wait_until;

const QUOTA: u64 = 3;
const CALLS: usize = 100;

/// A limit, what of a hundred calls passes while nobody can be asked, and what is left of it afterwards.
struct Case {
    limit: &'static str,
    policy: &'static str,
    passes: usize,
    left: u64,
}

/// `share` of a quota of 3 is what a region may let through by itself when nothing else is said.
fn cases(share: u64) -> Vec<Case> {
    let case = |limit, policy, passes: u64| Case {
        limit,
        policy,
        passes: usize::try_from(passes).expect("small"),
        left: QUOTA.saturating_sub(passes),
    };
    vec![
        case("closed", "closed", 0),
        case("unsaid", "closed", 0),
        case("open", "open", 100),
        case("local", "local", QUOTA),
        case("share", "local", share),
        case("log-closed", "closed", 0),
        case("log-open", "open", 100),
        case("log-local", "local", QUOTA),
    ]
}

fn catalogue() -> Value {
    let limit = |algorithm: &str, policy: &str| json!({ "algorithm": algorithm, "quota": QUOTA, "window": "60s", "mode": "strict", "on_unavailable": policy });
    let all_here = |algorithm: &str| {
        let mut limit = limit(algorithm, "local");
        limit["fallback_quota"] = QUOTA.into();
        limit
    };
    json!({
        "plans": { "all": {} },
        "tenants": { "t": { "plan": "all" }, "canary": { "plan": "all" } },
        "limits": {
            "closed": limit("fixed_window", "closed"), "open": limit("fixed_window", "open"),
            "local": all_here("fixed_window"), "share": limit("fixed_window", "local"),
            "unsaid": { "algorithm": "fixed_window", "quota": QUOTA, "window": "60s", "mode": "strict" },
            "log-closed": limit("sliding_log", "closed"), "log-open": limit("sliding_log", "open"),
            "log-local": all_here("sliding_log"),
            "canary": { "algorithm": "fixed_window", "quota": 1_000_000, "window": LONG, "mode": "strict" },
            "log-canary": { "algorithm": "sliding_log", "quota": 1_000_000, "window": LONG, "mode": "strict" },
        },
    })
}

fn body(limit: &str) -> Value {
    json!({ "tenant": "t", "limit": limit })
}

fn degraded(server: &Server, policy: &str) -> f64 {
    let label = format!("policy=\"{policy}\"");
    server.metric("rate_limit_degraded_total", &[&label])
}

/// A hundred calls of one limit, and all that each answer has to say.
fn follows(server: &Server, case: &Case) {
    let before = degraded(server, case.policy);
    let answers = server.in_parallel(CALLS, 1, "/v1/check", &body(case.limit));
    let told = |answer: &Answer| {
        let result = answer.only();
        assert_eq!(result["decided_by"], "fallback", "{answer:?}");
        result["degraded"] == true
    };
    let passed: Vec<&Answer> = answers.iter().filter(|it| it.status == 200).collect();
    assert_eq!(passed.len(), case.passes, "{}", case.limit);
    assert!(passed.iter().all(|it| told(it)), "{passed:?}");
    for answer in answers.iter().filter(|it| it.status != 200) {
        told(answer);
        if case.policy == "local" {
            // By its own count this region may let through no more.
            assert_eq!(answer.status, 429, "{answer:?}");
        } else {
            answer.unavailable();
            assert_eq!(answer.reason(), "unavailable", "{answer:?}");
            assert_eq!(answer.body["type"], REDUCED_CAPACITY, "{answer:?}");
        }
    }
    if case.policy == "open" {
        let counted = degraded(server, case.policy) - before;
        assert!((counted - 100.0).abs() < 0.5, "{counted} counted");
    }
}

/// The mistakes of a caller never follow the policy.
fn tells_mistakes(server: &Server) {
    server.post_text("/v1/check", "{").problem(400, "malformed");
    Counter::new(server, "nobody", "open")
        .take(1)
        .problem(404, "unknown_tenant");
    Counter::new(server, "t", "nothing")
        .take(1)
        .problem(404, "unknown_limit");
    Counter::keyed(server, "t", "open", "k")
        .take(1)
        .problem(400, "key_unexpected");
}

/// What happens to one region, by the kind of the fault: `of` regions, the one that leads or another.
fn each_policy_does_what_it_says(of: usize, fault: &str, leads: bool) {
    let cluster = Cluster::set_up(&Setup::of(of).with_manual_clocks());
    let written = cluster[0].catalogue(&catalogue());
    cluster.wait_in_force(version(&written));
    cluster.wait_granted("canary");
    let region = if leads {
        cluster.leader()
    } else {
        cluster.follower()
    };
    let there = &cluster[region];
    let injected = there.inject(fault);
    let canary = Counter::new(there, "t", "canary");
    // What is sent while the links seem to be there may have been charged: "unknown" is the word for that.
    for limit in ["canary", "log-canary"] {
        let counter = Counter::new(there, "t", limit);
        wait_until("it knows that it cannot decide", WITHIN, || {
            let answer = counter.take(1);
            answer.status == 503 && answer.reason() == "unavailable"
        });
    }
    let cases = cases(QUOTA.div_ceil(of as u64));
    for case in &cases {
        follows(there, case);
    }
    tells_mistakes(there);

    there.heal(&injected);
    wait_until("it is granted units again", WITHIN, || {
        let answer = canary.take(1);
        answer.status == 200 && answer.only()["degraded"] == false
    });
    // What was let through is debited as far as there was something, and the rest is there to the last unit. From here
    // on a busy machine alone is no reason to let anything through.
    for case in &cases {
        wait_used(&cluster, "t", case.limit, QUOTA - case.left);
    }
    let mut closed = catalogue();
    for (_, limit) in closed["limits"].as_object_mut().expect("limits") {
        limit["on_unavailable"] = "closed".into();
        limit
            .as_object_mut()
            .expect("a limit")
            .remove("fallback_quota");
    }
    cluster.wait_in_force(version(&cluster[0].catalogue(&closed)));
    let mut now_ms = 0;
    for case in &cases {
        let rest = spend_rest(&cluster, &mut now_ms, &body(case.limit));
        assert_eq!(rest, case.left, "{}", case.limit);
    }
}

/// Checks in all regions until all of them know that nothing is left; how many were allowed. A region believes the word
/// that nothing is to be had for a second or two, so the clocks go on a little when none is allowed.
fn spend_rest(cluster: &Cluster, now_ms: &mut i64, body: &Value) -> u64 {
    let mut look = body.clone();
    look["cost"] = 0.into();
    let mut spent = 0;
    loop {
        let allowed = cluster
            .running()
            .filter(|region| decided(&cluster[*region], body).allowed())
            .count() as u64;
        spent += allowed;
        if allowed > 0 {
            continue;
        }
        let is_left = cluster
            .running()
            .any(|region| cluster[region].check(&look).allowed());
        if !is_left {
            return spent;
        }
        // What was spent is known everywhere a moment later, by the real clock.
        thread::sleep(Duration::from_millis(50));
        *now_ms += 150;
        assert!(
            *now_ms < 50_000,
            "{spent}, and what is left is not to be had"
        );
        cluster.at(*now_ms);
    }
}

#[test]
fn one_of_three_cut_off_does_what_each_limit_says() {
    each_policy_does_what_it_says(3, "partition", false);
}

#[test]
fn a_leader_cut_off_does_what_each_limit_says() {
    each_policy_does_what_it_says(3, "partition", true);
}

#[test]
fn one_of_five_cut_off_does_what_each_limit_says() {
    each_policy_does_what_it_says(5, "partition", false);
}

#[test]
fn a_full_disk_does_what_each_limit_says() {
    each_policy_does_what_it_says(3, "store_full", false);
}

#[test]
fn a_store_that_fails_does_what_each_limit_says() {
    each_policy_does_what_it_says(3, "store_errors", true);
}
