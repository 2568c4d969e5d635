//! Bounds on the figures of approximate limits. The whole table is `cargo bench --bench approximate`.

use highwater::domain::limit::OnPartition;
use highwater::domain::limit::Split;

use crate::approximate::Cut;
use crate::approximate::Setup;
use crate::approximate::World;
use crate::approximate::machines::Machines;
use crate::approximate::sharing::Model;
use crate::approximate::table::Row;
use crate::model::SECOND;
use crate::model::traffic::STEADY;
use crate::model::traffic::Traffic;

fn steady(regions: usize, quota: u64, split: Split, seeds: u64) -> Row {
    let mut row = Row::default();
    for load in [0.9, 1.2, 20.0] {
        for traffic in STEADY {
            for seed in 0..seeds {
                let mut setup = Setup::new(seed, regions, quota, load, traffic);
                setup.split = split;
                let mut world: World<Model> = World::new(setup);
                world.run();
                row.add(&world.setup, &world.windows, world.entries);
            }
        }
    }
    println!("| {}", Row::HEAD);
    row.print(&format!("{regions} regions, {quota}, {split:?}"));
    row
}

#[test]
fn shares_by_demand_pass_a_quota_by_a_unit_or_two_and_leave_hardly_any() {
    for (regions, quota, seeds) in [
        (3, 10, 4),
        (5, 10, 4),
        (10, 10, 2),
        (5, 100, 2),
        (5, 1_000, 1),
    ] {
        let row = steady(regions, quota, Split::Adaptive, seeds);
        assert!(row.over_max_units <= 2, "{row:?}");
        assert!(row.over() <= 0.7, "{row:?}");
        assert!(row.under() <= 0.02, "{row:?}");
        assert!(row.refused_early() <= 4.0, "{row:?}");
    }
}

#[test]
fn equal_shares_do_not_pass_it_but_leave_more() {
    let row = steady(5, 100, Split::Equal, 1);
    assert_eq!(row.over_max_units, 0, "{row:?}");
    let adaptive = steady(5, 100, Split::Adaptive, 1);
    assert!(row.refused_early() > adaptive.refused_early(), "{row:?}");
}

fn cut(policy: OnPartition) -> Row {
    let mut row = Row::default();
    for traffic in STEADY {
        let mut setup = Setup::new(1, 5, 1_000, 2.0, traffic);
        setup.on_partition = policy;
        setup.cut = Some(Cut {
            first: 2,
            from: 10 * SECOND,
            until: 40 * SECOND,
        });
        let mut world: World<Model> = World::new(setup);
        world.run();
        row.add(&world.setup, &world.windows, world.entries);
    }
    println!("| {}", Row::HEAD);
    row.print(&format!("two of five cut off for 30 s, {policy:?}"));
    row
}

#[test]
fn what_is_kept_for_the_other_side_of_a_cut_is_there_for_it() {
    let share = cut(OnPartition::Share);
    assert!(share.over() <= 1.0, "{share:?}");
    assert!(share.under() <= 0.05, "{share:?}");
    let open = cut(OnPartition::Open);
    assert!(open.over() > 4.0 * share.over(), "{open:?}");
    let majority = cut(OnPartition::Majority);
    assert!(majority.over() <= 1.0, "{majority:?}");
}

/// The same with the product's machines.
#[test]
fn the_machines_share_as_the_rule_does() {
    let mut calm = Row::default();
    let mut cut_off = Row::default();
    for traffic in STEADY {
        for quota in [10, 100] {
            for load in [0.9, 5.0] {
                let mut world: World<Machines> = World::new(Setup::new(3, 3, quota, load, traffic));
                world.run();
                calm.add(&world.setup, &world.windows, world.entries);
            }
        }
        let mut setup = Setup::new(1, 3, 300, 2.0, traffic);
        setup.cut = Some(Cut {
            first: 1,
            from: 10 * SECOND,
            until: 40 * SECOND,
        });
        let mut world: World<Machines> = World::new(setup);
        world.run();
        cut_off.add(&world.setup, &world.windows, world.entries);
    }
    println!("| {}", Row::HEAD);
    calm.print("three regions of machines, 10 and 100");
    cut_off.print("one of three cut off for 30 s, share");
    assert!(calm.over_max_units <= 2, "{calm:?}");
    assert!(calm.under() <= 0.2, "{calm:?}");
    // A9
    assert!(cut_off.over() <= 1.5, "{cut_off:?}");
    assert!(cut_off.under() <= 0.2, "{cut_off:?}");
}

#[test]
fn a_burst_in_one_region_passes_where_nothing_happened_before() {
    let mut setup = Setup::new(1, 5, 1_000, 0.9, Traffic::Flash);
    setup.windows = 1;
    let mut world: World<Model> = World::new(setup);
    world.run();
    let tally = world.windows[0];
    assert!(tally.checks > 800, "{tally:?}");
    assert_eq!(tally.granted, tally.checks);
}
