//! Scenarios that ship can be read, and what is wrong in one is told with its line.

use super::Scenario;
use super::expect::WORDS;
use crate::drill::shipped::SHIPPED;

const GOOD: &str = r#"title = "t"
regions = ["a", "b", "c"]
duration = "20s"
steps = [
  { at = "2s", do = "kill", on = "b", for = "5s" },
]
expect = [
  { that = "answered", at_least = 50 },
]
[limits]
s = { algorithm = "fixed_window", quota = 5, window = "2s", mode = "strict", key = "user" }
g = { algorithm = "fixed_window", quota = 5, window = "2s", mode = "approximate" }
r = { algorithm = "sliding_window", quota = 5, window = "2s" }
h = { algorithm = "concurrency", quota = 5 }
[[load]]
limit = "s"
rate = 5
[[load]]
limit = "g"
rate = 5
"#;

/// What is wrong, line by line, when `with` stands in the place of `what`.
fn faults(what: &str, with: &str) -> Vec<(usize, String)> {
    assert!(GOOD.contains(what), "{what}");
    match Scenario::parse("x", &GOOD.replacen(what, with, 1)) {
        Ok(_) => Vec::new(),
        Err(error) => error.faults,
    }
}

#[test]
fn every_shipped_scenario_is_one() {
    for shipped in SHIPPED {
        let read = Scenario::parse(shipped.name, shipped.text);
        if let Err(error) = read {
            panic!("{}", error.in_file(shipped.name));
        }
    }
}

#[test]
fn the_shipped_scenarios_use_every_expectation() {
    let used: Vec<&str> = SHIPPED
        .iter()
        .filter_map(|shipped| Scenario::parse(shipped.name, shipped.text).ok())
        .flat_map(|scenario| scenario.expectations)
        .map(|expectation| expectation.that.name())
        .collect();
    for word in WORDS {
        assert!(used.contains(&word), "{word}");
    }
}

#[test]
fn a_good_scenario_is_read_as_it_is_written() {
    let read = Scenario::parse("x", GOOD).expect("good");
    assert_eq!(read.regions, ["a", "b", "c"]);
    assert_eq!(read.loads[0].regions, [0, 1, 2]);
    assert_eq!(read.steps[0].describe(&read), "kill b, for 5 s");
    assert_eq!((read.steps[0].line, read.steps[0].ends_ms()), (5, 7_000));
    assert_eq!(read.expectations[0].line, 8);
    assert_eq!(read.links.len(), 3);
}

const STEP: &str = r#"{ at = "2s", do = "kill", on = "b", for = "5s" },"#;
const EXPECT: &str = r#"{ that = "answered", at_least = 50 },"#;

