//! A scenario in which things go wrong at random: the same for the same seed and length.
//!
//! It is written as a scenario file, and read like one, so that everything that is true of scenarios is true of it, and
//! a run that found something can be cut down by hand.

use std::fmt::Write;

use crate::domain::draws::Draws;

/// The name of the scenario.
pub const NAME: &str = "chaos";
/// How long it lasts when nobody says.
pub const DURATION_MS: u64 = 120_000;
/// The shortest one: time for one fault, and to see that it healed.
pub const DURATION_MS_MIN: u64 = 20_000;

/// Nothing goes wrong at the beginning, and at the end, for so long.
const CALM_MS: u64 = 4_000;
/// A region is left alone for so long after something was done to it.
const REST_MS: u64 = 4_000;
const REGIONS: [&str; 3] = ["us-east-1", "eu-west-1", "ap-south-1"];

const HEAD: &str = r#"regions  = ["us-east-1", "eu-west-1", "ap-south-1"]
links    = { delay = "40ms" }
settle   = "60s"

expect = [
  { that = "never-exceeded", limit = "exports" },
  { that = "never-exceeded", limit = "drips" },
  { that = "charged-once", limit = "invoices" },
  { that = "counters-agree", limit = "exports" },
  { that = "overshoot", limit = "bursts" },
  { that = "answered", at_least = 50 },
  { that = "converged", within = "45s" },
  { that = "healed", within = "45s" },
"#;

const TAIL: &str = r#"
[limits]
exports  = { algorithm = "fixed_window", quota = 60, window = "4s", mode = "strict", key = "user" }
drips    = { algorithm = "token_bucket", capacity = 20, refill = 5, per = "1s", mode = "strict" }
invoices = { algorithm = "fixed_window", quota = 1000000, window = "1d", mode = "strict", key = "customer" }
tokens   = { algorithm = "fixed_window", quota = 1000000, window = "1d", mode = "approximate", key = "user" }
bursts   = { algorithm = "fixed_window", quota = 60, window = "4s", mode = "approximate" }
api      = { algorithm = "fixed_window", quota = 1000000, window = "1d", mode = "regional" }

[[load]]
limit = "exports"
rate  = 8
shape = "poisson"
keys  = 2
cost  = [1, 2]

[[load]]
limit = "drips"
rate  = 4

[[load]]
limit      = "invoices"
rate       = 1
keys       = 3
idempotent = true

[[load]]
limit = "bursts"
rate  = 24

[[load]]
limit = "api"
rate  = 4

[[load]]
limit = "tokens"
rate  = 4
keys  = 3
"#;

/// A process that is killed forgets what it admitted since it last wrote and told it, 100 ms before at most: of one key
/// 0.13 units at a rate of 4 with 3 keys. Regions are killed 100 times in an hour: 13 units if each time were the worst,
/// half as many on the average.
const FORGOTTEN_UNITS: u64 = 6;
const FORGOTTEN_UNITS_PER_HOUR: u64 = 20;

/// What may be done, how often as against the others, and how long it lasts at least and at most.
const KINDS: [(&str, u64, u64, u64); 11] = [
    ("do = \"kill\"", 12, 500, 6_000),
    ("do = \"stop\"", 4, 500, 4_000),
    ("do = \"pause\"", 8, 1_000, 8_000),
    ("do = \"wipe\"", 3, 500, 4_000),
    ("do = \"cut\"", 10, 1_000, 8_000),
    ("do = \"cut\", direction = \"in\"", 6, 1_000, 8_000),
    ("do = \"cut\", direction = \"out\"", 6, 1_000, 8_000),
    ("do = \"flap\", every = \"500ms\"", 5, 2_000, 8_000),
    (
        "do = \"slow\", delay = \"200ms\", jitter = \"100ms\"",
        6,
        1_000,
        8_000,
    ),
    ("do = \"lose\", loss_percent = 20", 6, 1_000, 8_000),
    ("do = \"disk-full\"", 4, 1_000, 5_000),
];
const TRANSFER_WEIGHT: u64 = 6;
const CLOCK_WEIGHT: u64 = 6;

/// Whether regions may lose their data. Counts of approximate limits are on the disk of their own region alone: when it
/// loses them while its peers begin anew too, all that it ever counted is gone, however much that is, and only seeds
/// without lost data can expect that `tokens` add up.
const fn may_wipe(seed: u64) -> bool {
    seed % 2 == 1
}

/// Units of one key of `tokens` that crashes may have forgotten after so long.
const fn forgotten_units(duration_ms: u64) -> u64 {
    FORGOTTEN_UNITS + duration_ms * FORGOTTEN_UNITS_PER_HOUR / 3_600_000
}

/// The scenario of `seed` that lasts so long, as a file.
pub fn text(seed: u64, duration_ms: u64) -> String {
    let mut draws = Draws::new(seed);
    let tokens = if may_wipe(seed) {
        String::new()
    } else {
        let units = forgotten_units(duration_ms);
        format!("  {{ that = \"counters-agree\", limit = \"tokens\", units = {units} }},\n")
    };
    let mut text = format!(
        "title    = \"Things go wrong at random\"\n\
         about    = \"Seed {seed}: regions end, freeze, are cut off and lose their data, disks fill, clocks go wrong. Nothing \
         is exceeded, nothing is charged twice, and all is well by itself afterwards.\"\n\
         duration = \"{duration_ms}ms\"\n{HEAD}{tokens}]\n\nsteps = [\n"
    );
    let end_ms = duration_ms.saturating_sub(CALM_MS);
    let mut free_from = [CALM_MS; REGIONS.len()];
    let mut at_ms = CALM_MS;
    // One directory may be lost at a time: the next when this one was surely taken back.
    let mut wipe_from_ms = 0;
    loop {
        at_ms += 500 + draws.below(5_000);
        if at_ms >= end_ms {
            break;
        }
        let region = usize::try_from(draws.below(3)).unwrap_or(0);
        let (Some(name), Some(free)) = (REGIONS.get(region), free_from.get_mut(region)) else {
            continue;
        };
        if *free > at_ms {
            continue;
        }
        let (mut what, lasts_ms) = kind(&mut draws);
        if !may_wipe(seed) {
            what = what.replace("wipe", "kill");
        }
        let lasts_ms = lasts_ms.min(end_ms - at_ms);
        let is_wipe = what.contains("wipe");
        if is_wipe && at_ms < wipe_from_ms {
            continue;
        }
        if lasts_ms == 0 {
            step(
                &mut text,
                &format!("at = \"{at_ms}ms\", {what}, on = \"{name}\""),
            );
            continue;
        }
        if lasts_ms < 500 {
            continue;
        }
        if is_wipe {
            wipe_from_ms = at_ms + lasts_ms + 20_000;
        }
        *free = at_ms + lasts_ms + REST_MS;
        step(
            &mut text,
            &format!("at = \"{at_ms}ms\", {what}, on = \"{name}\", for = \"{lasts_ms}ms\""),
        );
    }
    text.push_str("]\n");
    text.push_str(TAIL);
    text
}

fn step(text: &mut String, fields: &str) {
    // Writing to a text cannot fail.
    let _ = writeln!(text, "  {{ {fields} }},");
}

/// What is done, and for how long; 0: it is over at once.
fn kind(draws: &mut Draws) -> (String, u64) {
    let all: u64 = KINDS.iter().map(|(_, weight, ..)| weight).sum();
    let mut dice = draws.below(all + TRANSFER_WEIGHT + CLOCK_WEIGHT);
    for (what, weight, least, most) in KINDS {
        if dice < weight {
            return (what.to_owned(), least + draws.below(most - least));
        }
        dice -= weight;
    }
    if dice < TRANSFER_WEIGHT {
        return ("do = \"transfer\"".to_owned(), 0);
    }
    let offset = 100 + draws.below(1_900);
    let sign = if draws.below(2) == 0 { "" } else { "-" };
    (
        format!("do = \"clock\", offset_ms = {sign}{offset}"),
        1_000 + draws.below(7_000),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drill::scenario::Action;
    use crate::drill::scenario::Scenario;

    #[test]
    fn every_seed_gives_a_scenario_and_the_same_one_again() {
        let mut kinds = std::collections::BTreeSet::new();
        for seed in 0..300 {
            let duration_ms = DURATION_MS_MIN + seed * 4_000;
            let text = text(seed, duration_ms);
            assert_eq!(text, super::text(seed, duration_ms));
            let scenario = Scenario::parse(NAME, &text)
                .unwrap_or_else(|error| panic!("{}\n{text}", error.in_file(NAME)));
            assert_eq!(scenario.duration_ms, duration_ms);
            assert!(scenario.last_step_ends_ms() + CALM_MS <= duration_ms);
            kinds.extend(scenario.steps.iter().map(|step| step.action.name()));
            let wipes = scenario
                .steps
                .iter()
                .filter(|step| step.action == Action::Wipe);
            let at: Vec<u64> = wipes.map(|step| step.at_ms).collect();
            assert!(at.windows(2).all(|two| two[1] >= two[0] + 20_000), "{at:?}");
        }
        assert_eq!(kinds.len(), 11, "{kinds:?}");
    }
}
