//! Decisions in memory, beside the `governor` crate with keys.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use governor::Quota;
use governor::RateLimiter;
use highwater::catalogue::intern::LimitId;
use highwater::domain::limit::Limit;
use highwater::domain::time::Span;
use highwater::domain::time::Timestamp;
use highwater::ledger::Bounds;
use highwater::ledger::Ledger;
use highwater::ledger::check::Item;
use highwater::ledger::check::Request;
use highwater::usage::actor::Actor;
use highwater::usage::actor::ActorTable;

use crate::Row;
use crate::median;

const KEYS: usize = 1_000_000;
const CHECKS: usize = 2_000_000;
const TURNS: usize = 7;

/// An empty ledger.
pub fn ledger() -> Ledger {
    let region = highwater::domain::name::RegionName::new("us-east-1").expect("a name");
    let bounds = Bounds {
        keys_max: 20_000_000,
        keys_per_tenant_max: 20_000_000,
    };
    Ledger::new(
        bounds,
        ActorTable::alone(Actor {
            region,
            incarnation: 1,
        }),
        1,
        [1, 2],
    )
}

/// A token bucket that never runs dry here.
pub fn limit() -> Limit {
    use highwater::domain::limit::Rule;
    Limit {
        name: highwater::domain::name::LimitName::new("api").expect("a name"),
        rule: Rule::TokenBucket {
            capacity: 1_000_000,
            refill: 1_000_000,
            per: highwater::domain::time::Span::from_seconds(1),
        },
        key: Some("user".into()),
        actions: Default::default(),
        matches: Default::default(),
        mode: Default::default(),
        on_unavailable: Default::default(),
        fallback_quota: 1,
        on_partition: Default::default(),
        split: Default::default(),
        always_allow: Default::default(),
        overdraft: false,
        durability: Default::default(),
        enforce: true,
        unlimited: false,
    }
}

/// Keys in an order that no cache can guess.
pub fn keys() -> Vec<String> {
    (0..KEYS)
        .map(|key| format!("user-{:08x}", (key as u32).wrapping_mul(0x9E37_79B1)))
        .collect()
}

/// One check of one key.
pub fn check(ledger: &Ledger, limit: &Limit, key: &str, now: Timestamp) -> bool {
    let items = [Item {
        limit,
        id: LimitId(0),
        epoch: 1,
        key,
        cost: 1,
    }];
    let request = Request {
        now,
        tenant: "acme",
        items: &items,
        hold: None,
        keep: false,
        store_failed: false,
        judge_only: false,
        boot: Span::ZERO,
        words: &[],
    };
    ledger.check(&request).allowed
}

fn now(began: Instant) -> Timestamp {
    let elapsed = i64::try_from(began.elapsed().as_nanos()).expect("a short bench");
    Timestamp::from_nanos(1_800_000_000_000_000_000 + elapsed)
}

/// Nanoseconds per decision of `threads` threads, each going through its own part of the keys.
fn time(threads: usize, decide: &(impl Fn(usize) -> bool + Sync)) -> f64 {
    let start = Barrier::new(threads + 1);
    let began = thread::scope(|scope| {
        for part in 0..threads {
            let start = &start;
            scope.spawn(move || {
                start.wait();
                for check in 0..CHECKS / threads {
                    std::hint::black_box(decide(part * CHECKS / threads + check));
                }
            });
        }
        start.wait();
        Instant::now()
    });
    began.elapsed().as_nanos() as f64 / CHECKS as f64
}

/// One and two threads at 1 M keys, beside `governor`.
pub fn decisions() -> Vec<Row> {
    let (ledger, limit, keys) = (ledger(), limit(), keys());
    let burst = NonZeroU32::new(1_000_000).expect("not zero");
    let governor = Arc::new(RateLimiter::keyed(Quota::per_second(burst)));
    let began = Instant::now();
    let ours = |check_number: usize| check(&ledger, &limit, &keys[check_number % KEYS], now(began));
    // The crate looks its keys up by reference to the owned key.
    let theirs = |check_number: usize| governor.check_key(&keys[check_number % KEYS]).is_ok();
    time(1, &ours);
    time(1, &theirs);
    let mut one = Vec::new();
    let mut two = Vec::new();
    let mut other = Vec::new();
    for _ in 0..TURNS {
        one.push(time(1, &ours));
        other.push(time(1, &theirs));
        two.push(time(2, &ours));
    }
    let against: Vec<f64> = one
        .iter()
        .zip(&other)
        .map(|(ours, theirs)| ours / theirs)
        .collect();
    let speed_up: Vec<f64> = one.iter().zip(&two).map(|(one, two)| one / two).collect();
    vec![
        Row {
            what: "one decision in the ledger, one thread, 1 M keys: time against the `governor` crate, keyed",
            measured: format!(
                "{:.2} × ({:.0} ns to {:.0} ns)",
                median(against),
                median(one.clone()),
                median(other.clone())
            ),
            wanted: "≤ 1.5 ×",
        },
        Row {
            what: "decisions/s of two threads against one",
            measured: format!("{:.2} ×", median(speed_up)),
            wanted: "≥ 1.7 ×",
        },
    ]
}
