//! Drills in virtual time: every shipped one passes, and the same seed gives the same report.
//!
//! `HIGHWATER_DRILL_SEEDS=200 cargo test --release --test drill simulated` tries so many seeds of each, and `21..200` those;
//! a seed that fails is `highwater drill run NAME --simulate --seed N`, and is kept in [`FOUND`].

use std::ops::RangeInclusive;
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;

use highwater::consensus::Settings;
use highwater::drill::chaos;
use highwater::drill::report;
use highwater::drill::report::Stage;
use highwater::drill::scenario::Scenario;
use highwater::drill::shipped::SHIPPED;
use highwater::simulate;
use serde_json::Value;

use crate::command::drill;
use crate::command::highwater;
use crate::command::said;
use crate::command::told;
use crate::command::write;

/// Seeds that found something, by drill.
const FOUND: [(&str, u64); 9] = [
    (chaos::NAME, 22),
    (chaos::NAME, 34),
    (chaos::NAME, 55),
    (chaos::NAME, 127),
    ("clock-skew", 3),
    ("leader-transfer", 1),
    ("one-way-link", 170),
    ("partition-majority", 1),
    ("partition-majority", 167),
];
/// A leader that was cut off and replaced does not know it. Its successor freezes, the third region loses its data, and the
/// first comes back: it finds an empty region that would follow it. Both together decide nothing, or what the successor
/// had decided would be lost.
const REPLACED_LEADER: &str = include_str!("replaced-leader.toml");
/// Seeds of each drill that are always tried.
const SEEDS: u64 = 2;
/// Seeds of `chaos` that are always tried, and how long each lasts.
const CHAOS_SEEDS: u64 = 4;
const CHAOS_MS: u64 = 120_000;

fn seeds(otherwise: u64) -> RangeInclusive<u64> {
    let Ok(given) = std::env::var("HIGHWATER_DRILL_SEEDS") else {
        return 1..=otherwise;
    };
    let (first, last) = given.split_once("..").unwrap_or(("1", &given));
    let number = |text: &str| text.parse().expect("a number");
    number(first)..=number(last)
}

/// What was not met; `None`: all was.
fn fault(name: &str, text: &str, seed: u64) -> Option<String> {
    let scenario = Scenario::parse(name, text).expect("a scenario");
    let record = match simulate::run(&scenario, seed) {
        Ok(record) => record,
        Err(error) => return Some(format!("{name}, seed {seed}: {error}")),
    };
    let report = report::report(&scenario, &record, Stage::Simulation, seed);
    let unmet = report.findings.iter().filter(|finding| !finding.is_met);
    let unmet: Vec<String> = unmet
        .map(|finding| {
            format!(
                "line {}: {}: {} ({})",
                finding.line, finding.expectation, finding.found, finding.note
            )
        })
        .collect();
    (!report.is_passed).then(|| format!("{name}, seed {seed}: {}", unmet.join("; ")))
}

/// Runs all of it on two threads.
fn faults(runs: &[(String, String, u64)]) -> Vec<String> {
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some((name, text, seed)) = runs.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    if let Some(fault) = fault(name, text, *seed) {
                        found.lock().expect("a list").push(fault);
                    }
                }
            });
        }
    });
    found.into_inner().expect("a list")
}

#[test]
fn simulated_drills_pass() {
    let mut runs = Vec::new();
    for shipped in SHIPPED {
        let found = FOUND.iter().filter(|(name, _)| *name == shipped.name);
        let mut all: Vec<u64> = seeds(SEEDS).chain(found.map(|(_, seed)| *seed)).collect();
        all.sort_unstable();
        all.dedup();
        for seed in all {
            runs.push((shipped.name.to_owned(), shipped.text.to_owned(), seed));
        }
    }
    let faults = faults(&runs);
    assert!(
        faults.is_empty(),
        "{} of {}:\n{}",
        faults.len(),
        runs.len(),
        faults.join("\n")
    );
}

#[test]
fn simulated_chaos_passes() {
    let found = FOUND.iter().filter(|(name, _)| *name == chaos::NAME);
    let runs: Vec<(String, String, u64)> = seeds(CHAOS_SEEDS)
        .chain(found.map(|(_, seed)| *seed))
        .map(|seed| (chaos::NAME.to_owned(), chaos::text(seed, CHAOS_MS), seed))
        .collect();
    let faults = faults(&runs);
    assert!(
        faults.is_empty(),
        "{} of {}:\n{}",
        faults.len(),
        runs.len(),
        faults.join("\n")
    );
}

/// Nobody notices within a millisecond that a region has gone silent.
const UNMET: &str = r#"title    = "Seen at once"
regions  = ["a", "b", "c"]
links    = { delay = "20ms" }
duration = "8s"
steps    = [{ at = "3s", do = "cut", on = "follower", for = "3s" }]
expect   = [{ that = "detected", within = "1ms" }]
[limits]
api = { algorithm = "fixed_window", quota = 1000, window = "1d", mode = "regional" }
[[load]]
limit = "api"
rate  = 1
"#;

