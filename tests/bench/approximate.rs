//! Figures of approximate limits, from the simulator of `tests/sim`: the product's machines in virtual time,
//! regions 20 to 120 ms apart, a round every 100 ms, windows of 60 s.
//!
//! `cargo bench --bench approximate` prints how far a quota is passed and how much of it stays unused, by
//! quota, by number of regions, by units a call, over partitions, crashes and in sudden bursts, how far a common bucket
//! gets into debt and how much less than it is given, and what a judgement takes; `-- quotas`, `-- regions`,
//! `-- costs`, `-- cuts`, `-- crashes`, `-- bursts`, `-- buckets` or `-- speed` one of them alone, `-- kinds 100` a
//! quota by load and kind of traffic. A number after a name leaves greater quotas out. With `alone` at the end it is
//! the rule of sharing alone.

#[allow(dead_code, reason = "runs with faults are tests")]
#[path = "../sim/approximate/mod.rs"]
mod approximate;
#[allow(dead_code, reason = "most of it is about strict limits")]
#[path = "../sim/model/mod.rs"]
mod model;

use std::hint::black_box;
use std::time::Instant;

use approximate::Crash;
use approximate::Cut;
use approximate::Region;
use approximate::Setup;
use approximate::Tally;
use approximate::World;
use approximate::machines::Machines;
use approximate::sharing::Model;
use approximate::table::Row;
use highwater::domain::limit::OnPartition;
use highwater::domain::limit::Split;
use highwater::domain::time::Span;
use highwater::ledger::mesh::Mesh;
use highwater::ledger::mesh::Peer;
use highwater::ledger::sharing::Position;
use highwater::ledger::sharing::Shared;
use highwater::ledger::sharing::Sharing;
use highwater::usage::actor::Site;
use model::SECOND;
use model::traffic::STEADY;
use model::traffic::Traffic;

const LOADS: [f64; 6] = [0.5, 0.9, 1.2, 2.0, 5.0, 20.0];

/// Whether the rule of sharing is to be run alone, without the rest of the product.
static ALONE: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

/// What one run came to.
struct Run {
    setup: Setup,
    windows: Vec<Tally>,
    entries: u64,
    /// How far a common bucket went below zero, in units.
    debt: f64,
    /// What it would have given.
    ideal_granted: u64,
}

fn run_with<R: Region>(setup: Setup) -> Run {
    let mut world: World<R> = World::new(setup);
    world.run();
    Run {
        setup,
        windows: world.windows,
        entries: world.entries,
        debt: world.debt,
        ideal_granted: world.ideal_granted,
    }
}

fn run(setup: Setup) -> Run {
    if ALONE.load(std::sync::atomic::Ordering::Relaxed) {
        run_with::<Model>(setup)
    } else {
        run_with::<Machines>(setup)
    }
}

fn steady(
    quota: u64,
    regions: usize,
    split: Split,
    loads: &[f64],
    seeds: u64,
    kinds: &[Traffic],
) -> Row {
    let mut row = Row::default();
    for load in loads {
        for traffic in kinds {
            for seed in 0..seeds {
                let mut setup = Setup::new(seed, regions, quota, *load, *traffic);
                setup.split = split;
                let run = run(setup);
                row.add(&run.setup, &run.windows, run.entries);
            }
        }
    }
    row
}

fn quotas(most: u64) {
    println!("| Q, split | {}", Row::HEAD);
    for quota in [10, 100, 1_000, 10_000, 100_000] {
        if quota > most {
            continue;
        }
        let seeds = if quota <= 100 { 8 } else { 2 };
        for split in [Split::None, Split::Adaptive, Split::Equal] {
            let row = steady(quota, 5, split, &LOADS, seeds, &STEADY);
            row.print(&format!("{quota}, {split:?}"));
        }
    }
}

fn regions(most: u64) {
    println!("\n| N, Q | {}", Row::HEAD);
    for regions in [2, 3, 5, 10] {
        for quota in [10, 100, 1_000, 10_000, 100_000] {
            if quota > most {
                continue;
            }
            let loads = [1.2, 5.0, 20.0];
            let seeds = if quota <= 1_000 { 4 } else { 1 };
            let row = steady(quota, regions, Split::Adaptive, &loads, seeds, &STEADY);
            row.print(&format!("{regions}, {quota}"));
        }
    }
}

