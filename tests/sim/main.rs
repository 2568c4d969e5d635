//! Strict limits, windows and token buckets, simulated: several regions with the real machines of `highwater::grants` over a model of
//! the Raft group, in virtual time, with everything going wrong that can.
//!
//! An auditor knows every admitted unit and checks, at every step, what must be true of strict limits:
//!
//! - S1: in the book units add up after every entry; no region holds more than it was granted;
//! - S2: no window admits more than the largest quota in force, whatever is lost, doubled, late, out of
//!   order, crashed, cut off, paused, reset or off in time;
//! - S3, S11: messages are doubled and overtake each other, processes end and start anew;
//! - S4: a refusal rests on a leader's word that still holds; S6: nothing is told before it is applied, log
//!   time never falls; S7: no more is given back than was used;
//! - S8: between any two instants no bucket gives more than its capacity and what it earns in that time, and
//!   in the end all that it has can be had in any region;
//! - S5: units are spent inside their window, by the clock of the leader that the region goes by;
//! - S9: with all regions up, a window that enough is asked of is used up to the last unit;
//! - S10: every check is answered in time, and "out of reach" means that no leader answered.
//!
//! Some seconds before the end of a run everything heals: then somebody leads, every region is enrolled and
//! has the newest catalogue.
//!
//! A seed that fails is one command: `HIGHWATER_SIM_SEED=n cargo test --test sim replay`. Seeds that once
//! failed are kept in [`FOUND`]. `HIGHWATER_SIM_SEEDS` goes on from it with so many, with buckets. [`raft`] runs the real log with the real machine below it in the same way.
//! `cargo bench --bench strict` prints the tables.
//!
//! [`approximate`] simulates approximate limits, where figures count instead of promises ([`figures`]), and the
//! exchange of counts with everything going wrong ([`counts`]); `cargo bench --bench approximate` prints its tables.

mod approximate;
mod counts;
mod figures;
mod model;
mod raft;

use std::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use std::time::Duration;
use std::time::SystemTime;

use highwater::algorithm::bucket::Flow;
use highwater::domain::time::Span;
use model::SECOND;
use model::Setup;
use model::World;
use model::audit::Audit;
use model::audit::percentile;
use model::bucket::BucketAudit;
use model::disturbed;
use model::faults::Faults;
use model::faulty;
use model::traffic::STEADY;
use model::traffic::Traffic;

/// Seeds that found something.
const FOUND: [u64; 7] = [103, 1156, 1209, 1247, 5068, 8141, 8616];
/// Those that found something with buckets.
const FOUND_WITH_BUCKETS: [u64; 0] = [];
/// How many seeds are always tried.
const FIXED: u64 = 120;
/// How many other seeds are tried each time.
const FRESH: u64 = 10;

fn run(setup: Setup) -> Audit {
    let mut world = World::new(setup);
    world.run();
    world.audit
}

/// Runs with faults, and tells which seeds broke something.
fn broken(seeds: impl IntoIterator<Item = u64>, setup: fn(u64) -> Setup) -> Vec<u64> {
    seeds
        .into_iter()
        .filter(|seed| catch_unwind(AssertUnwindSafe(|| run(setup(*seed)))).is_err())
        .collect()
}

fn with_buckets(seed: u64) -> Setup {
    faulty(seed).with_buckets()
}

/// Runs in which leases matter: a bucket is always empty, regions are cut off for longer than a lease with units
/// that they hardly use.
fn cut_off(seed: u64) -> Setup {
    let mut setup = Setup::new(seed, 1_000, 3.0, Traffic::Balanced);
    setup.window = 20 * SECOND;
    setup.windows = 3;
    setup.buckets = vec![Flow {
        capacity: 1_000,
        rate: 1_000,
        per: Span::from_seconds(20),
    }];
    setup.faults = Faults {
        weather: seed.is_multiple_of(2),
        crashes: seed % 2,
        leader_losses: seed % 3,
        deposed_talk: true,
        // The end of one heals them all.
        partitions: 1,
        pauses: seed % 2,
        clocks: true,
        stretch: 2,
        ..Faults::default()
    };
    setup
}

#[test]
fn nothing_that_goes_wrong_breaks_a_promise() {
    let broken = broken(FOUND.into_iter().chain(1..=FIXED), faulty);
    assert!(broken.is_empty(), "broken by seeds {broken:?}");
}

#[test]
fn nor_with_buckets_beside_the_windows() {
    let broken = broken(
        FOUND_WITH_BUCKETS.into_iter().chain(1..=FIXED),
        with_buckets,
    );
    assert!(broken.is_empty(), "broken by seeds {broken:?}");
}

#[test]
fn nor_with_handed_over_leads_stepping_clocks_slow_links_and_disks_that_are_slow_or_full() {
    let broken = broken(1..=FIXED / 3, disturbed);
    assert!(broken.is_empty(), "broken by seeds {broken:?}");
}

