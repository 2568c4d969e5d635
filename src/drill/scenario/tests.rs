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
const WRONG: [(&str, &str, usize, &str); 53] = [
    ("title = \"t\"", "titel = \"t\"", 1, "unknown field `titel`"),
    ("\"20s\"", "\"20\"", 3, "is not a duration"),
    ("\"20s\"", "\"61m\"", 3, "give 1s to 1h"),
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
        "rate = 5\ncost = 9007199254740991",
        18,
        "cost: one number from 1 to 1000000",
    ),
    (
        "rate = 5",
        "rate = -10",
        17,
        "rate: -10 is not a whole number from 0 on",
    ),
    (
        "rate = 5",
        "rate = 2.5",
        17,
        "rate: 2.5 is not a whole number",
    ),
    (
        "rate = 5",
        "rate = \"5\"",
        17,
        "rate: write a number, without quotes",
    ),
    (
        "rate = 5",
        "rate = 5\nkeys = 5_000_000_000",
        18,
        "keys: 5_000_000_000 is too large",
    ),
    (
        "rate = 5",
        "rate = 5\nidempotent = 1",
        18,
        "idempotent: write true or false",
    ),
    (
        "rate = 5",
        "rate = 5\ncost = [1, -2]",
        18,
        "cost: one number from 1 to 1000000, or two",
    ),
    ("[\"a\", \"b\", \"c\"]", "\"a\"", 2, "regions: write a list"),
    (
        "window = \"2s\", mode = \"strict\"",
        "window = 2, mode = \"strict\"",
        11,
        "window: write a time with its unit, as in \"2s\"",
    ),
    (
        "at = \"2s\"",
        "at = 3",
        5,
        "at: write a time with its unit, as in \"3s\"",
    ),
    (
        "title = \"t\"",
        "title = true",
        1,
        "title: write it in quotes",
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
        "ends at 20.001 s, after the drill's end at 20 s; every fault must end",
    ),
    ("at = \"2s\"", "at = \"20s\"", 5, "the drill lasts 20 s"),
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
        "{ at = \"2s\", do = \"kill\", on = \"leader\", for = \"5s\" },\n{ at = \"3s\", do = \"kill\", on = \"follower\", for = \"1s\" },",
        6,
        "may not be running before 7s (line 5)",
    ),
    (
        "\"answered\", at_least = 50",
        "\"undershoot\", limit = \"g\", at_most = 5, from = \"1s\", until = \"2s\"",
        8,
        "no whole window lies in this time",
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
fn a_link_that_is_slow_says_by_how_much() {
    let told = |jitter: &str| {
        let slow = format!("do = \"slow\", delay = \"200ms\"{jitter}");
        let text = GOOD.replace("do = \"kill\"", &slow);
        let read = Scenario::parse("x", &text).expect("good");
        read.steps[0].describe(&read)
    };
    let all = "what b sends to all others takes";
    assert_eq!(told(""), format!("{all} 200 ms more, for 5 s"));
    let uneven = told(", jitter = \"50ms\"");
    assert_eq!(uneven, format!("{all} 200 to 250 ms more, for 5 s"));
}

/// What lasts at once in one region, or in two that are surely different, is no fault.
#[test]
fn what_can_be_done_at_once_is_read() {
    let at_once = r#"{ at = "2s", do = "kill", on = "leader", for = "5s" },
{ at = "2s", do = "kill", on = "follower", for = "5s" },"#;
    let slow_and_cut = r#"{ at = "2s", do = "slow", delay = "100ms", on = "b", for = "5s" },
{ at = "3s", do = "cut", on = "b", for = "1s" },"#;
    for steps in [at_once, slow_and_cut] {
        assert_eq!(faults(STEP, steps), []);
    }
}

/// Nothing else is at fault when the duration is.
#[test]
fn a_faulty_duration_is_one_fault() {
    for duration in ["\"18\"", "\"18d\"", "\"0s\""] {
        let found = faults("\"20s\"", duration);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].0, 3);
    }
    let text = GOOD.replace("\"20s\"", "\"25h\"");
    let error = Scenario::parse_virtual("x", &text).expect_err("too long");
    assert_eq!(error.faults, [(3, "duration: give 1s to 1d".to_owned())]);
}

/// An expectation that can never be met, or always is, is refused.
#[test]
fn what_cannot_be_judged_of_a_limit_is_told() {
    let told = |mode: &str, expect: &str| {
        let text = GOOD
            .replace("\"answered\", at_least = 50", expect)
            .replace("mode = \"approximate\"", mode)
            .replace(
                "limit = \"g\"\nrate = 5",
                "limit = \"g\"\nrate = 5\nidempotent = true",
            );
        match Scenario::parse("x", &text) {
            Ok(_) => String::new(),
            Err(error) => error.in_file("x"),
        }
    };
    let (regional, approximate, strict) = (
        "mode = \"regional\"",
        "mode = \"approximate\"",
        "mode = \"strict\"",
    );
    let charged_once = "\"charged-once\", limit = \"g\"";
    let agree = "\"counters-agree\", limit = \"g\"";
    let unavailable = "\"unavailable\", limit = \"g\", at_most = 0";
    let by_itself = "every region counts a regional limit by itself";
    for (mode, expect, message) in [
        (regional, charged_once, by_itself),
        (regional, agree, by_itself),
        (approximate, charged_once, "the limit is not strict"),
        (strict, unavailable, "repeated until none ends as a 503"),
    ] {
        let found = told(mode, expect);
        assert!(
            found.starts_with("x:8: ") && found.contains(message),
            "{found}"
        );
    }
    assert_eq!(told(strict, charged_once), "");
    assert_eq!(told(approximate, agree), "");
    assert_eq!(told(strict, "\"unavailable\", at_most = 0"), "");
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
