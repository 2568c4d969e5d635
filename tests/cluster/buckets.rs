//! Strict token buckets, spent from reservations in three regions.
//!
//! What was allowed is held against the law of a bucket: between any two instants no more than the capacity and
//! what the time between them earns. An answer is as old as its request at most, and no older than itself; log
//! time runs fast by 500 ppm at most.

use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use serde_json::Value;
use serde_json::json;

use crate::calls::RUNTIME;
use crate::calls::new_client;
use crate::counter::Counter;
use crate::group::Cluster;
use crate::group::Setup;
use crate::group::WITHIN;
use crate::load::Call;
use crate::load::decided;
use crate::load::post;
use crate::load::wait_used;
use crate::server::wait_until;

/// How long a region may spend units that it holds without a word from a leader, and the leader waits after it.
const LEASE: Duration = Duration::from_millis(10_250);
/// Log time may run fast by so many millionths.
const FAST_PPM: u64 = 500;

/// A bucket's amounts.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    capacity: u64,
    /// Units a second.
    rate: u64,
}

impl Bucket {
    fn limits(self) -> Value {
        json!({ "bucket": {
            "algorithm": "token_bucket", "capacity": self.capacity, "refill": self.rate, "per": "1s", "mode": "strict",
        } })
    }

    /// Units times nanoseconds of a second that `time` earns at most.
    fn earned(self, time: Duration) -> u128 {
        let nanos = time.as_nanos();
        (nanos + nanos * u128::from(FAST_PPM) / 1_000_000 + 1_000_000) * u128::from(self.rate)
    }
}

/// A unit that was allowed: when it was asked for and when the answer came.
type Allowed = (Instant, Instant);

/// No more between any two instants than the bucket has.
fn assert_within(bucket: Bucket, mut allowed: Vec<Allowed>) {
    allowed.sort_unstable_by_key(|(_, heard)| *heard);
    for (from, _) in &allowed {
        let mut units = 0_u64;
        for (sent, heard) in &allowed {
            if sent < from {
                continue;
            }
            units += 1;
            let time = heard.duration_since(*from);
            let most = u128::from(bucket.capacity) * 1_000_000_000 + bucket.earned(time);
            assert!(
                u128::from(units) * 1_000_000_000 <= most,
                "{units} units in {time:?} of {bucket:?}"
            );
        }
    }
}

/// Callers that ask for one unit after the other, everywhere, until they are told to stop.
struct Spenders {
    stop: AtomicBool,
    allowed: Mutex<Vec<Allowed>>,
    by_region: Mutex<Vec<u64>>,
}

impl Spenders {
    /// Lets two callers of each of `regions` ask with a pause between two calls while `during` runs.
    fn while_running(
        cluster: &Cluster,
        regions: &[usize],
        pause: Duration,
        during: impl FnOnce(&Self),
    ) -> Vec<Allowed> {
        let spenders = Self {
            stop: AtomicBool::new(false),
            allowed: Mutex::default(),
            by_region: Mutex::new(vec![0; cluster.len()]),
        };
        let urls: Vec<(usize, String)> = regions
            .iter()
            .flat_map(|region| [*region; 2])
            .map(|region| (region, cluster[region].check_url().to_owned()))
            .collect();
        thread::scope(|scope| {
            for (region, url) in &urls {
                let spenders = &spenders;
                scope.spawn(move || RUNTIME.block_on(spenders.spend(*region, url, pause)));
            }
            during(&spenders);
            spenders.stop.store(true, Ordering::Relaxed);
        });
        spenders.allowed.into_inner().expect("no caller panics")
    }

    fn seen(&self, region: usize) -> u64 {
        self.by_region.lock().expect("no caller panics")[region]
    }

    async fn spend(&self, region: usize, url: &str, pause: Duration) {
        let client = new_client();
        let call = Call::check(region, json!({ "tenant": "t", "limit": "bucket" }));
        while !self.stop.load(Ordering::Relaxed) {
            let sent = Instant::now();
            // A call of a region that stands still, or is gone, gets no answer.
            let answered = tokio::time::timeout(Duration::from_secs(20), post(&client, url, &call));
            if let Ok(Ok(answer)) = answered.await
                && answer.status == 200
            {
                assert_eq!(answer.only()["degraded"], false, "{answer:?}");
                let heard = Instant::now();
                self.allowed
                    .lock()
                    .expect("no caller panics")
                    .push((sent, heard));
                self.by_region.lock().expect("no caller panics")[region] += 1;
            }
            tokio::time::sleep(pause).await;
        }
    }
}

