//! Programs with a fault in them: the drill says no, and names the line that is about it. For every kind of expectation there
//! is a fault by which it is not met, or a bound that no program can keep.
//!
//! `cargo test --features planted-faults --test drill planted`

use std::path::Path;

use highwater::drill::scenario::WORDS;
use highwater::drill::shipped;

use crate::command::highwater;
use crate::command::said;
use crate::command::told;

/// An expectation that is not met: its line in the scenario, and its words.
type Unmet = (usize, String);

/// A leader and two others: one of these is cut off for a moment, and later the leader is lost.
const LOST_LATER: &str = r#"title    = "The leader is lost after a link was"
regions  = ["a", "b", "c"]
links    = { delay = "20ms" }
duration = "20s"
steps = [
  { at = "3s", do = "cut", on = "follower", for = "2s" },
  { at = "9s", do = "kill", on = "leader", for = "8s" },
]
expect = [
  { that = "new-leader", within = "6s" },
  { that = "answered", limit = "exports", from = "12s", at_least = 50 },
  { that = "allowed", limit = "exports", from = "12s", at_least = 50 },
  { that = "unavailable", limit = "exports", from = "12s", at_most = 20 },
]
[limits]
exports = { algorithm = "fixed_window", quota = 100, window = "4s", mode = "strict" }
[[load]]
limit = "exports"
rate  = 5
"#;

/// The leader is cut off for less than an election takes.
const HICCUP: &str = r#"title    = "The leader is not heard for a moment"
regions  = ["a", "b", "c"]
links    = { delay = "20ms" }
duration = "10s"
steps = [
  { at = "3s", do = "cut", on = "leader", for = "200ms" },
]
expect = [
  { that = "same-leader" },
]
[limits]
api = { algorithm = "fixed_window", quota = 1000, window = "1d", mode = "regional" }
[[load]]
limit = "api"
rate  = 1
"#;

/// Every link of the leader is slow for a moment.
const SLOW: &str = r#"title    = "The leader's links are slow"
regions  = ["a", "b", "c"]
links    = { delay = "20ms" }
duration = "14s"
steps = [
  { at = "2s", do = "slow", on = "leader", delay = "300ms", for = "2s" },
]
expect = [
  { that = "latency", limit = "invoices", from = "7s", percentile = 90, within = "200ms" },
]
[limits]
invoices = { algorithm = "fixed_window", quota = 1000, window = "1d", mode = "strict" }
[[load]]
limit      = "invoices"
rate       = 3
idempotent = true
"#;

/// The leader is lost when all is used up.
const FORGOTTEN: &str = r#"title    = "The leader is lost when all is used up"
regions  = ["a", "b", "c"]
links    = { delay = "20ms" }
duration = "16s"
steps = [
  { at = "8s", do = "kill", on = "leader", for = "4s" },
]
expect = [
  { that = "never-exceeded", limit = "exports" },
]
[limits]
exports = { algorithm = "fixed_window", quota = 60, window = "1d", mode = "strict" }
[[load]]
limit = "exports"
rate  = 5
"#;

/// Twice the limit, evenly.
const CROWDED: &str = r#"title    = "Twice the limit, evenly"
regions  = ["a", "b", "c"]
links    = { delay = "20ms" }
duration = "16s"
expect = [
  { that = "undershoot", limit = "tokens", at_most = 10 },
]
[limits]
tokens = { algorithm = "fixed_window", quota = 120, window = "4s", mode = "approximate" }
[[load]]
limit = "tokens"
rate  = 20
"#;

/// Nobody notices within a millisecond that a region has gone silent.
const AT_ONCE: &str = r#"title    = "Seen at once"
regions  = ["a", "b", "c"]
links    = { delay = "20ms" }
duration = "10s"
steps = [
  { at = "3s", do = "cut", on = "follower", for = "4s" },
]
expect = [
  { that = "detected", within = "1ms" },
]
[limits]
api = { algorithm = "fixed_window", quota = 1000, window = "1d", mode = "regional" }
[[load]]
limit = "api"
rate  = 1
"#;

/// Scenarios that are not shipped, by name.
const OWN: [(&str, &str); 6] = [
    ("forgotten", FORGOTTEN),
    ("crowded", CROWDED),
    ("lost-later", LOST_LATER),
    ("hiccup", HICCUP),
    ("slow", SLOW),
    ("at-once", AT_ONCE),
];

