//! The runs over the real log that every test run makes.

use std::collections::BTreeMap;
use std::time::Duration;
use std::time::SystemTime;

use super::Report;
use super::Setup;
use super::faults::Faults;
use super::run;

/// Seeds that found something.
const FOUND: [u64; 1] = [1016];
/// How many other seeds are always tried.
const FIXED: u64 = 6;
/// How many seeds are tried anew each time.
const FRESH: u64 = 3;

/// Runs all, and tells which seeds broke what.
fn broken(seeds: impl IntoIterator<Item = u64>) -> Vec<(u64, Vec<String>)> {
    let mut broken = Vec::new();
    for seed in seeds {
        let report = run(Setup::of(seed));
        if !report.broken.is_empty() {
            broken.push((seed, report.broken));
        }
    }
    broken
}

#[test]
fn raft_nothing_that_goes_wrong_breaks_a_promise() {
    let broken = broken(FOUND.into_iter().chain(1..=FIXED));
    assert!(broken.is_empty(), "broken by seeds {broken:#?}");
}

#[test]
fn raft_nor_on_seeds_that_were_never_tried() {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let first = since.unwrap_or(Duration::ZERO).as_nanos() as u64 & 0xffff_ffff;
    let seeds: Vec<u64> = (0..FRESH).map(|more| first + more * 7_919).collect();
    println!("fresh seeds {seeds:?}");
    let broken = broken(seeds);
    assert!(broken.is_empty(), "broken by seeds {broken:#?}");
}

#[test]
fn raft_the_same_seed_is_the_same_run() {
    let traces = |seed| {
        let Report { trace, entries, .. } = run(Setup::of(seed));
        (trace, entries)
    };
    assert_eq!(traces(4), traces(4));
    assert_ne!(traces(4).0, traces(5).0);
}

#[test]
fn raft_replay() {
    let seed =
        std::env::var("HIGHWATER_SIM_SEED").map_or(1, |seed| seed.parse().expect("a number"));
    let count =
        std::env::var("HIGHWATER_SIM_SEEDS").map_or(1, |count| count.parse().expect("a number"));
    let mut totals: BTreeMap<&str, u64> = BTreeMap::new();
    let mut broken = Vec::new();
    for seed in seed..seed + count {
        let setup = Setup::of(seed);
        let report = run(setup);
        if count == 1 {
            println!("{setup:#?}\n{report:#?}");
        }
        let entries = [("entries", report.entries), ("windows", report.windows)];
        for (kind, count) in entries {
            *totals.entry(kind).or_default() += count as u64;
        }
        *totals.entry("terms").or_default() += report.terms;
        for (kind, count) in report.checks.into_iter().chain(report.faults) {
            *totals.entry(kind).or_default() += count;
        }
        if !report.broken.is_empty() {
            println!("broken by seed {seed}: {:#?}", report.broken);
            broken.push(seed);
        }
    }
    println!("{totals:#?}");
    assert!(broken.is_empty(), "broken by seeds {broken:?}");
    assert!(totals["entries"] > 0);
}

#[test]
fn raft_without_faults_every_check_is_answered() {
    let mut setup = Setup::of(2);
    setup.faults = Faults::default();
    let report = run(setup);
    assert_eq!(report.broken, Vec::<String>::new());
    let told = |word| report.checks.get(word).copied().unwrap_or(0);
    for never in ["out of reach", "unavailable", "charge unknown"] {
        assert_eq!(told(never), 0, "{never}: {report:?}");
    }
    assert!(told("granted") > 50 && told("charged") > 5, "{report:?}");
}