fn costs() {
    println!("\n| Q, units a call, split | {}", Row::HEAD);
    for (quota, cost, has_mixed_costs) in [
        (1_000, 7, false),
        (1_000, 50, false),
        (100, 50, true),
        (1_000, 50, true),
        (10_000, 50, true),
        (10_000, 300, false),
    ] {
        for split in [Split::None, Split::Adaptive, Split::Equal] {
            let mut row = Row::default();
            for load in LOADS {
                for traffic in STEADY {
                    for seed in 0..4 {
                        let mut setup = Setup::new(seed, 5, quota, load, traffic);
                        setup.split = split;
                        setup.cost = cost;
                        setup.has_mixed_costs = has_mixed_costs;
                        let run = run(setup);
                        row.add(&run.setup, &run.windows, run.entries);
                    }
                }
            }
            let from = if has_mixed_costs { "1 to " } else { "" };
            row.print(&format!("{quota}, {from}{cost}, {split:?}"));
        }
    }
}

fn kinds(quota: u64) {
    println!("\n| Q, load, traffic | {}", Row::HEAD);
    for load in LOADS {
        for traffic in STEADY {
            let row = steady(quota, 5, Split::Adaptive, &[load], 8, &[traffic]);
            row.print(&format!("{quota}, {load}, {traffic:?}"));
        }
    }
}

fn cuts() {
    println!("\n| cut, policy | {}", Row::HEAD);
    let policies = [OnPartition::Open, OnPartition::Share, OnPartition::Majority];
    for (name, first, from, until) in [
        ("5 s, healed long before, 2 of 5", 2, 5, 10),
        ("15 s across exhaustion, 2 of 5", 2, 20, 35),
        ("30 s across exhaustion, 2 of 5", 2, 10, 40),
        ("15 s across exhaustion, 1 of 5", 1, 20, 35),
        ("30 s across exhaustion, 1 of 5", 1, 10, 40),
        ("30 s across the rollover, 2 of 5", 2, 45, 75),
    ] {
        for policy in policies {
            let mut row = Row::default();
            for quota in [1_000, 10_000] {
                for traffic in STEADY {
                    for seed in 0..4 {
                        let mut setup = Setup::new(seed, 5, quota, 2.0, traffic);
                        setup.on_partition = policy;
                        setup.cut = Some(Cut {
                            first,
                            from: from * SECOND,
                            until: until * SECOND,
                        });
                        let run = run(setup);
                        row.add(&run.setup, &run.windows, run.entries);
                    }
                }
            }
            row.print(&format!("{name}, {policy:?}"));
        }
    }
}

fn crashes() {
    println!(
        "\n| a region down from 20 to 30 s, Q, split | {}",
        Row::HEAD
    );
    for quota in [100, 1_000, 10_000] {
        for split in [Split::None, Split::Adaptive] {
            let mut row = Row::default();
            for traffic in STEADY {
                for seed in 0..4 {
                    let mut setup = Setup::new(seed, 5, quota, 2.0, traffic);
                    setup.split = split;
                    setup.crash = Some(Crash {
                        region: 1,
                        from: 20 * SECOND,
                        until: 30 * SECOND,
                    });
                    let run = run(setup);
                    row.add(&run.setup, &run.windows, run.entries);
                }
            }
            row.print(&format!("without its disk, {quota}, {split:?}"));
        }
    }
}

/// Debt in time of refill and units that one bucket would have given and these did not: the worst kind of traffic,
/// and in brackets each.
fn buckets() {
    println!(
        "\n| holds, load, split | debt ms | under the ideal % | over the ideal % | by traffic: debt ms, under % |\n|---|---|---|---|---|"
    );
    const QUOTA: u64 = 3_000;
    for seconds in [1, 3, 10] {
        for load in [0.9, 1.2, 5.0] {
            for split in [Split::None, Split::Adaptive] {
                let mut worst = (0.0_f64, 0.0_f64, 0.0_f64);
                let mut each = String::new();
                for traffic in STEADY {
                    let (mut debt, mut ideal, mut granted) = (0.0_f64, 0, 0);
                    for seed in 0..4 {
                        let mut setup = Setup::new(seed, 5, QUOTA, load, traffic);
                        setup.split = split;
                        setup.capacity = Some(QUOTA * seconds / 60);
                        let run = run(setup);
                        debt = debt.max(run.debt * 60_000.0 / QUOTA as f64);
                        ideal += run.ideal_granted;
                        granted += run.windows.iter().map(|tally| tally.granted).sum::<u64>();
                    }
                    let under = 100.0 * (1.0 - granted as f64 / ideal as f64);
                    worst = (worst.0.max(debt), worst.1.max(under), worst.2.max(-under));
                    each += &format!("{traffic:?} {debt:.0}, {under:.1}; ");
                }
                let (debt, under, over) = worst;
                println!(
                    "| {seconds} s, {load}, {split:?} | {debt:.0} | {under:.1} | {over:.1} | {each}|"
                );
            }
        }
    }
}

