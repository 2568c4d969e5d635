//! Figures of strict limits, from the simulator of `tests/sim`: the real machines, virtual time, five
//! regions 20 to 120 ms apart, 82 ms to commit, windows of 60 s.
//!
//! `cargo bench --bench strict` prints what a check has to wait for, by quota and load, and how much of a
//! leader's loss is covered. `cargo bench --bench strict -- faults 500` runs that many seeds with faults and
//! says what was found; `-- faults 500 1000` begins at seed 1000.

#[allow(dead_code, reason = "the simulation uses more of it")]
#[path = "../sim/model/mod.rs"]
mod model;

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::panic::catch_unwind;

use model::Setup;
use model::World;
use model::audit::Audit;
use model::audit::percentile;
use model::disturbed;
use model::traffic::STEADY;
use model::traffic::Traffic;

const SEEDS: u64 = 4;

/// Sums over runs.
#[derive(Default)]
struct Row {
    checks: u64,
    local: u64,
    granted: u64,
    granted_local: u64,
    early: u64,
    out_of_reach: u64,
    entries: u64,
    missed: Vec<f64>,
    waits: Vec<u32>,
    grant_waits: Vec<u32>,
}

impl Row {
    fn add(&mut self, world: &World) {
        let missed = world.undershoot();
        let most = world.setup.quota * world.setup.windows;
        self.missed.push(100.0 * missed as f64 / most as f64);
        let Audit {
            checks,
            local,
            granted,
            granted_local,
            refused_early,
            out_of_reach,
            entries,
            waits,
            grant_waits,
            ..
        } = &world.audit;
        self.checks += checks;
        self.local += local;
        self.granted += granted;
        self.granted_local += granted_local;
        self.early += refused_early;
        self.out_of_reach += out_of_reach;
        self.entries += entries;
        self.waits.extend(waits);
        self.grant_waits.extend(grant_waits);
    }

    fn print(&mut self, name: &str) {
        let percent = |part: u64, of: u64| 100.0 * part as f64 / of.max(1) as f64;
        let mean = self.missed.iter().sum::<f64>() / self.missed.len().max(1) as f64;
        let most = self.missed.iter().copied().fold(0.0, f64::max);
        println!(
            "| {name} | {:.1} | {:.1} | {} | {} | {} | {:.0} | {mean:.2} ({most:.1}) | {:.2} | {:.2} |",
            percent(self.local, self.checks),
            percent(self.granted_local, self.granted),
            percentile(&mut self.waits, 50),
            percentile(&mut self.waits, 99),
            percentile(&mut self.grant_waits, 99),
            1_000.0 * self.entries as f64 / self.granted.max(1) as f64,
            percent(self.early, self.checks),
            percent(self.out_of_reach, self.checks),
        );
    }
}

fn loads(quotas: &[u64], by_kind: bool) {
    println!(
        "| Q, load | local checks % | local grants % | p50 ms | p99 ms | grant p99 | entries per 1000 | undershoot mean (max) % | early refusals % | out of reach % |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for quota in quotas {
        for load in [0.5, 0.9, 2.0, 20.0] {
            let mut all = Row::default();
            for traffic in STEADY {
                let mut row = Row::default();
                for seed in 0..SEEDS {
                    let mut world = World::new(Setup::new(seed, *quota, load, traffic));
                    world.run();
                    row.add(&world);
                    all.add(&world);
                }
                if by_kind && load == 0.9 {
                    row.print(&format!("{quota}, {load}, {traffic:?}"));
                }
            }
            all.print(&format!("{quota}, {load}"));
        }
    }
}

