//! Kill -9 at random moments under load, then compare what clients were told with what the server kept.
//!
//! Eight clients charge four kinds of counters until the server dies under them:
//!
//! - `sync` limits lose no acknowledged charge: acknowledged ≤ used ≤ acknowledged + in flight.
//! - `async` limits lose at most what was acknowledged in the last flush interval before the kill, widened by
//!   twice the longest wait for an answer that any client saw in that round (a flush begins late and ends late on
//!   a busy machine, by about as much); and count nothing twice: used ≤ acknowledged + in flight.
//! - Keyed requests in flight at the kill are repeated with their `Idempotency-Key` after it: used = sent, exactly,
//!   whatever the durability of their limit.
//!
//! Every restart is a plain start on what the kill left. Rounds: `HIGHWATER_CRASH_ROUNDS` (5); seed:
//! `HIGHWATER_CRASH_SEED`. A failure prints both.

#[path = "api/answer.rs"]
mod answer;
#[allow(dead_code, reason = "each test binary uses its part of the harness")]
#[path = "api/calls.rs"]
mod calls;
#[path = "api/counter.rs"]
mod counter;
#[allow(dead_code, reason = "each test binary uses its part of the harness")]
#[path = "api/server.rs"]
mod server;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use rand::RngExt;
use rand::SeedableRng;
use rand::rngs::StdRng;
use reqwest::Client;
use reqwest::Method;
use serde_json::Value;
use serde_json::json;

use crate::calls::RUNTIME;
use crate::calls::new_client;
use crate::calls::send;
use crate::counter::Counter;
use crate::server::Server;
use crate::server::Stop;

const CLIENTS: u64 = 8;
const KEYS: u64 = 5;
const FLUSH_INTERVAL: Duration = Duration::from_millis(100);

/// Which of the promises a counter is held to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Sync,
    Async,
    KeyedSync,
    KeyedAsync,
}

const KINDS: [Kind; 4] = [Kind::Sync, Kind::Async, Kind::KeyedSync, Kind::KeyedAsync];

impl Kind {
    const fn is_keyed(self) -> bool {
        matches!(self, Self::KeyedSync | Self::KeyedAsync)
    }

    const fn limit(self) -> &'static str {
        match self {
            Self::Sync => "paid",
            Self::Async => "counted",
            Self::KeyedSync => "once-sync",
            Self::KeyedAsync => "once-async",
        }
    }
}

/// One counter: a kind and a key.
type Place = (Kind, String);

/// One request and what became of it.
struct Charge {
    place: Place,
    cost: u64,
    idempotency_key: String,
    /// When the answer came, and how long it took; none when the server died before.
    acknowledged: Option<(Instant, Duration)>,
}

/// What a counter must hold: between the two, both counted from the first round on.
#[derive(Clone, Copy, Default)]
struct Expected {
    least: u64,
    most: u64,
}

#[test]
fn kill_9_under_load_loses_and_doubles_nothing() {
    let rounds = setting("HIGHWATER_CRASH_ROUNDS").unwrap_or(5);
    let seed = setting("HIGHWATER_CRASH_SEED").unwrap_or(1);
    println!("HIGHWATER_CRASH_ROUNDS={rounds} HIGHWATER_CRASH_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let mut server = Server::on_real_clock(&[("store.flush_interval", "\"100ms\"")]);
    server.limits(&limits());
    let mut expected: BTreeMap<Place, Expected> = BTreeMap::new();
    let mut total = Totals::default();
    for round in 0..rounds {
        let answers = Arc::new(AtomicUsize::new(0));
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let source = StdRng::seed_from_u64(random.random());
                let name = format!("{round}-{client}");
                RUNTIME.spawn(charge_until_it_dies(
                    server.check_url().to_owned(),
                    name,
                    source,
                    Arc::clone(&answers),
                ))
            })
            .collect();
        server::wait_until("clients are served", Duration::from_secs(10), || {
            answers.load(Ordering::Relaxed) > 50
        });
        thread::sleep(Duration::from_micros(random.random_range(0..400_000)));
        let killed = Instant::now();
        server.stop(Stop::Kill);
        let charges: Vec<Charge> = clients
            .into_iter()
            .flat_map(|client| RUNTIME.block_on(client).expect("the client ends"))
            .collect();
        server.start_again();
        repeat_unanswered(&server, &charges);
        let lost_most = expect(&mut expected, &charges, killed);
        total.add(&charges);
        verify(
            &server,
            &mut expected,
            &lost_most,
            &format!("round {round} of {rounds}, seed {seed}"),
        );
    }
    println!("{total:?}");
    assert!(
        total.acknowledged > 100 * rounds,
        "there was load: {total:?}"
    );
}

#[derive(Debug, Default)]
struct Totals {
    acknowledged: u64,
    in_flight: u64,
}