/// Takes the whole capacity at once in one region, as soon as that is to be had.
fn take_all(cluster: &Cluster, region: usize, bucket: Bucket, within: Duration) {
    let counter = Counter::new(&cluster[region], "t", "bucket");
    let mut last = None;
    let began = Instant::now();
    while began.elapsed() < within {
        let answer = counter.take(bucket.capacity);
        if answer.status == 200 {
            println!("the whole capacity is there after {:?}", began.elapsed());
            return;
        }
        last = Some(answer);
        thread::sleep(Duration::from_millis(50));
    }
    panic!("the capacity is not to be had: {last:?}");
}

#[test]
fn three_regions_spend_a_capacity_and_are_told_when_the_next_unit_is_there() {
    let cluster = Cluster::set_up(&Setup::of(3).with_manual_clocks());
    cluster.limits(&json!({ "bucket": {
        "algorithm": "token_bucket", "capacity": 12, "refill": 10, "per": "60s", "mode": "strict",
    } }));
    let body = json!({ "tenant": "t", "limit": "bucket" });
    let allowed = (0..30)
        .filter(|call| decided(&cluster[call % 3], &body).allowed())
        .count();
    assert_eq!(allowed, 12);
    for region in 0..3 {
        // The bucket is empty and earns a unit in 6 s; time stands still.
        for (cost, after_ms) in [(1, 6_000), (2, 12_000), (12, 72_000)] {
            let answer = decided(
                &cluster[region],
                &json!({ "tenant": "t", "limit": "bucket", "cost": cost }),
            );
            assert_eq!(answer.status, 429, "{answer:?}");
            assert_eq!(answer.reason(), "quota_exceeded", "{answer:?}");
            assert_eq!(answer.retry_after_ms(), Some(after_ms), "{answer:?}");
            assert_eq!(answer.remaining(), 0, "{answer:?}");
        }
    }
    let unit = |region: usize| decided(&cluster[region], &body).allowed();
    // What the leader was not told of is spent, for the bucket, when it is told; that takes real time.
    wait_used(&cluster, "t", "bucket", 12);
    cluster.at(5_900);
    assert!((0..3).all(|region| !unit(region)));
    cluster.at(6_000);
    // A region goes by the leader's word of a moment ago, and by its own boot clock, for the 100 ms that it lasts.
    wait_until("after the time that was told", WITHIN, || (0..3).any(unit));
    assert!(!(0..3).any(unit), "one unit, and no more");
    wait_used(&cluster, "t", "bucket", 12);
    cluster.at(200_000);
    let mut again = 0;
    wait_until("full again", WITHIN, || {
        again += (0..3).filter(|region| unit(*region)).count();
        again >= 12
    });
    assert_eq!(again, 12, "and no fuller");
    assert!(!(0..3).any(unit), "and no fuller");
}

#[test]
fn a_refusal_tells_by_the_real_clock_when_to_come_back() {
    let bucket = Bucket {
        capacity: 20,
        rate: 1,
    };
    let cluster = Cluster::of(3);
    cluster.limits(&bucket.limits());
    let began = Instant::now();
    let mut allowed = 0;
    let counter = |call: usize| Counter::new(&cluster[call % 3], "t", "bucket");
    let mut refused = Vec::new();
    for call in 0..60 {
        let answer = counter(call).take(1);
        allowed += u64::from(answer.status == 200);
        if answer.status == 429 {
            refused.push((Instant::now(), answer));
        }
    }
    let most = 20 + u64::try_from(bucket.earned(began.elapsed()) / 1_000_000_000).expect("few");
    assert!((20..=most).contains(&allowed), "{allowed} of {most}");
    // Nobody else asks: what was told last holds.
    let (told, answer) = refused.last().expect("more was asked for than there is");
    let after = answer.retry_after_ms().expect("it was refused");
    assert!(after <= 2_000, "a unit a second: {answer:?}");
    wait_until("the time that was told is over", WITHIN, || {
        told.elapsed() >= Duration::from_millis(after + 100)
    });
    let (_, answer) = refused.pop().expect("the last");
    assert!(
        counter(0).take(1).allowed(),
        "after the time that was told: {answer:?}"
    );
    take_all(&cluster, 1, bucket, Duration::from_secs(40));
}

