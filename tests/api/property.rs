//! HDR-3, the property: for every refusal at t with Retry-After r a lone client's retry at t + r is allowed, and
//! one at t + r − 1 s, where that is later than t, is not. Seeded random traces over every algorithm.

use rand::RngExt;
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::Value;
use serde_json::json;

use crate::answer::Answer;
use crate::counter::Counter;
use crate::server::Server;

const SEED: u64 = 20_350_101;
const REFUSALS: usize = 40;
const STEPS_MAX: usize = 2000;

/// One limit of a trace: its definition, the largest cost it can ever pass, and a typical pause between calls.
struct Subject {
    name: &'static str,
    definition: Value,
    cost_max: u64,
    pause_max_ms: i64,
}

#[test]
fn waiting_exactly_retry_after_works_and_one_second_less_does_not() {
    let server = Server::start();
    let subjects = subjects();
    let definitions = subjects
        .iter()
        .map(|subject| (subject.name.to_owned(), subject.definition.clone()));
    server.limits(&Value::Object(definitions.collect()));
    let mut random = StdRng::seed_from_u64(SEED);
    let mut now = server.epoch();
    for subject in &subjects {
        let counter = Counter::new(&server, "t", subject.name);
        let (mut refusals, mut steps) = (0, 0);
        while refusals < REFUSALS {
            steps += 1;
            assert!(steps < STEPS_MAX, "{}: too few refusals", subject.name);
            now += random.random_range(0..=subject.pause_max_ms);
            server.set_clock(now);
            let cost = random.random_range(1..=subject.cost_max);
            let answer = attempt(subject, counter, cost);
            if answer.allowed() {
                continue;
            }
            refusals += 1;
            let told = format!(
                "{} seed {SEED}, cost {cost} at {now}: {answer:?}",
                subject.name
            );
            let retry = answer
                .retry_after()
                .unwrap_or_else(|| panic!("waiting helps: {told}"));
            let exact = answer
                .retry_after_ms()
                .unwrap_or_else(|| panic!("waiting helps: {told}"));
            assert_eq!(retry, exact.div_ceil(1000).max(1), "{told}");
            let retry_ms = i64::try_from(retry * 1000).expect("a wait below a year");
            if retry > 1 {
                server.set_clock(now + retry_ms - 1000);
                let early = attempt(subject, counter, cost);
                assert!(
                    !early.allowed(),
                    "one second early: {told}\nanswered {early:?}"
                );
            }
            now += retry_ms;
            server.set_clock(now);
            let in_time = attempt(subject, counter, cost);
            assert!(in_time.allowed(), "in time: {told}\nanswered {in_time:?}");
        }
    }
}

fn attempt(subject: &Subject, counter: Counter<'_>, cost: u64) -> Answer {
    if subject.name == "sockets" {
        counter.hold(cost, "")
    } else {
        counter.take(cost)
    }
}

fn subjects() -> Vec<Subject> {
    vec![
        Subject {
            name: "fixed",
            definition: json!({ "algorithm": "fixed_window", "quota": 10, "window": "37s" }),
            cost_max: 10,
            pause_max_ms: 9000,
        },
        Subject {
            name: "calendar",
            definition: json!({
                "algorithm": "calendar_window", "quota": 10, "period": "hour", "every": 7,
                "anchor": "2026-01-31T00:30:00", "time_zone": "Asia/Kolkata",
            }),
            cost_max: 10,
            pause_max_ms: 6_000_000,
        },
        Subject {
            name: "sliding",
            definition: json!({ "algorithm": "sliding_window", "quota": 17, "window": "10s" }),
            cost_max: 17,
            pause_max_ms: 2500,
        },
        Subject {
            name: "log",
            definition: json!({ "algorithm": "sliding_log", "quota": 9, "window": "10s" }),
            cost_max: 9,
            pause_max_ms: 2500,
        },
        Subject {
            name: "bucket",
            definition: json!({ "algorithm": "token_bucket", "capacity": 13, "refill": 7, "per": "3s" }),
            cost_max: 13,
            pause_max_ms: 1500,
        },
        Subject {
            name: "leaky",
            definition: json!({ "algorithm": "leaky_bucket", "capacity": 13, "drain": 7, "per": "30s" }),
            cost_max: 13,
            pause_max_ms: 15_000,
        },
        Subject {
            name: "sockets",
            definition: json!({ "algorithm": "concurrency", "quota": 3, "ttl": "20s" }),
            cost_max: 1,
            pause_max_ms: 4000,
        },
    ]
}
