//! Regions that end and come back: with what they had, with an older self, or with nothing.

use std::fs;
use std::path::Path;
use std::time::Duration;
use std::time::Instant;

use serde_json::Value;
use serde_json::json;

use crate::approximate::Which;
use crate::approximate::by_region;
use crate::approximate::cluster_with;
use crate::approximate::fixed;
use crate::approximate::let_news_pass;
use crate::approximate::of;
use crate::approximate::take_patiently;
use crate::approximate::wait_agreed;
use crate::approximate::wait_in_touch;
use crate::approximate::with;
use crate::counter::Hold;
use crate::group::Cluster;
use crate::group::LONG;
use crate::group::NAMES;
use crate::group::Setup;
use crate::group::WITHIN;
use crate::group::is_ready;
use crate::group::version;
use crate::load::wait_used_at;
use crate::server::wait_until;

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("a file is copied");
        }
    }
}

/// How often the region is started again at the end of REP-1; the case says 50.
fn restarts() -> u64 {
    std::env::var("HIGHWATER_TEST_RESTARTS")
        .map_or(10, |text| text.parse().expect("a number of restarts"))
}

/// On `open`: a region that does not know what its peers know keeps all that is left for them.
fn limit(quota: u64) -> Value {
    let limit = with(fixed(quota, LONG), "durability", "sync");
    with(limit, "on_partition", "open")
}

/// What becomes of a region's directory while it is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Directory {
    /// What it was when 20 units were used.
    Older,
    /// Nothing.
    Wiped,
}

/// REP-1, up to the heal. A region used 20, then 20 more that one peer at least has heard of; it comes back with
/// an older self and uses 5 before anybody tells it anything.
fn comes_back_with(directory: Directory) -> Cluster {
    let mut cluster = cluster_with(&Setup::of(3), json!({ "shared": limit(50) }));
    let which = of("shared");
    let victim = cluster.follower();
    let used = |units: u64| {
        let mut used = vec![0; 3];
        used[victim] = units;
        used
    };
    assert_eq!(which.at(&cluster, victim).passes(20), 20);
    wait_agreed(&cluster, which, &used(20));
    let kept = tempfile::tempdir().expect("a directory");
    cluster.terminate(victim);
    copy(&cluster[victim].data_dir(), kept.path());
    cluster.start_again(victim);
    wait_in_touch(&cluster);
    assert_eq!(which.at(&cluster, victim).passes(20), 20);
    wait_agreed(&cluster, which, &used(40));

    cluster.kill(victim);
    cluster.wipe(victim);
    if directory == Directory::Older {
        copy(kept.path(), &cluster[victim].data_dir());
    }
    // Nobody speaks to it until it has used 5.
    let others = cluster.others(victim);
    let fault = json!({ "kind": "partition", "peer": NAMES[victim], "ttl": "60s" });
    let faults: Vec<(usize, String)> = if directory == Directory::Older {
        others
            .iter()
            .map(|other| (*other, crate::approximate::inject(&cluster, *other, &fault)))
            .collect()
    } else {
        // It has no catalogue to serve by until it was taken back.
        Vec::new()
    };
    cluster.start_again(victim);
    wait_until("it serves", WITHIN, || is_ready(&cluster[victim]));
    wait_until("it knows the limit", WITHIN, || {
        which.at(&cluster, victim).look().status == 200
    });
    for _ in 0..5 {
        take_patiently(&which.at(&cluster, victim), 1);
    }
    crate::approximate::heal(&cluster, &faults);
    wait_in_touch(&cluster);
    wait_agreed(&cluster, which, &used(45));
    for region in 0..3 {
        assert_eq!(which.at(&cluster, region).left(), 5);
    }
    let_news_pass(&cluster);
    wait_agreed(&cluster, which, &used(45));
    cluster
}

#[test]
fn a_region_that_comes_back_with_an_older_self_swallows_no_use_and_neither_do_many_restarts() {
    let mut cluster = comes_back_with(Directory::Older);
    let which = of("shared");
    // Its log is an old copy too, which is refused where it shows: it has to join anew to hear of changes.
    let restored = (0..3)
        .max_by_key(|region| by_region(&which.at(&cluster, 0).usage())[*region])
        .expect("a region");
    cluster.kill(restored);
    cluster.wipe(restored);
    cluster.start_again(restored);
    wait_until("it is taken back", WITHIN, || {
        of("touch").at(&cluster, restored).look().status == 200
    });
    wait_in_touch(&cluster);
    let mut used = vec![0; 3];
    used[restored] = 45;
    wait_agreed(&cluster, which, &used);
    let leader = cluster.leader();
    cluster.put_limit(leader, "shared", &limit(200));
    let victim = cluster.others(leader)[0];
    used.resize(NAMES.len(), 0);
    let began = Instant::now();
    for _ in 0..restarts() {
        cluster.kill(victim);
        cluster.start_again(victim);
        let quota = which.at(&cluster, victim).look().quota();
        if quota != 200 {
            println!("it goes by a quota of {quota} for a moment");
        }
        wait_until("it knows the raised quota again", WITHIN, || {
            which.at(&cluster, victim).look().quota() == 200
        });
        let answer = which.at(&cluster, victim).take(1);
        assert!(answer.allowed(), "{answer:?}");
        used[victim] += 1;
        // The total never falls where it was known before.
        for region in cluster.others(victim) {
            let told = by_region(&which.at(&cluster, region).usage());
            assert!(told[victim] + 1 >= used[victim], "{told:?}, {used:?}");
        }
        wait_agreed(&cluster, which, &used);
    }
    println!("{} restarts in {:?}", restarts(), began.elapsed());
    wait_in_touch(&cluster);
    let_news_pass(&cluster);
    wait_agreed(&cluster, which, &used);
    assert_eq!(used.iter().sum::<u64>(), 45 + restarts());
    for region in 0..3 {
        assert_eq!(which.at(&cluster, region).left(), 155 - restarts());
    }
}