#[test]
fn what_a_killed_region_held_is_spent_until_its_lease_ends_and_comes_back_then() {
    let bucket = Bucket {
        capacity: 60,
        rate: 6,
    };
    let mut cluster = Cluster::of(3);
    cluster.limits(&bucket.limits());
    let victim = cluster.follower();
    let others = cluster.others(victim);
    let mut killed = Instant::now();
    let allowed = Spenders::while_running(
        &cluster,
        &[0, 1, 2],
        Duration::from_millis(400),
        |spenders| {
            wait_until("all regions spend", WITHIN, || {
                (0..3).all(|region| spenders.seen(region) > 8)
            });
        },
    );
    let before = allowed.len();
    cluster.kill(victim);
    killed = killed.max(Instant::now());
    let mut all = allowed;
    let regions = others.clone();
    all.extend(Spenders::while_running(
        &cluster,
        &regions,
        Duration::from_millis(20),
        |_| {
            wait_until("the lease is over", WITHIN, || killed.elapsed() > LEASE * 2);
        },
    ));
    println!(
        "{before} units before, {} in {:?} after",
        all.len() - before,
        killed.elapsed()
    );
    assert!(all.len() > before, "the others go on");
    assert_within(bucket, all);
    // Nothing is lost for good, though the region does not come back.
    take_all(&cluster, others[0], bucket, Duration::from_secs(30));
    cluster.start_again(victim);
    cluster.wait_granted("bucket");
}

#[test]
fn a_region_that_stood_still_for_longer_than_its_lease_spends_nothing_of_it() {
    let bucket = Bucket {
        capacity: 60,
        rate: 4,
    };
    let cluster = Cluster::of(3);
    cluster.limits(&bucket.limits());
    for stopped in [cluster.follower(), cluster.leader()] {
        let allowed = Spenders::while_running(
            &cluster,
            &[0, 1, 2],
            Duration::from_millis(100),
            |spenders| {
                wait_until("all regions spend", WITHIN, || {
                    (0..3).all(|region| spenders.seen(region) > 3)
                });
                cluster.pause(stopped);
                let since = Instant::now();
                wait_until("the lease is over", WITHIN, || {
                    since.elapsed() > LEASE * 3 / 2
                });
                cluster.go_on(stopped);
                let before = spenders.seen(stopped);
                wait_until("it spends again", WITHIN, || {
                    spenders.seen(stopped) > before + 2
                });
            },
        );
        println!("{} units", allowed.len());
        assert_within(bucket, allowed);
    }
    take_all(&cluster, cluster.follower(), bucket, WITHIN);
}

#[test]
fn a_bucket_goes_on_after_its_leader_was_killed() {
    let bucket = Bucket {
        capacity: 40,
        rate: 10,
    };
    let mut cluster = Cluster::of(3);
    cluster.limits(&bucket.limits());
    let leader = cluster.leader();
    let others = cluster.others(leader);
    let first = Spenders::while_running(
        &cluster,
        &[0, 1, 2],
        Duration::from_millis(50),
        |spenders| {
            wait_until("all regions spend", WITHIN, || {
                (0..3).all(|region| spenders.seen(region) > 10)
            });
        },
    );
    cluster.kill(leader);
    let mut all = first;
    all.extend(Spenders::while_running(
        &cluster,
        &others,
        Duration::from_millis(20),
        |spenders| {
            cluster.wait_for_another_leader(leader);
            let before: Vec<u64> = others.iter().map(|region| spenders.seen(*region)).collect();
            wait_until("they are granted units again", WITHIN, || {
                others
                    .iter()
                    .zip(&before)
                    .all(|(region, before)| spenders.seen(*region) > before + 10)
            });
        },
    ));
    println!("{} units", all.len());
    assert_within(bucket, all);
    cluster.start_again(leader);
    cluster.wait_granted("bucket");
    take_all(&cluster, leader, bucket, WITHIN);
}
