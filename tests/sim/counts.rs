//! The exchange of counts with everything going wrong: no count is lost, doubled, invented or hidden, an
//! acknowledgement is never ahead of what was merged, and all regions agree once all has healed.
//!
//! A seed that fails is one command: `HIGHWATER_SIM_SEED=n cargo test --test sim replay_counts`.
//! `HIGHWATER_SIM_SEEDS` goes on from it with so many.

use std::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use std::time::Duration;
use std::time::SystemTime;

use crate::approximate::audit::Audit;
use crate::approximate::faulty::Faulty;

/// Seeds that found something.
const FOUND: [u64; 13] = [
    2087, 2115, 3012, 100_642, 200_318, 301_099, 500_845, 501_235, 502_715, 701_040, 701_277,
    800_966, 1_001_497,
];
/// How many seeds are always tried.
const FIXED: u64 = 12;
/// How many others.
const FRESH: u64 = 8;

fn run(seed: u64) -> Audit {
    let mut world = Faulty::new(seed);
    world.run();
    world.audit
}

fn broken(seeds: impl IntoIterator<Item = u64>) -> Vec<u64> {
    let seeds = seeds.into_iter();
    seeds
        .filter(|seed| catch_unwind(AssertUnwindSafe(|| run(*seed))).is_err())
        .inspect(|seed| {
            println!("replay: HIGHWATER_SIM_SEED={seed} cargo test --test sim replay_counts");
        })
        .collect()
}

#[test]
fn counts_survive_all_that_goes_wrong() {
    let broken = broken(FOUND.into_iter().chain(1..=FIXED));
    assert!(broken.is_empty(), "broken by seeds {broken:?}");
}

#[test]
fn nor_do_seeds_that_were_never_tried_lose_a_count() {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let first = since.unwrap_or(Duration::ZERO).as_nanos() as u64 & 0xffff_ffff;
    let seeds: Vec<u64> = (0..FRESH).map(|more| first + more * 7_919).collect();
    println!("fresh seeds {seeds:?}");
    let broken = broken(seeds);
    assert!(broken.is_empty(), "broken by seeds {broken:?}");
}

#[test]
fn replay_counts() {
    let number = |name: &str| {
        std::env::var(name).map_or(1, |number| number.parse::<u64>().expect("a number"))
    };
    let (seed, count) = (number("HIGHWATER_SIM_SEED"), number("HIGHWATER_SIM_SEEDS"));
    let (mut broken, mut checks, mut units) = (Vec::new(), 0, 0);
    let mut faults = std::collections::BTreeMap::<&str, u64>::new();
    for seed in seed..seed + count {
        let Ok(audit) = catch_unwind(AssertUnwindSafe(|| run(seed))) else {
            println!("broken by seed {seed}");
            broken.push(seed);
            continue;
        };
        checks += audit.checks;
        units += audit.granted;
        for (kind, count) in audit.faults {
            *faults.entry(kind).or_default() += count;
        }
    }
    println!("{count} seeds: {checks} checks, {units} units, faults {faults:?}");
    assert!(broken.is_empty(), "broken by seeds {broken:?}");
}