#[test]
fn a_region_that_lost_everything_is_told_by_its_peers_what_it_had_used() {
    comes_back_with(Directory::Wiped);
}

/// `async`: what was never written is known to the peers, windows of every kind and buckets.
#[test]
fn a_killed_region_gets_back_from_its_peers_what_it_had_not_written() {
    let setup = Setup {
        settings: &[("store.flush_interval", "\"1m\"")],
        ..Setup::of(3)
    };
    let mut cluster = cluster_with(
        &setup,
        json!({
            "fixed": fixed(50, LONG),
            "sliding": { "algorithm": "sliding_window", "quota": 50, "window": LONG, "mode": "approximate" },
            "year": { "algorithm": "calendar_window", "quota": 50, "period": "year", "mode": "approximate" },
            "bucket": { "algorithm": "token_bucket", "capacity": 50, "refill": 1, "per": "1h", "mode": "approximate" },
        }),
    );
    let limits = ["fixed", "sliding", "year", "bucket"];
    let victim = cluster.follower();
    let other = cluster.others(victim)[0];
    let mut used = vec![0; 3];
    used[victim] = 12;
    used[other] = 3;
    for limit in limits {
        assert_eq!(of(limit).at(&cluster, victim).passes(12), 12);
        assert_eq!(of(limit).at(&cluster, other).passes(3), 3);
        wait_agreed(&cluster, of(limit), &used);
    }
    for round in 0..2 {
        cluster.kill(victim);
        if round == 1 {
            cluster.wipe(victim);
        }
        cluster.start_again(victim);
        wait_until("it knows the limits", WITHIN, || {
            of("touch").at(&cluster, victim).look().status == 200
        });
        wait_in_touch(&cluster);
        for limit in limits {
            wait_agreed(&cluster, of(limit), &used);
            let answer = of(limit).at(&cluster, victim).take(1);
            assert!(answer.allowed());
            assert_eq!(answer.used(), used.iter().sum::<u64>() + 1, "{answer:?}");
        }
        used[victim] += 1;
        for limit in limits {
            wait_agreed(&cluster, of(limit), &used);
        }
    }
}

/// Charges 40 keys at a region, kills it, starts it again, and charges 40 keys, of which 20 are the same. What was
/// charged a moment before the kill, and what is charged first afterwards, is told as soon as there are links again:
/// nothing waits for the regions to compare what they have.
fn charge_around_a_restart(cluster: &mut Cluster, late: usize, version: u64) {
    let keys: Vec<String> = (0..60).map(|key| format!("user {key}")).collect();
    let which = |key: usize| Which("t", "shared", &keys[key]);
    for key in 0..40 {
        assert!(which(key).at(cluster, late).take(1).allowed());
    }
    cluster.kill(late);
    cluster.start_again(late);
    // Of a limit that it has not heard of again yet it says that there is none.
    cluster.wait_in_force(version);
    for key in 20..60 {
        assert!(which(key).at(cluster, late).take(1).allowed());
    }
    wait_in_touch(cluster);
    let began = Instant::now();
    for key in 0..60 {
        let used = u64::from(key < 40) + u64::from(key >= 20);
        let mut used_by = [0; 3];
        used_by[late] = used;
        wait_agreed(cluster, which(key), &used_by);
    }
    println!("agreed {:?} after they are in touch", began.elapsed());
    assert!(began.elapsed() < Duration::from_secs(10));
}

fn shared_limit() -> Value {
    with(with(fixed(1000, LONG), "key", "user"), "durability", "sync")
}

#[test]
fn what_was_charged_around_a_restart_is_told_at_once() {
    let mut cluster = cluster_with(&Setup::of(3), json!({ "shared": shared_limit() }));
    // Its catalogue is the newest at once: somebody leads all the while.
    let late = cluster.follower();
    charge_around_a_restart(&mut cluster, late, 0);
}

#[test]
fn what_was_charged_by_a_limit_that_the_log_made_last_outlives_a_start_while_nobody_leads() {
    let mut cluster = cluster_with(&Setup::of(3), json!({ "other": limit(10) }));
    let late = cluster.leader();
    let made = cluster.put_limit(late, "shared", &shared_limit());
    charge_around_a_restart(&mut cluster, late, version(&made));
}

#[test]
fn what_is_held_of_a_limit_that_the_log_made_last_is_held_after_a_start_while_nobody_leads() {
    let mut cluster = cluster_with(&Setup::of(3), json!({ "other": limit(10) }));
    let late = cluster.leader();
    let slots = json!({ "algorithm": "concurrency", "quota": 1, "ttl": "10m", "mode": "regional", "durability": "sync" });
    let made = cluster.put_limit(late, "slots", &slots);
    let which = of("slots");
    let hold = Hold::granted(&which.at(&cluster, late).hold(1, ""));
    cluster.kill(late);
    cluster.start_again(late);
    cluster.wait_in_force(version(&made));
    wait_used_at(&which.at(&cluster, late), 1);
    assert_eq!(which.at(&cluster, late).hold(1, "").status, 429);
    hold.release(&cluster[late]).succeeded();
    Hold::granted(&which.at(&cluster, late).hold(1, ""));
}
