//! Crashes under load: what was answered counts, whatever died.

use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use rand::RngExt;
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::Value;
use serde_json::json;

use crate::calls::RUNTIME;
use crate::calls::new_client;
use crate::counter::Counter;
use crate::group::Cluster;
use crate::group::LONG;
use crate::group::Setup;
use crate::group::WITHIN;
use crate::load::Call;
use crate::load::Tally;
use crate::load::post;
use crate::load::spend_all;
use crate::load::wait_used;
use crate::server::wait_until;

/// How many calls are under way at a time.
pub const CALLERS: usize = 6;
const QUOTA: u64 = 100_000;

fn body() -> Value {
    json!({ "tenant": "t", "limit": "paid" })
}

/// What callers do until they are told to stop.
#[derive(Debug)]
pub struct Callers {
    began: Instant,
    stop: AtomicBool,
    tally: Mutex<Tally>,
}

impl Callers {
    /// Calls `urls` in turn from several connections while `during` runs; what the answers were. A call without
    /// an answer counts as unknown.
    pub fn while_running(urls: &[String], body: &Value, during: impl FnOnce(&Self)) -> Tally {
        let callers = Self {
            began: Instant::now(),
            stop: AtomicBool::new(false),
            tally: Mutex::default(),
        };
        thread::scope(|scope| {
            for first in 0..CALLERS {
                let callers = &callers;
                scope.spawn(move || RUNTIME.block_on(callers.call(urls, body, first)));
            }
            during(&callers);
            callers.stop.store(true, Ordering::Relaxed);
        });
        callers.seen()
    }

    /// What the answers were so far.
    pub fn seen(&self) -> Tally {
        *self.tally.lock().expect("no caller panics")
    }

    async fn call(&self, urls: &[String], body: &Value, first: usize) {
        let client = new_client();
        let mut turn = first;
        while !self.stop.load(Ordering::Relaxed) {
            turn += 1;
            let answer = post(
                &client,
                &urls[turn % urls.len()],
                &Call::check(0, body.clone()),
            )
            .await;
            let mut tally = self.tally.lock().expect("no caller panics");
            match answer {
                Ok(answer) => {
                    if answer.status != 200 {
                        println!("{:?}: {}", self.began.elapsed(), answer.text);
                    }
                    tally.add(&answer);
                }
                Err(_) => tally.unknown += 1,
            }
        }
    }
}

/// RST-1 (a), a few rounds: kill -9 at random moments, whoever it hits. With `sync` no
/// answer is missing in the use that is told afterwards; with `async` what a process had spent and not told yet
/// counts among the stranded.
fn survives_kills(durability: &str) {
    let seed = rand::random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let mut cluster = Cluster::of(3);
    cluster.limits(&json!({ "paid": { "algorithm": "fixed_window", "quota": QUOTA, "window": LONG, "mode": "strict", "durability": durability } }));
    let mut sum = Tally::default();
    for round in 0..3 {
        let urls: Vec<String> = (0..3)
            .map(|region| cluster[region].check_url().to_owned())
            .collect();
        let victim = random.random_range(0..3);
        let after = Duration::from_millis(random.random_range(100..1500));
        let tally = Callers::while_running(&urls, &body(), |_| {
            thread::sleep(after);
            cluster.kill(victim);
        });
        println!("round {round}: {victim} after {after:?}: {tally:?}");
        // Who waits when a leader dies that had answered others meanwhile is told to come back.
        assert!(tally.refused <= CALLERS as u64, "{tally:?}");
        sum = sum.plus(tally);
        cluster.start_again(victim);
        // Another tenant's.
        cluster.wait_granted("paid");
    }
    wait_until("all use is told everywhere", WITHIN, || {
        let looks: Vec<_> = (0..3)
            .map(|region| Counter::new(&cluster[region], "t", "paid").look())
            .collect();
        looks
            .iter()
            .all(|look| (look.used(), look.remaining()) == (looks[0].used(), looks[0].remaining()))
            && looks[0].remaining() + sum.allowed <= QUOTA
            && (durability != "sync" || looks[0].used() >= sum.allowed)
    });
    let look = Counter::new(&cluster[0], "t", "paid").look();
    let (used, left) = (look.used(), look.remaining());
    println!("{sum:?}: {used} used, {} stranded", QUOTA - used - left);
    assert!(used <= sum.allowed + sum.unknown, "{used} used, {sum:?}");
}