#[test]
fn nor_with_regions_that_are_cut_off_for_longer_than_a_lease() {
    let broken = broken(1..=FIXED / 12, cut_off);
    assert!(broken.is_empty(), "broken by seeds {broken:?}");
}

#[test]
fn nor_on_seeds_that_were_never_tried() {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let first = since.unwrap_or(Duration::ZERO).as_nanos() as u64 & 0xffff_ffff;
    let seeds: Vec<u64> = (0..FRESH).map(|more| first + more * 7_919).collect();
    println!("fresh seeds {seeds:?}");
    let mut broken_by = broken(seeds.clone(), faulty);
    broken_by.extend(broken(seeds.clone(), with_buckets));
    broken_by.extend(broken(seeds.clone(), disturbed));
    broken_by.extend(broken(seeds.into_iter().take(3), cut_off));
    let broken = broken_by;
    assert!(broken.is_empty(), "broken by seeds {broken:?}");
}

#[test]
fn replay() {
    let seed =
        std::env::var("HIGHWATER_SIM_SEED").map_or(1, |seed| seed.parse().expect("a number"));
    let count =
        std::env::var("HIGHWATER_SIM_SEEDS").map_or(1, |count| count.parse().expect("a number"));
    if count > 1 {
        replay_many(seed, count, false);
        replay_many(seed, count / 2, true);
        return;
    }
    for setup in [
        faulty(seed),
        with_buckets(seed),
        cut_off(seed),
        disturbed(seed),
    ] {
        println!("{setup:?}");
        let audit = run(setup);
        println!(
            "{} checks, {} granted, half of them within {} ms, faults {:?}",
            audit.checks,
            audit.granted,
            percentile(&mut audit.waits.clone(), 50),
            audit.faults
        );
        assert!(audit.checks > 0);
    }
}

/// So many seeds with buckets, and what they came to.
fn replay_many(seed: u64, count: u64, is_cut_off: bool) {
    let (mut broken, mut checks, mut windows, mut buckets, mut units) = (Vec::new(), 0, 0, 0, 0);
    let mut faults = std::collections::BTreeMap::<&str, u64>::new();
    for seed in seed..seed + count {
        let setup = if is_cut_off {
            cut_off(seed)
        } else {
            with_buckets(seed)
        };
        let Ok(audit) = catch_unwind(AssertUnwindSafe(|| run(setup))) else {
            println!("broken by seed {seed}");
            broken.push(seed);
            continue;
        };
        checks += audit.checks;
        windows += audit.windows.len();
        buckets += audit.buckets.len();
        units += audit.buckets.values().map(BucketAudit::used).sum::<u64>();
        for (kind, count) in audit.faults {
            *faults.entry(kind).or_default() += count;
        }
    }
    println!(
        "{count} seeds: {checks} checks, {windows} windows, {buckets} buckets that gave {units} units, \
         faults {faults:?}"
    );
    assert!(broken.is_empty(), "broken by seeds {broken:?}");
}

#[test]
fn a_window_that_enough_is_asked_of_is_used_to_the_last_unit() {
    for (traffic, seed) in STEADY.into_iter().zip(1..) {
        let mut world = World::new(Setup::new(seed, 100, 2.0, traffic));
        world.run();
        assert_eq!(world.undershoot(), 0, "{traffic:?}");
    }
}

#[test]
fn a_bucket_that_enough_is_asked_of_gives_what_it_earns() {
    for (traffic, seed) in STEADY.into_iter().zip(1..) {
        let mut setup = Setup::new(seed, 1_000, 3.0, traffic);
        setup.buckets.push(Flow {
            capacity: 200,
            rate: 1_000,
            per: Span::from_seconds(60),
        });
        let seconds = setup.windows * setup.window / SECOND;
        let audit = run(setup);
        let given = audit.buckets[&1].used();
        let earned = 200 + 1_000 * seconds / 60;
        println!("{traffic:?}: {given} of {earned}");
        assert!(
            given * 100 >= earned * 85,
            "{traffic:?}: {given} of {earned}"
        );
    }
}

#[test]
fn a_leaders_loss_is_covered_by_what_regions_hold() {
    let mut covered = (0, 0);
    for seed in 0..6 {
        let mut setup = Setup::new(seed, 1_000, 0.9, Traffic::Balanced);
        setup.faults.loss_at_ms = Some(20_000 + seed * 4_000);
        let audit = run(setup);
        covered.0 += audit.leaderless.0;
        covered.1 += audit.leaderless.1;
    }
    assert!(covered.0 > 200, "{covered:?}");
    assert!(covered.1 * 100 >= covered.0 * 93, "{covered:?}");
}
