//! Strict limits, simulated: several regions with the real machines of `highwater::grants` over a model of
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
//! - S5: units are spent inside their window, by the clock of the leader that the region goes by;
//! - S9: with all regions up, a window that enough is asked of is used up to the last unit;
//! - S10: every check is answered in time, and "out of reach" means that no leader answered.
//!
//! Some seconds before the end of a run everything heals: then somebody leads, every region is enrolled and
//! has the newest catalogue.
//!
//! A seed that fails is one command: `HIGHWATER_SIM_SEED=n cargo test --test sim replay`. Seeds that once
//! failed are kept in [`FOUND`]. [`raft`] runs the real log with the real machine below it in the same way.
//! `cargo bench --bench strict` prints the tables.
//!
//! [`approximate`] simulates approximate limits, where figures count instead of promises ([`figures`]);
//! `cargo bench --bench approximate` prints its tables.

mod approximate;
mod figures;
mod model;
mod raft;

use std::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use std::time::Duration;
use std::time::SystemTime;

use model::Setup;
use model::World;
use model::audit::Audit;
use model::audit::percentile;
use model::faulty;
use model::traffic::STEADY;
use model::traffic::Traffic;

/// Seeds that found something.
const FOUND: [u64; 7] = [103, 1156, 1209, 1247, 5068, 8141, 8616];
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
fn broken(seeds: impl IntoIterator<Item = u64>) -> Vec<u64> {
    seeds
        .into_iter()
        .filter(|seed| catch_unwind(AssertUnwindSafe(|| run(faulty(*seed)))).is_err())
        .collect()
}

#[test]
fn nothing_that_goes_wrong_breaks_a_promise() {
    let broken = broken(FOUND.into_iter().chain(1..=FIXED));
    assert!(broken.is_empty(), "broken by seeds {broken:?}");
}

#[test]
fn nor_on_seeds_that_were_never_tried() {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let first = since.unwrap_or(Duration::ZERO).as_nanos() as u64 & 0xffff_ffff;
    let seeds: Vec<u64> = (0..FRESH).map(|more| first + more * 7_919).collect();
    println!("fresh seeds {seeds:?}");
    let broken = broken(seeds);
    assert!(broken.is_empty(), "broken by seeds {broken:?}");
}

#[test]
fn replay() {
    let seed =
        std::env::var("HIGHWATER_SIM_SEED").map_or(1, |seed| seed.parse().expect("a number"));
    let setup = faulty(seed);
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

#[test]
fn a_window_that_enough_is_asked_of_is_used_to_the_last_unit() {
    for (traffic, seed) in STEADY.into_iter().zip(1..) {
        let mut world = World::new(Setup::new(seed, 100, 2.0, traffic));
        world.run();
        assert_eq!(world.undershoot(), 0, "{traffic:?}");
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