/// Fault, drill, and the expectation that says no: its word, and its limit. An empty fault: no program meets it.
const FAULTS: [(&str, &str, &str, &str); 17] = [
    (
        "leader-forgets-book",
        "forgotten",
        "never-exceeded",
        "exports",
    ),
    (
        "leader-forgets-book",
        "leader-transfer",
        "charged-once",
        "invoices",
    ),
    (
        "merge-sums",
        "partition-minority",
        "counters-agree",
        "tokens",
    ),
    (
        "merge-forgets",
        "partition-minority",
        "counters-agree",
        "tokens",
    ),
    ("merge-forgets", "partition-minority", "overshoot", "bursts"),
    ("merge-sums", "crowded", "undershoot", "tokens"),
    ("fault-does-not-heal", "lost-later", "answered", "exports"),
    ("fault-does-not-heal", "lost-later", "allowed", "exports"),
    (
        "fault-does-not-heal",
        "lost-later",
        "unavailable",
        "exports",
    ),
    (
        "fail-open-too-wide",
        "partition-majority",
        "degraded",
        "exports",
    ),
    ("fault-does-not-heal", "slow", "latency", "invoices"),
    ("fault-does-not-heal", "lost-later", "new-leader", ""),
    ("fault-does-not-heal", "hiccup", "same-leader", ""),
    ("", "at-once", "detected", ""),
    ("merge-forgets", "partition-minority", "converged", ""),
    ("fault-does-not-heal", "partition-minority", "healed", ""),
    ("fault-does-not-heal", "partition-majority", "healed", ""),
];

fn text(drill: &str) -> &'static str {
    let own = OWN.iter().find(|(name, _)| *name == drill);
    let shipped = || shipped::named(drill).map(|shipped| shipped.text);
    own.map(|(_, text)| *text)
        .or_else(shipped)
        .unwrap_or_else(|| panic!("there is no drill {drill}"))
}

/// Runs a drill in virtual time with a fault in the program; what it says no to, and its exit status.
fn unmet(dir: &Path, fault: &str, drill: &str) -> (Vec<Unmet>, Option<i32>) {
    let file = dir.join(format!("{drill}.toml"));
    std::fs::write(&file, text(drill)).expect("written");
    let mut command = highwater();
    if !fault.is_empty() {
        command.env("HIGHWATER_PLANTED_FAULT", fault);
    }
    let output = command
        .args(["drill", "run"])
        .arg(&file)
        .args(["--simulate", "--seed", "1"])
        .output()
        .expect("runs");
    let said = said(&output);
    let unmet = said.lines().filter(|line| line.starts_with("NO "));
    let unmet = unmet.map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = words[1].parse().expect("a line's number");
        (number, words[2..].join(" "))
    });
    assert_ne!(output.status.code(), Some(2), "{}", told(&output));
    (unmet.collect(), output.status.code())
}

/// The lines of a scenario that expect `word` of `limit`.
fn lines_of(drill: &str, word: &str, limit: &str) -> Vec<usize> {
    let (that, limit) = (format!("that = \"{word}\""), format!("limit = \"{limit}\""));
    let is_meant =
        |line: &str| line.contains(&that) && (limit.ends_with("\"\"") || line.contains(&limit));
    let lines = text(drill).lines().enumerate();
    lines
        .filter(|(_, line)| is_meant(line))
        .map(|(at, _)| at + 1)
        .collect()
}

#[test]
fn planted_faults_are_found_by_the_expectation_that_is_about_them() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut wrong = Vec::new();
    for (fault, drill, word, limit) in FAULTS {
        let (found, status) = unmet(dir.path(), fault, drill);
        let lines = lines_of(drill, word, limit);
        assert!(!lines.is_empty(), "{drill} expects {word} of {limit}");
        let is_found = found
            .iter()
            .any(|(line, words)| lines.contains(line) && words.starts_with(word));
        if status != Some(1) || !is_found {
            wrong.push(format!(
                "{drill} with {fault:?}, lines {lines:?}: {word} of {limit} says yes; no say {found:#?}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The same program, and the same scenarios, when no fault is chosen.
#[test]
fn drills_that_find_planted_faults_pass_without_one() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut drills: Vec<&str> = FAULTS
        .iter()
        .filter(|(fault, ..)| !fault.is_empty())
        .map(|(_, drill, ..)| *drill)
        .collect();
    drills.sort_unstable();
    drills.dedup();
    for drill in drills {
        let (found, status) = unmet(dir.path(), "", drill);
        assert_eq!((found, status), (Vec::new(), Some(0)), "{drill}");
    }
}

#[test]
fn every_planted_expectation_can_say_no() {
    for word in WORDS {
        assert!(
            FAULTS.iter().any(|(_, _, known, _)| *known == word),
            "no fault makes {word} say no"
        );
    }
}

#[test]
fn planted_faults_have_names() {
    let output = highwater()
        .env("HIGHWATER_PLANTED_FAULT", "no-such-fault")
        .args(["drill", "list"])
        .output()
        .expect("runs");
    assert_eq!(output.status.code(), Some(2));
    assert!(
        told(&output).contains("there is no planted fault"),
        "{}",
        told(&output)
    );
}