/// What is changed in the good one, into what, and the line and a part of the message that tell it.
const WRONG: [(&str, &str, usize, &str); 40] = [
    ("title = \"t\"", "titel = \"t\"", 1, "unknown field `titel`"),
    ("\"20s\"", "\"20\"", 3, "is not a duration"),
    ("\"20s\"", "\"61m\"", 3, "give 1s to 60m"),
    ("[\"a\", \"b\", \"c\"]", "[]", 2, "name 1 to 8"),
    ("\"c\"]", "\"a\"]", 2, "a is named twice"),
    (
        "quota = 5, window = \"2s\", mode = \"strict\"",
        "quota = 5, mode = \"strict\"",
        11,
        "limits.s",
    ),
    (
        "mode = \"approximate\" }",
        "mode = \"approximate\", wibble = 1 }",
        12,
        "unknown field `wibble`",
    ),
    (
        "limit = \"s\"",
        "limit = \"nope\"",
        16,
        "there is no limit \"nope\"",
    ),
    ("limit = \"g\"", "limit = \"h\"", 19, "taken by holds"),
    ("limit = \"g\"", "limit = \"g\"\nkeys = 3", 20, "has no key"),
    ("rate = 5", "rate = 0", 17, "1 to 2000"),
    (
        "rate = 5",
        "rate = 5\nshape = \"round\"",
        18,
        "one of steady, bursty, poisson",
    ),
    (
        "rate = 5",
        "rate = 5\nregions = [\"d\"]",
        18,
        "there is no region \"d\"",
    ),
    (
        "rate = 5",
        "rate = 5\ncost = [3, 1]",
        18,
        "cost: one number",
    ),
    (
        "rate = 5",
        "rate = 5\nfrom = \"20s\"",
        18,
        "a stretch of the drill's duration",
    ),
    (
        "do = \"kill\"",
        "do = \"explode\"",
        5,
        "\"explode\" is not known",
    ),
    ("on = \"b\"", "on = \"d\"", 5, "there is no region \"d\""),
    (", for = \"5s\" }", " }", 5, "say for how long"),
    (
        "for = \"5s\"",
        "for = \"18001ms\"",
        5,
        "every fault must end",
    ),
    ("at = \"2s\"", "at = \"20s\"", 5, "the drill lasts 20000 ms"),
    (
        "do = \"kill\"",
        "do = \"kill\", delay = \"1s\"",
        5,
        "delay: does not belong to kill",
    ),
    (
        "do = \"kill\"",
        "do = \"cut\", peers = [\"b\"]",
        5,
        "no link to itself",
    ),
    ("do = \"kill\"", "do = \"slow\"", 5, "say by how much"),
    ("do = \"kill\"", "do = \"clock\"", 5, "say how far off"),
    (
        "do = \"kill\"",
        "do = \"lose\"",
        5,
        "say how many of a hundred",
    ),
    (
        "do = \"kill\"",
        "do = \"flap\"",
        5,
        "say how long each turn lasts",
    ),
    (
        "do = \"kill\"",
        "do = \"restore\"",
        5,
        "no backup of this region was taken",
    ),
    (
        "do = \"kill\"",
        "do = \"transfer\"",
        5,
        "transfer is over at once",
    ),
    (
        "do = \"kill\", on = \"b\"",
        "do = \"move\", on = \"b\", to = \"b\"",
        5,
        "another region than the one",
    ),
    (
        STEP,
        "{ at = \"2s\", do = \"kill\", on = \"b\", for = \"5s\" },\n{ at = \"3s\", do = \"cut\", on = \"b\", for = \"1s\" },",
        6,
        "may not be running before 7s (line 5)",
    ),
    (
        STEP,
        "{ at = \"2s\", do = \"kill\", on = \"leader\", for = \"5s\" },\n{ at = \"3s\", do = \"stop\", on = \"b\", for = \"1s\" },",
        6,
        "may not be running before 7s (line 5)",
    ),
    (
        STEP,
        "{ at = \"2s\", do = \"clock\", offset_ms = 5, on = \"b\", for = \"5s\" },\n{ at = \"3s\", do = \"kill\", on = \"b\", for = \"1s\" },",
        6,
        "would end clock before its time",
    ),
    (EXPECT, "", 7, "expects nothing"),
    (
        "\"answered\", at_least = 50",
        "\"answered\"",
        8,
        "say at_least, in percent",
    ),
    ("at_least = 50", "at_least = 101", 8, "0 to 100 percent"),
    (
        "\"answered\", at_least = 50",
        "\"never-exceeded\", limit = \"g\"",
        8,
        "the limit is not strict",
    ),
    (
        "\"answered\", at_least = 50",
        "\"charged-once\", limit = \"s\"",
        8,
        "must be idempotent",
    ),
    (
        "\"answered\", at_least = 50",
        "\"same-leader\", within = \"1s\"",
        8,
        "within: does not belong to same-leader",
    ),
    (
        "\"answered\", at_least = 50",
        "\"overshoot\", limit = \"r\"",
        8,
        "no load asks for this limit",
    ),
    (
        "\"answered\", at_least = 50",
        "\"wishful\"",
        8,
        "\"wishful\" is not known",
    ),
];

#[test]
fn what_is_wrong_is_told_with_its_line() {
    assert!(faults(STEP, STEP).is_empty());
    for (what, with, line, message) in WRONG {
        let found = faults(what, with);
        let is_told = found
            .iter()
            .any(|(at, told)| *at == line && told.contains(message));
        assert!(is_told, "{with}: {line}: {message}: {found:?}");
    }
}

#[test]
fn several_faults_are_told_at_once_and_in_order() {
    let text = GOOD
        .replace("on = \"b\"", "on = \"z\"")
        .replace("rate = 5", "rate = 0");
    let error = Scenario::parse("x", &text).expect_err("faulty");
    let lines: Vec<usize> = error.faults.iter().map(|(line, _)| *line).collect();
    assert_eq!(lines, [5, 17, 20]);
    assert!(error.in_file("ops/drills/x.toml").starts_with(
        "ops/drills/x.toml:5: on: there is no region \"z\" here; there are a, b, c\n"
    ));
}