/// As in `highwater drill run x | true`: the verdict is no, whoever reads it.
#[test]
fn simulated_drills_that_nobody_reads_still_fail() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = write(directory.path(), "unmet.toml", UNMET);
    let mut child = highwater()
        .args(["drill", "run", &file, "--simulate", "--seed", "1"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("runs");
    drop(child.stdout.take());
    let status = child.wait().expect("ends");
    assert_eq!(status.code(), Some(1));
}

#[test]
fn simulated_leader_that_was_replaced_decides_nothing_with_an_emptied_region() {
    let of = |seed| {
        (
            "replaced-leader".to_owned(),
            REPLACED_LEADER.to_owned(),
            seed,
        )
    };
    let runs: Vec<(String, String, u64)> = seeds(CHAOS_SEEDS).map(of).collect();
    let faults = faults(&runs);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// A limit that lets everything through while nobody can decide: what it lets through is nobody's count.
#[test]
fn simulated_strict_limits_that_fail_open_pass() {
    let shipped = SHIPPED.iter().find(|one| one.name == "partition-majority");
    let text = shipped.expect("a drill").text;
    let strict = "mode = \"strict\"";
    assert!(text.contains(strict));
    let text = text.replace(strict, "mode = \"strict\", on_unavailable = \"open\"");
    let scenario = Scenario::parse("open", &text).expect("a scenario");
    let record = simulate::run(&scenario, 1).expect("a run");
    let by_policy = record
        .calls
        .iter()
        .filter(|call| call.answer.is_by_policy());
    assert!(by_policy.count() > 10);
    let report = report::report(&scenario, &record, Stage::Simulation, 1);
    let about_counts = report.findings.iter().filter(|finding| {
        ["counters-agree", "charged-once", "converged"]
            .iter()
            .any(|word| finding.expectation.starts_with(word))
    });
    let mut compared = 0;
    for finding in about_counts {
        assert!(finding.is_met, "{finding:?}");
        compared += 1;
    }
    assert!(compared >= 2, "{:#?}", report.findings);
}

#[test]
fn simulated_callers_are_bounded() {
    let text = "title = \"t\"\nregions = [\"a\", \"b\"]\nduration = \"2h\"\nexpect = [ { that = \"answered\", at_least = 1 } ]\n\
                [limits]\nl = { algorithm = \"fixed_window\", quota = 60, window = \"4s\", mode = \"regional\" }\n\
                [[load]]\nlimit = \"l\"\nrate = 2000\n";
    let scenario = Scenario::parse_virtual("t", text).unwrap_or_else(|error| panic!("{error}"));
    let error = simulate::run(&scenario, 1).expect_err("too many");
    assert!(error.contains("28800000"), "{error}");
    assert!(error.contains(&simulate::CALLS_MAX.to_string()), "{error}");
}

/// Byte for byte; and another seed is another run.
#[test]
fn the_same_seed_gives_the_same_report() {
    let written = |seed: &str| {
        let directory = tempfile::tempdir().expect("a directory");
        let (json, html) = (
            directory.path().join("r.json"),
            directory.path().join("r.html"),
        );
        let output = drill(&[
            "run",
            "wiped-region",
            "--simulate",
            "--seed",
            seed,
            "--report",
            &json.display().to_string(),
            "--report",
            &html.display().to_string(),
        ]);
        assert_eq!(
            output.status.code(),
            Some(0),
            "{}{}",
            said(&output),
            told(&output)
        );
        let read = |path| std::fs::read_to_string(path).expect("a report");
        (said(&output), read(json), read(html))
    };
    let first = written("11");
    assert_eq!(first, written("11"));
    assert_ne!(first.1, written("12").1);
    let report: Value = serde_json::from_str(&first.1).expect("JSON");
    assert_eq!(report["stage"], "simulation");
    let notes = report["notes"].as_array().expect("notes");
    assert_eq!(notes.len(), 4);
    for note in notes {
        assert!(first.2.contains(note.as_str().expect("text")), "{note}");
    }
}

/// The model of the log waits as long as the product's library is told to.
#[test]
fn elections_take_as_long_as_in_the_product() {
    for rank in 0..7 {
        let settings = Settings::ranked(usize::try_from(rank).expect("small"));
        let (lease, least, most) = simulate::log::patience(rank);
        assert_eq!(lease.to_std(), settings.election_max);
        assert_eq!(least.to_std(), settings.election_min);
        assert_eq!(most.to_std(), settings.election_max);
        assert_eq!(simulate::log::HEARTBEAT.to_std(), settings.heartbeat);
    }
}
