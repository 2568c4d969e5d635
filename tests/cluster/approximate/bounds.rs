//! REP-9: how much more than the quota is given under load, against the bound that is promised.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use serde_json::json;
use tokio::time::MissedTickBehavior;

use crate::approximate::INTERVAL;
use crate::approximate::cluster_with;
use crate::approximate::fixed;
use crate::approximate::of;
use crate::approximate::wait_agreed;
use crate::calls::RUNTIME;
use crate::calls::new_client;
use crate::group::Cluster;
use crate::group::NAMES;
use crate::group::Setup;
use crate::load::Call;
use crate::load::post;

const QUOTA: u64 = 900;
/// Calls per second in each region.
const RATE: u64 = 100;
/// How long regions take to see that one is cut off.
const DETECTED_AFTER: Duration = Duration::from_secs(1);
/// The one-way delay between regions, at most what the case says.
const FAR: Duration = Duration::from_millis(100);
/// More calls than this are never under way in one region.
const CALLERS: u64 = 10;

/// What the callers of one region were told.
#[derive(Debug, Default)]
struct Seen {
    asked: AtomicU64,
    allowed: AtomicU64,
    degraded: AtomicU64,
    refused_as_degraded: AtomicU64,
}

impl Seen {
    fn allowed(&self) -> u64 {
        self.allowed.load(Ordering::Relaxed)
    }
}

/// 100 calls a second in each of `regions`, at a steady pace, while `during` runs.
fn under_load(cluster: &Cluster, regions: &[usize], during: impl FnOnce(&[Seen])) -> Vec<Seen> {
    let seen: Vec<Seen> = NAMES.iter().map(|_| Seen::default()).collect();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for region in regions {
            let (url, seen, is_over) = (cluster[*region].check_url(), &seen[*region], &is_over);
            for caller in 0..CALLERS {
                scope.spawn(move || RUNTIME.block_on(call(url, caller, seen, is_over)));
            }
        }
        during(&seen);
        is_over.store(true, Ordering::Relaxed);
    });
    seen
}