#[test]
fn acknowledged_use_survives_kills_at_random_moments() {
    survives_kills("async");
}

#[test]
fn acknowledged_sync_use_is_told_exactly_after_kills_at_random_moments() {
    survives_kills("sync");
}

/// What a dead process held is nobody's until the window ends; every region says so, and the next window is full.
#[test]
fn units_that_died_with_a_process_are_seen_and_are_back_in_the_next_window() {
    let mut cluster = Cluster::set_up(&Setup::of(3).with_manual_clocks());
    cluster.limits(&json!({
        "paid": { "algorithm": "fixed_window", "quota": 900, "window": "60s", "mode": "strict" },
        "canary": { "algorithm": "fixed_window", "quota": 1_000_000, "window": LONG, "mode": "strict" },
    }));
    let victim = cluster.follower();
    let here = cluster.others(victim)[0];
    let urls = [cluster[victim].check_url().to_owned()];
    let tally = Callers::while_running(&urls, &body(), |callers| {
        wait_until("a few hundred are spent", WITHIN, || {
            callers.seen().allowed > 200
        });
    });
    assert_eq!(tally.unknown, 0, "{tally:?}");
    wait_used(&cluster, "t", "paid", tally.allowed);
    cluster.kill(victim);
    cluster.start_again(victim);
    cluster.wait_granted("canary");
    let look = Counter::new(&cluster[here], "t", "paid").look();
    let (used, left) = (look.used(), look.remaining());
    println!("{used} used, {left} left, {} stranded", 900 - used - left);
    assert_eq!(used, tally.allowed, "{look:?}");
    assert_eq!(spend_all(&cluster, &body()), left);
    wait_used(&cluster, "t", "paid", used + left);

    cluster.at(60_000);
    for region in 0..3 {
        let look = Counter::new(&cluster[region], "t", "paid").look();
        assert_eq!((look.used(), look.remaining()), (0, 900), "{look:?}");
    }
    let big = json!({ "tenant": "t", "limit": "paid", "cost": 300 });
    for region in 0..3 {
        // Units that lie in another region come back within the Retry-After of a refusal.
        wait_until("all of the new window can be used", WITHIN, || {
            crate::load::decided(&cluster[region], &big).allowed()
        });
    }
    assert_eq!(spend_all(&cluster, &body()), 0);
}

/// What is counted in one region alone is kept by that region, also when it belongs to a cluster.
#[test]
fn regional_use_and_holds_survive_a_restart_of_their_region() {
    let mut cluster = Cluster::of(3);
    cluster.limits(&json!({
        "here": { "algorithm": "fixed_window", "quota": 10, "window": LONG, "durability": "sync" },
        "bucket": { "algorithm": "token_bucket", "capacity": 10, "refill": 1, "per": "30d", "durability": "sync" },
        "paid": { "algorithm": "fixed_window", "quota": 10, "window": LONG, "mode": "strict", "durability": "sync" },
    }));
    for region in [cluster.follower(), cluster.leader()] {
        assert_eq!(Counter::new(&cluster[region], "t", "here").passes(7), 7);
        assert_eq!(Counter::new(&cluster[region], "t", "bucket").passes(4), 4);
        let held = Counter::new(&cluster[region], "t", "paid").hold(3, "1h");
        let hold = crate::counter::Hold::granted(&held);
        cluster.kill(region);
        cluster.start_again(region);
        // At once: a region serves by what it has, whether it has found its peers yet or not.
        assert_eq!(Counter::new(&cluster[region], "t", "here").used(), 7);
        assert_eq!(Counter::new(&cluster[region], "t", "here").passes(10), 3);
        assert_eq!(Counter::new(&cluster[region], "t", "bucket").passes(10), 6);
        cluster.wait_granted("paid");
        hold.settle(&cluster[region], 1).succeeded();
    }
}

/// Waits until the log has every unit of a limit as spent or given back. Until then a bucket takes what regions were
/// given for its own, and earns no more than the rest.
fn wait_told(cluster: &Cluster, limit: &str) {
    let path = format!("/admin/v1/tenants/t/limits/{limit}/ledger");
    let mut last = Value::Null;
    for region in cluster.running() {
        wait_until("nothing is held", WITHIN, || {
            last = cluster[region]
                .admin(reqwest::Method::GET, &path, &Value::Null)
                .body;
            let rows = last["rows"].as_array();
            rows.is_some_and(|rows| {
                !rows.is_empty() && rows.iter().all(|row| row["held"].as_u64() == Some(0))
            })
        });
    }
}