fn losses() {
    println!(
        "\nLeader lost for 3.5 s at 0.9: checks meanwhile granted from what the region holds, %"
    );
    println!("| Q | kind | mid-window | worst tenth of instants | across the rollover |");
    println!("|---|---|---|---|---|");
    for quota in [1_000, 10_000] {
        for traffic in [
            Traffic::Balanced,
            Traffic::Skew,
            Traffic::Bursty,
            Traffic::Moving,
        ] {
            let share = |instants: &mut dyn Iterator<Item = u64>| {
                let mut shares: Vec<f64> = instants
                    .map(|ms| {
                        let mut setup = Setup::new(ms, quota, 0.9, traffic);
                        setup.faults.loss_at_ms = Some(ms);
                        let mut world = World::new(setup);
                        world.run();
                        let (came, granted) = world.audit.leaderless;
                        100.0 * granted as f64 / came.max(1) as f64
                    })
                    .collect();
                shares.sort_unstable_by(f64::total_cmp);
                let mean = shares.iter().sum::<f64>() / shares.len().max(1) as f64;
                (mean, shares[shares.len() / 10])
            };
            let (mean, worst) = share(&mut (0..20).map(|turn| 8_000 + turn * 2_300));
            let (rollover, _) = share(&mut (0..10).map(|turn| 56_600 + turn * 350));
            println!("| {quota} | {traffic:?} | {mean:.1} | {worst:.1} | {rollover:.1} |");
        }
    }
}

/// What follows from a fault, or is none: counted and told, but not as one that was injected.
const CONSEQUENCES: [&str; 2] = ["end of a lease", "partition of nobody"];

fn injected_kinds(kinds: &BTreeMap<&'static str, u64>) -> usize {
    let is_injected = |kind: &&&str| !CONSEQUENCES.contains(*kind);
    kinds.keys().filter(is_injected).count()
}

fn faults(seeds: u64, first: u64) {
    let mut kinds: BTreeMap<&'static str, u64> = BTreeMap::new();
    let (mut checks, mut windows, mut units, mut broken) = (0, 0, 0, Vec::new());
    let (mut filled, mut buckets) = (0, 0);
    let (mut refused, mut out_of_reach, mut keyed, mut refunds) = (0, 0, 0, 0);
    for seed in first..first + seeds {
        let run = catch_unwind(AssertUnwindSafe(|| {
            let mut world = World::new(disturbed(seed));
            world.run();
            world.audit
        }));
        let Ok(audit) = run else {
            broken.push(seed);
            continue;
        };
        checks += audit.checks;
        windows += audit.windows.len();
        filled += audit.windows.values().filter(|it| it.is_filled).count();
        buckets += audit.buckets.len();
        units += audit.granted_units;
        refused += audit.refused;
        out_of_reach += audit.out_of_reach + audit.unavailable;
        keyed += audit.keyed;
        refunds += audit.refunds;
        for (kind, count) in audit.faults {
            *kinds.entry(kind).or_default() += count;
        }
    }
    let injected: u64 = kinds
        .iter()
        .filter(|(kind, _)| !CONSEQUENCES.contains(kind))
        .map(|(_, count)| count)
        .sum();
    println!(
        "| seeds {first} to {} | {seeds} |\n|---|---|",
        first + seeds - 1
    );
    println!("| windows audited | {windows} |");
    println!("| of them filled to the largest amount in force | {filled} |");
    println!("| buckets audited | {buckets} |");
    println!("| units admitted | {units} |");
    println!("| checks | {checks}, and {keyed} keyed ones |");
    println!("| refunds, refusals, out of reach | {refunds}, {refused}, {out_of_reach} |");
    for (kind, count) in &kinds {
        println!("| fault: {kind} | {count} |");
    }
    println!(
        "| faults injected | {injected} of {} kinds |",
        injected_kinds(&kinds)
    );
    println!("| violations | {} {broken:?} |", broken.len());
    assert!(
        broken.is_empty(),
        "a seed is replayed by HIGHWATER_SIM_SEED"
    );
}

fn main() {
    // `cargo bench` adds a flag of its own.
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with("--"))
        .collect();
    let number = |place: usize, other| {
        arguments
            .get(place)
            .and_then(|number| number.parse().ok())
            .unwrap_or(other)
    };
    match arguments.first().map(String::as_str) {
        Some("faults") => faults(number(1, 200), number(2, 1)),
        Some("losses") => losses(),
        Some("loads") => loads(&[number(1, 1_000)], true),
        _ => {
            loads(&[10, 100, 1_000, 10_000], true);
            losses();
        }
    }
}