fn bursts() {
    println!("\n| burst, split | {}", Row::HEAD);
    for (name, traffic, load) in [
        ("0.9 of the quota in one region", Traffic::Flash, 0.9),
        ("five times the quota in one region", Traffic::Flash, 5.0),
        ("0.9 of the quota in all", Traffic::Rush, 0.9),
        ("five times the quota in all", Traffic::Rush, 5.0),
    ] {
        for split in [Split::None, Split::Adaptive, Split::Equal] {
            for windows in [1, 2] {
                let mut row = Row::default();
                for quota in [1_000, 10_000] {
                    for seed in 0..4 {
                        let mut setup = Setup::new(seed, 5, quota, load, traffic);
                        setup.split = split;
                        setup.windows = windows;
                        let mut world = run(setup);
                        // Only the last one: the first is cold, the second is not.
                        world.windows.drain(..windows as usize - 1);
                        row.add(&world.setup, &world.windows, world.entries);
                    }
                }
                let heat = if windows == 1 { "cold" } else { "again" };
                row.print(&format!("{name}, {heat}, {split:?}"));
            }
        }
    }
}

/// Nanoseconds that a judgement takes with so many peers: by one comparison, by a look at everything, and
/// refusals.
fn speed(peers: u8) {
    const TURNS: u64 = 2_000_000;
    let mesh = Mesh {
        peers: (1..=peers)
            .map(|site| Peer {
                site: Site(site),
                heard: Span::ZERO,
                is_in_touch: true,
                is_reachable: true,
                acked_round: 0,
                latency: Span::from_ms(40),
            })
            .collect(),
        regions: peers + 1,
        order: 0,
    };
    let time = |name: &str, step_nanos: u64, remaining: u64| {
        let mut sharing = Sharing::new(Span::ZERO);
        sharing.attempt(Span::ZERO, 5_000);
        let gossip = sharing.gossip(Span::ZERO);
        for site in 1..=peers {
            sharing.hear(Span::ZERO, Site(site), gossip);
        }
        let begun = Instant::now();
        let mut granted = 0;
        for turn in 0..TURNS {
            let boot = Span::from_nanos(turn * step_nanos);
            let at = Position {
                boot,
                mesh: &mesh,
                own: black_box(10),
                remaining: black_box(remaining),
                quota: 1_000_000,
                split: Split::Adaptive,
                on_partition: OnPartition::Share,
                bucket: None,
            };
            sharing.attempt(boot, 1);
            if step_nanos > 1_000_000 && turn.is_multiple_of(8) {
                for peer in &mesh.peers {
                    sharing.hear(boot, peer.site, gossip);
                }
            }
            granted += u64::from(sharing.judge(&at, 1) == Shared::Granted);
            granted += u64::from(sharing.wants_push(&at));
        }
        let nanos = begun.elapsed().as_nanos() as f64 / TURNS as f64;
        println!("{peers} peers, {name}: {nanos:.1} ns, {granted} granted or pushed");
    };
    time("one comparison", 1_000, 900_000);
    time("everything", 12_000_000, 900_000);
    time("a share used up", 1_000, 2);
    time("spent", 1_000, 0);
}

fn main() {
    // `cargo bench` adds a flag of its own.
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with("--"))
        .collect();
    let number = arguments.get(1).and_then(|number| number.parse().ok());
    let is_alone = arguments.iter().any(|argument| argument == "alone");
    ALONE.store(is_alone, std::sync::atomic::Ordering::Relaxed);
    match arguments.first().map(String::as_str) {
        Some("quotas") => quotas(number.unwrap_or(100_000)),
        Some("regions") => regions(number.unwrap_or(100_000)),
        Some("costs") => costs(),
        Some("kinds") => kinds(number.unwrap_or(10)),
        Some("cuts") => cuts(),
        Some("crashes") => crashes(),
        Some("bursts") => bursts(),
        Some("buckets") => buckets(),
        Some("speed") => [2, 9].into_iter().for_each(speed),
        _ => {
            quotas(100_000);
            regions(100_000);
            costs();
            cuts();
            crashes();
            bursts();
            buckets();
            [2, 9].into_iter().for_each(speed);
        }
    }
}