async fn call(url: &str, caller: u64, seen: &Seen, is_over: &AtomicBool) {
    let client = new_client();
    let check = Call::check(0, json!({ "tenant": "t", "limit": "shared" }));
    let every = Duration::from_millis(1_000 * CALLERS / RATE);
    let first = tokio::time::Instant::now()
        + every * u32::try_from(caller).expect("few") / u32::try_from(CALLERS).expect("few");
    let mut ticks = tokio::time::interval_at(first, every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    while !is_over.load(Ordering::Relaxed) {
        ticks.tick().await;
        let answer = post(&client, url, &check).await.expect("an answer");
        seen.asked.fetch_add(1, Ordering::Relaxed);
        let is_allowed = answer.allowed();
        let is_degraded = answer.only()["degraded"] == true;
        seen.allowed
            .fetch_add(u64::from(is_allowed), Ordering::Relaxed);
        seen.degraded
            .fetch_add(u64::from(is_degraded), Ordering::Relaxed);
        seen.refused_as_degraded
            .fetch_add(u64::from(is_degraded && !is_allowed), Ordering::Relaxed);
    }
}

fn far_apart(settings: &[(&str, &str)]) -> Cluster {
    let setup = Setup {
        latency: "100ms",
        settings,
        ..Setup::of(3).with_manual_clocks()
    };
    cluster_with(&setup, json!({ "shared": fixed(QUOTA, "60s") }))
}

fn sum(seen: &[Seen]) -> u64 {
    seen.iter().map(Seen::allowed).sum()
}

fn wait(until: impl Fn() -> bool) {
    crate::server::wait_until("the load goes on", Duration::from_secs(60), until);
}

/// What all regions but one can use before it hears of that.
fn unheard(others: u64, interval: Duration) -> u64 {
    let unheard = interval + FAR;
    others * RATE * u64::try_from(unheard.as_millis()).expect("short") / 1_000
}

fn stays_within_the_bound(cluster: &Cluster, regions: &[usize], interval: Duration) {
    let seen = under_load(cluster, regions, |seen| {
        let all = |seen: &[Seen]| regions.iter().all(|region| asked(&seen[*region]) > 700);
        wait(|| all(seen) && sum(seen) >= QUOTA);
    });
    let used: Vec<u64> = seen.iter().map(Seen::allowed).collect();
    wait_agreed(cluster, of("shared"), &used);
    let others = u64::try_from(regions.len()).expect("few") - 1;
    let bound = QUOTA + unheard(others, interval);
    let admitted = sum(&seen);
    println!(
        "{} regions: {admitted} admitted ({used:?}); quota {QUOTA}, bound {QUOTA} + {others} x {RATE}/s x ({interval:?} + {FAR:?}) = {bound}",
        regions.len()
    );
    assert!(admitted >= QUOTA, "{admitted}");
    assert!(admitted <= bound, "{admitted} of at most {bound}");
    // The rule of sharing does far better than this: what is left is dealt out.
    assert!(admitted <= QUOTA + QUOTA / 100, "{admitted}");
}

fn asked(seen: &Seen) -> u64 {
    seen.asked.load(Ordering::Relaxed)
}

#[test]
fn three_regions_admit_no_more_than_the_formula_says_and_two_neither() {
    let cluster = far_apart(&[]);
    stays_within_the_bound(&cluster, &[0, 1, 2], INTERVAL);
    // The next window, one region silent.
    cluster.at(60_000);
    stays_within_the_bound(&cluster, &[0, 2], INTERVAL);
}

/// As the case has it: a second between rounds.
#[test]
fn rare_rounds_keep_to_the_formula_too() {
    let rare = Duration::from_secs(1);
    let cluster = far_apart(&[("replication.interval", "\"1s\"")]);
    stays_within_the_bound(&cluster, &[0, 1, 2], rare);
    cluster.at(60_000);
    stays_within_the_bound(&cluster, &[0, 1], rare);
}

#[test]
fn a_region_that_is_cut_off_under_load_adds_no_more_than_it_used_alone_and_says_so() {
    let cluster = far_apart(&[]);
    let alone = cluster.follower();
    let mut used_alone = 0;
    let seen = under_load(&cluster, &[0, 1, 2], |seen| {
        wait(|| sum(seen) >= 200);
        let before = seen[alone].allowed();
        let fault = cluster.cut_off(alone);
        let began = Instant::now();
        wait(|| began.elapsed() >= Duration::from_secs(10));
        used_alone = seen[alone].allowed() - before;
        cluster[alone].heal(&fault);
        let healed = Instant::now();
        wait(|| sum(seen) >= QUOTA && healed.elapsed() >= Duration::from_secs(3));
    });
    let used: Vec<u64> = seen.iter().map(Seen::allowed).collect();
    wait_agreed(&cluster, of("shared"), &used);
    let admitted = sum(&seen);
    let detected = 3 * RATE * DETECTED_AFTER.as_secs();
    let (bound, tighter) = (
        QUOTA + used_alone + unheard(2, INTERVAL),
        QUOTA + detected + unheard(2, INTERVAL),
    );
    println!(
        "cut off for 10 s: {admitted} admitted ({used:?}), {used_alone} by the region alone; quota {QUOTA}, bound {QUOTA} + {used_alone} + {} = {bound}, \
         by the parts kept {QUOTA} + 3 x {RATE}/s x {DETECTED_AFTER:?} + {} = {tighter}",
        unheard(2, INTERVAL),
        unheard(2, INTERVAL)
    );
    println!("{seen:?}");
    assert!(admitted >= QUOTA, "{admitted}");
    assert!(admitted <= bound, "{admitted} of at most {bound}");
    assert!(admitted <= tighter, "{admitted} of at most {tighter}");
    for region in 0..3 {
        // Nine of ten seconds, less what the machine takes.
        let degraded = seen[region].degraded.load(Ordering::Relaxed);
        assert!(
            degraded >= 5 * RATE,
            "{}: {:?}",
            NAMES[region],
            seen[region]
        );
    }
    let kept = seen[alone].refused_as_degraded.load(Ordering::Relaxed);
    assert!(kept > 0, "its part was used up: {:?}", seen[alone]);
    let told = cluster[alone].metric("rate_limit_degraded_total", &[]);
    println!("degraded by the region's metrics: {told}");
}
