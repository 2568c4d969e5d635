//! Under any schedule nothing is said to be acknowledged that is not, and all regions come to know all.

use proptest::collection::vec;
use proptest::prelude::ProptestConfig;
use proptest::prelude::Strategy;
use proptest::prelude::any;
use proptest::prop_oneof;
use proptest::proptest;

use crate::domain::time::Span;
use crate::replication::tests::world::World;

/// What happens next; numbers are taken modulo what there is.
#[derive(Clone, Debug)]
enum Step {
    Charge(usize, u64, u64),
    Gather(usize),
    Tick(usize),
    Act(usize, usize),
    Deliver(usize),
    DeliverUnanswered(usize),
    Repeat(usize),
    Lose(usize),
    Answer(usize),
    Connect(usize, usize),
    Disconnect(usize, usize),
    ForgetGhosts,
    Save(usize),
    Restart(usize),
    Bury(u64),
    Pass(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let any = any::<usize>;
    let step = prop_oneof![
        12 => (any(), 0_u64..12, 1_u64..50).prop_map(|(r, c, n)| Step::Charge(r, c, n)),
        8 => any().prop_map(Step::Gather),
        4 => any().prop_map(Step::Tick),
        10 => (any(), any()).prop_map(|(r, n)| Step::Act(r, n)),
        14 => any().prop_map(Step::Deliver),
        1 => any().prop_map(Step::DeliverUnanswered),
        2 => any().prop_map(Step::Repeat),
        2 => any().prop_map(Step::Lose),
        16 => any().prop_map(Step::Answer),
        4 => (any(), any()).prop_map(|(a, b)| Step::Connect(a, b)),
        1 => (any(), any()).prop_map(|(a, b)| Step::Disconnect(a, b)),
        1 => proptest::prelude::Just(Step::ForgetGhosts),
        1 => any().prop_map(Step::Save),
        1 => any().prop_map(Step::Restart),
        1 => (0_u64..12).prop_map(Step::Bury),
        4 => (1_u64..2000).prop_map(Step::Pass),
    ];
    vec(step, 0..400)
}

fn run(count: usize, frame_entries_max: usize, steps: &[Step]) {
    let mut world = World::new(count, frame_entries_max);
    for step in steps {
        match *step {
            Step::Charge(at, counter, units) => world.charge(at % count, counter, units),
            Step::Gather(at) => world.gather(at % count),
            Step::Tick(at) => world.tick(at % count),
            Step::Act(at, which) => world.act(at % count, which),
            Step::Deliver(which) => world.deliver(which, false, false),
            Step::DeliverUnanswered(which) => world.deliver(which, false, true),
            Step::Repeat(which) => world.deliver(which, true, false),
            Step::Lose(which) => world.lose(which),
            Step::Answer(which) => world.answer(which),
            Step::Connect(a, b) => world.connect(a % count, b % count),
            Step::Disconnect(a, b) => world.disconnect(a % count, b % count),
            Step::ForgetGhosts => world.forget_ghosts(),
            Step::Save(at) => world.save(at % count),
            Step::Restart(at) => world.restart(at % count),
            Step::Bury(counter) => world.bury(counter),
            Step::Pass(ms) => world.boot = world.boot.plus(Span::from_ms(ms)),
        }
        world.check();
    }
    // A pause after failures is at most 3.2 s.
    world.settle(40);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn two_regions(steps in steps(), frame_entries_max in 1_usize..20) {
        run(2, frame_entries_max, &steps);
    }

    #[test]
    fn three_regions(steps in steps(), frame_entries_max in 1_usize..20) {
        run(3, frame_entries_max, &steps);
    }
}