impl Totals {
    fn add(&mut self, charges: &[Charge]) {
        for charge in charges {
            let count = if charge.acknowledged.is_some() {
                &mut self.acknowledged
            } else {
                &mut self.in_flight
            };
            *count += 1;
        }
    }
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| {
        value
            .parse()
            .unwrap_or_else(|_| panic!("{name}={value} is no number"))
    })
}

/// Windows of ten years, so that none ends during the test; and large quotas, so that nothing is refused.
fn limits() -> Value {
    let limit = |durability: &str| {
        json!({
            "algorithm": "fixed_window", "quota": 1_000_000_000, "window": "3650d", "key": "user", "durability": durability,
            "on_unavailable": "closed",
        })
    };
    json!({ "paid": limit("sync"), "counted": limit("async"), "once-sync": limit("sync"), "once-async": limit("async") })
}

/// Charges random counters, one request after the other, until the connection breaks.
async fn charge_until_it_dies(
    url: String,
    name: String,
    mut random: StdRng,
    answers: Arc<AtomicUsize>,
) -> Vec<Charge> {
    let client = new_client();
    let mut charges = Vec::new();
    loop {
        let kind = KINDS[random.random_range(0..KINDS.len())];
        let mut charge = Charge {
            place: (kind, format!("key {}", random.random_range(0..KEYS))),
            cost: random.random_range(1..=5),
            idempotency_key: format!("{name}-{}", charges.len()),
            acknowledged: None,
        };
        let started = Instant::now();
        let answered = attempt(&client, &url, &charge).await;
        if answered {
            charge.acknowledged = Some((Instant::now(), started.elapsed()));
            answers.fetch_add(1, Ordering::Relaxed);
        }
        charges.push(charge);
        if !answered {
            return charges;
        }
    }
}

/// Sends one charge; whether it was acknowledged. While the server lives, nothing but a yes is right.
async fn attempt(client: &Client, url: &str, charge: &Charge) -> bool {
    let (kind, key) = &charge.place;
    let body = json!({ "tenant": "t", "limit": kind.limit(), "key": key, "cost": charge.cost });
    let idempotency = [("idempotency-key", charge.idempotency_key.as_str())];
    let headers: &[(&str, &str)] = if kind.is_keyed() { &idempotency } else { &[] };
    match send(
        client,
        Method::POST,
        &format!("{url}/v1/check"),
        headers,
        &body,
    )
    .await
    {
        Ok(answer) => {
            assert!(answer.allowed(), "{answer:?}");
            assert_eq!(answer.only()["degraded"], false, "{answer:?}");
            true
        }
        Err(_) => false,
    }
}

/// Keyed requests without an answer are sent again under their key.
fn repeat_unanswered(server: &Server, charges: &[Charge]) {
    let client = new_client();
    for charge in charges
        .iter()
        .filter(|charge| charge.place.0.is_keyed() && charge.acknowledged.is_none())
    {
        assert!(
            RUNTIME.block_on(attempt(&client, server.check_url(), charge)),
            "the repeat is answered"
        );
    }
}

/// Adds a round's charges to what is expected; gives the most that each `async` counter may have lost.
fn expect(
    expected: &mut BTreeMap<Place, Expected>,
    charges: &[Charge],
    killed: Instant,
) -> BTreeMap<Place, u64> {
    let acknowledged = charges.iter().filter_map(|charge| charge.acknowledged);
    let slack = acknowledged.map(|(_, took)| took).max().unwrap_or_default();
    let safe_before = killed.checked_sub(FLUSH_INTERVAL + 2 * slack);
    let mut lost_most = BTreeMap::new();
    for charge in charges {
        let expected = expected.entry(charge.place.clone()).or_default();
        expected.most += charge.cost;
        match charge.acknowledged {
            Some((at, _)) => {
                expected.least += charge.cost;
                if charge.place.0 == Kind::Async
                    && safe_before.is_none_or(|safe_before| at > safe_before)
                {
                    *lost_most.entry(charge.place.clone()).or_default() += charge.cost;
                }
            }
            None if charge.place.0.is_keyed() => expected.least += charge.cost,
            None => {}
        }
    }
    lost_most
}

/// Compares every counter; what it holds is the base of the next round.
fn verify(
    server: &Server,
    expected: &mut BTreeMap<Place, Expected>,
    lost_most: &BTreeMap<Place, u64>,
    told: &str,
) {
    for ((kind, key), expected) in expected.iter_mut() {
        let used = Counter::keyed(server, "t", kind.limit(), key).used();
        let place = (*kind, key.clone());
        let least = expected.least - lost_most.get(&place).copied().unwrap_or(0);
        assert!(
            used >= least,
            "{kind:?} {key} lost {} units; {told}",
            least - used
        );
        assert!(
            used <= expected.most,
            "{kind:?} {key} counts {} units too many; {told}",
            used - expected.most
        );
        *expected = Expected {
            least: used,
            most: used,
        };
    }
}