/// RST-3 (a, b): a region that ends in good order and comes back five seconds later, of strict limits whose units it
/// spends from a reservation.
#[test]
fn strict_windows_and_buckets_keep_their_own_time_over_a_restart() {
    for leads in [false, true] {
        let mut cluster = Cluster::set_up(&Setup::of(3).with_manual_clocks());
        cluster.limits(&json!({
            "paid": { "algorithm": "fixed_window", "quota": 10, "window": "60s", "mode": "strict" },
            "bucket": { "algorithm": "token_bucket", "capacity": 10, "refill": 1, "per": "1s", "mode": "strict" },
            "canary": { "algorithm": "fixed_window", "quota": 1_000_000, "window": LONG, "mode": "strict" },
        }));
        let victim = if leads {
            cluster.leader()
        } else {
            cluster.follower()
        };
        let bucket = json!({ "tenant": "t", "limit": "bucket", "cost": 10 });
        let down = |cluster: &mut Cluster, from: i64, until: i64| {
            cluster.at(from);
            cluster.terminate(victim);
            cluster.at(until);
            cluster.start_again(victim);
            cluster[victim].at(until);
            cluster.wait_granted("canary");
        };
        // A bucket earns nothing from the last entry of a leader to the first of the next one, here a second at most.
        let left = |cluster: &Cluster, limit: &str, wanted: std::ops::RangeInclusive<u64>| {
            for region in 0..3 {
                let what = format!("{wanted:?} are left of {limit}, leads: {leads}");
                wait_until(&what, WITHIN, || {
                    let left = Counter::new(&cluster[region], "t", limit).left();
                    wanted.contains(&left)
                });
            }
        };
        assert!(crate::load::decided(&cluster[victim], &bucket).allowed());
        wait_told(&cluster, "bucket");
        down(&mut cluster, 1_000, 4_000);
        left(&cluster, "bucket", 3..=4);
        cluster.at(20_000);
        assert_eq!(Counter::new(&cluster[victim], "t", "paid").passes(7), 7);
        assert!(crate::load::decided(&cluster[victim], &bucket).allowed());
        wait_used(&cluster, "t", "paid", 7);
        wait_told(&cluster, "bucket");
        down(&mut cluster, 21_000, 25_000);
        left(&cluster, "paid", 3..=3);
        for region in 0..3 {
            let look = Counter::new(&cluster[region], "t", "paid").look();
            assert_eq!(look.reset_after_ms(), 35_000, "{look:?}");
        }
        left(&cluster, "bucket", 4..=5);
        cluster.at(50_000);
        left(&cluster, "bucket", 10..=10);
        assert_eq!(spend_all(&cluster, &body()), 3);
    }
}

/// RST-3 (c, d): all regions are killed at once; what the log decides is in the log, with its own time.
#[test]
fn strict_logs_and_leases_keep_their_own_time_over_the_end_of_all_regions() {
    let mut cluster = Cluster::set_up(&Setup::of(3).with_manual_clocks());
    cluster.limits(&json!({
        "paid": { "algorithm": "sliding_log", "quota": 2, "window": "60s", "mode": "strict" },
        "slots": { "algorithm": "concurrency", "quota": 1, "ttl": "30s", "mode": "strict" },
        "canary": { "algorithm": "fixed_window", "quota": 1_000_000, "window": LONG, "mode": "strict" },
    }));
    let at = |cluster: &Cluster, ms: i64| {
        cluster.at(ms);
        crate::load::decided(&cluster[0], &body()).allowed()
    };
    assert!(at(&cluster, 0));
    crate::counter::Hold::granted(&Counter::new(&cluster[1], "t", "slots").hold(1, ""));
    assert!(at(&cluster, 10_000));
    for region in 0..3 {
        cluster.kill(region);
    }
    for region in 0..3 {
        cluster.start_again(region);
    }
    cluster.at(20_000);
    cluster.wait_granted("canary");
    let hold = |cluster: &Cluster, ms: i64| {
        cluster.at(ms);
        Counter::new(&cluster[2], "t", "slots")
            .hold(1, "")
            .allowed()
    };
    assert!(!hold(&cluster, 29_900));
    assert!(hold(&cluster, 30_000), "free at 30, not at 40");
    assert!(!at(&cluster, 59_900));
    assert!(at(&cluster, 60_000));
    assert!(!at(&cluster, 60_000));
}
