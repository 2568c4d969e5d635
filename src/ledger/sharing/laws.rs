//! What holds for one counter that several regions share, whatever the delays between them: the rule alone,
//! over plain vectors of what each region knows of the others' use.
//!
//! Frames and answers arrive in order per link, after delays that change all the time. A frame of a counter
//! near its limit brings all counts that its sender knows, and its answer the answerer's own.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::any;
use proptest::prop_assert;
use proptest::prop_assert_eq;
use proptest::proptest;
use proptest::sample::select;
use proptest::strategy::Strategy;
use proptest::test_runner::Config;

use super::*;

/// Time between two steps.
const STEP_MS: u64 = 5;
const CASES: u32 = 48;

#[derive(Clone, Debug)]
struct Entry {
    own: u64,
    gossip: Gossip,
    all: Option<Vec<u64>>,
}

#[derive(Clone, Debug)]
struct Message {
    from: usize,
    to: usize,
    round: u64,
    is_answer: bool,
    entry: Option<Entry>,
}

struct Region {
    sharing: Sharing,
    mesh: Mesh,
    used: Vec<u64>,
    round: u64,
    pushes_ms: Vec<u64>,
}

/// Regions, what is under way between them, and what was granted.
struct Group {
    regions: Vec<Region>,
    quota: u64,
    split: Split,
    on_partition: OnPartition,
    now_ms: u64,
    delay_max_ms: u64,
    random: u64,
    under_way: BTreeMap<(u64, u64), Message>,
    last_arrival_ms: BTreeMap<(usize, usize), u64>,
    sent: u64,
    /// Regions below it hear nothing of the others, nor these of them.
    cut: usize,
    granted: u64,
}

impl Group {
    fn new(regions: usize, quota: u64, delay_max_ms: u64, seed: u64) -> Self {
        let region = |own: usize| Region {
            sharing: Sharing::new(Span::ZERO),
            mesh: Mesh {
                peers: (0..regions)
                    .filter(|other| *other != own)
                    .map(|other| Peer {
                        site: Site(u8::try_from(other + 1).expect("few regions")),
                        heard: Span::ZERO,
                        is_in_touch: true,
                        is_reachable: true,
                        acked_round: 0,
                        latency: Span::from_ms(delay_max_ms / 2),
                    })
                    .collect(),
                regions: u8::try_from(regions).expect("few regions"),
                order: u8::try_from(own).expect("few regions"),
            },
            used: vec![0; regions],
            round: 0,
            pushes_ms: Vec::new(),
        };
        Self {
            regions: (0..regions).map(region).collect(),
            quota,
            split: Split::Adaptive,
            on_partition: OnPartition::Share,
            now_ms: 0,
            delay_max_ms,
            random: seed,
            under_way: BTreeMap::new(),
            last_arrival_ms: BTreeMap::new(),
            sent: 0,
            cut: 0,
            granted: 0,
        }
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % below.max(1)
    }

    fn position<'a>(&self, mesh: &'a Mesh, used: &[u64], own: usize) -> Position<'a> {
        Position {
            boot: Span::from_ms(self.now_ms),
            mesh,
            own: used[own],
            remaining: self.quota.saturating_sub(used.iter().sum()),
            quota: self.quota,
            split: self.split,
            on_partition: self.on_partition,
            bucket: None,
        }
    }

    fn ask(&mut self, own: usize, units: u64) -> bool {
        let mut region = self.regions.remove(own);
        let mut at = self.position(&region.mesh, &region.used, own);
        region.sharing.attempt(at.boot, units);
        let is_granted = region.sharing.judge(&at, units) == Shared::Granted;
        if is_granted {
            assert!(units <= at.remaining, "passes what it knows");
            at.own += units;
            at.remaining -= units;
            self.granted += units;
        }
        let wants_push = region.sharing.wants_push(&at);
        region.used[own] = at.own;
        self.regions.insert(own, region);
        if wants_push {
            self.regions[own].pushes_ms.push(self.now_ms);
            self.send_round(own);
        }
        is_granted
    }

    fn entry(&mut self, own: usize) -> Entry {
        let boot = Span::from_ms(self.now_ms);
        let region = &mut self.regions[own];
        let used = region.used[own];
        Entry {
            own: used,
            gossip: region.sharing.gossip(boot),
            all: region.sharing.is_near(used).then(|| region.used.clone()),
        }
    }

    fn send_round(&mut self, own: usize) {
        let entry = self.entry(own);
        let region = &mut self.regions[own];
        region.round += 1;
        region.sharing.gathered(region.round, entry.own);
        let round = region.round;
        for to in (0..self.regions.len()).filter(|to| *to != own) {
            self.send(Message {
                from: own,
                to,
                round,
                is_answer: false,
                entry: Some(entry.clone()),
            });
        }
    }

    fn send(&mut self, message: Message) {
        let Message { from, to, .. } = message;
        if (from < self.cut) != (to < self.cut) {
            return;
        }
        let delay = 1 + self.draw(self.delay_max_ms);
        let last = self.last_arrival_ms.entry((from, to)).or_default();
        *last = (self.now_ms + delay).max(*last);
        self.sent += 1;
        self.under_way.insert((*last, self.sent), message);
    }

    fn arrive(&mut self, message: Message) {
        let Message { from, to, .. } = message;
        let boot = Span::from_ms(self.now_ms);
        let mut region = self.regions.remove(to);
        let place = if from < to { from } else { from - 1 };
        let mut wants_own = false;
        if let Some(entry) = message.entry {
            let at = self.position(&region.mesh, &region.used, to);
            region.sharing.reserve(&at);
            wants_own = entry.all.is_some();
            for (other, used) in entry.all.iter().flatten().enumerate() {
                if other != to {
                    region.used[other] = region.used[other].max(*used);
                }
            }
            region.used[from] = region.used[from].max(entry.own);
            let site = region.mesh.peers[place].site;
            region.sharing.hear(boot, site, entry.gossip);
        }
        let peer = &mut region.mesh.peers[place];
        peer.heard = boot;
        if message.is_answer {
            peer.acked_round = peer.acked_round.max(message.round);
        }
        self.regions.insert(to, region);
        if !message.is_answer {
            let entry = wants_own.then(|| self.entry(to));
            self.send(Message {
                from: to,
                to: from,
                round: message.round,
                is_answer: true,
                entry,
            });
        }
    }

    /// Goes on by one step: what is due arrives, and every 100 ms each region sends a round.
    fn step(&mut self) {
        self.now_ms += STEP_MS;
        while let Some(first) = self.under_way.first_entry() {
            if first.key().0 > self.now_ms {
                break;
            }
            let message = first.remove();
            self.arrive(message);
        }
        for region in 0..self.regions.len() {
            if (self.now_ms + 15 * region as u64).is_multiple_of(100) {
                self.send_round(region);
            }
        }
    }

    fn rest(&mut self, ms: u64) {
        for _ in 0..ms / STEP_MS {
            self.step();
        }
    }

    /// Asks for single units in a region drawn by `weights`, `calls` times in each of `steps` steps.
    fn load(&mut self, weights: &[u64], calls: u64, steps: u64) {
        let all: u64 = weights.iter().sum();
        for _ in 0..steps {
            self.step();
            for _ in 0..calls {
                let mut drawn = self.draw(all);
                let passed = |weight: &u64| {
                    let is_it = drawn < *weight;
                    drawn = drawn.saturating_sub(*weight);
                    is_it
                };
                if let Some(own) = weights.iter().position(passed) {
                    self.ask(own, 1);
                }
            }
        }
    }

    /// Cuts the regions below `first` off and lets all of them notice.
    fn cut_off(&mut self, first: usize) {
        self.cut = first;
        self.under_way
            .retain(|_, message| (message.from < first) == (message.to < first));
        for own in 0..self.regions.len() {
            for peer in &mut self.regions[own].mesh.peers {
                let other = usize::from(peer.site.0) - 1;
                peer.is_reachable = (own < first) == (other < first);
            }
        }
    }
}

/// Which regions ask how much at a time: weights by region, calls a step, steps.
type Phase = (Vec<u64>, u64, u64);

fn phases(most: usize) -> impl Strategy<Value = Vec<Phase>> {
    let weights = vec(select(vec![0_u64, 0, 1, 3, 50]), 8);
    vec((weights, 0_u64..6, 1_u64..80), 1..most)
}

fn run(group: &mut Group, phases: &[Phase]) {
    for (weights, calls, steps) in phases {
        let regions = group.regions.len();
        let mut weights = weights[..regions].to_vec();
        weights[0] += u64::from(weights.iter().all(|weight| *weight == 0));
        group.load(&weights, *calls, *steps);
    }
}

const DELAYS_MS: [u64; 4] = [5, 15, 150, 1_000];

proptest! {
    #![proptest_config(Config::with_cases(CASES))]

    /// No region passes the quota by what it knows, so that together they use at most as many quotas as
    /// there are regions; and no counter is pushed twice within the gap.
    #[test]
    fn no_region_alone_passes_the_quota(
        regions in 2_usize..=8,
        quota in 1_u64..400,
        delay in select(DELAYS_MS.to_vec()),
        seed in any::<u64>(),
        phases in phases(6),
    ) {
        let mut group = Group::new(regions, quota, delay, seed);
        run(&mut group, &phases);
        prop_assert!(group.granted <= quota * regions as u64);
        for region in &group.regions {
            for pair in region.pushes_ms.windows(2) {
                prop_assert!(pair[1] - pair[0] >= 20);
            }
        }
    }

    /// Equal shares of what is not known to be known: two regions never pass the quota, more of them by no
    /// more than one unit each (they deal out whole units of different remainders).
    #[test]
    fn equal_shares_hardly_ever_pass_the_quota(
        regions in 2_usize..=8,
        delay in select(DELAYS_MS.to_vec()),
        seed in any::<u64>(),
        phases in phases(8),
    ) {
        let mut group = Group::new(regions, 200, delay, seed);
        group.split = Split::Equal;
        run(&mut group, &phases);
        let most = if regions == 2 { 0 } else { regions as u64 };
        prop_assert!(group.granted <= 200 + most, "{} granted", group.granted);
    }

    /// A region that is asked alone gets everything at once, whatever the quota.
    #[test]
    fn one_active_region_gets_all(
        regions in 1_usize..=8,
        quota in 1_u64..300,
        active in 0_usize..8,
        delay in select(DELAYS_MS.to_vec()),
        seed in any::<u64>(),
    ) {
        let mut group = Group::new(regions, quota, delay, seed);
        let active = active % regions;
        group.rest(500);
        for unit in 0..quota {
            prop_assert!(group.ask(active, 1), "unit {unit} of {quota}");
            if unit % 7 == 0 {
                group.step();
            }
        }
        prop_assert!(!group.ask(active, 1));
    }

    /// Nine tenths of the quota in one call, or within 200 ms, pass where nothing happened before.
    #[test]
    fn a_burst_without_history_passes(
        regions in 1_usize..=8,
        quota in 1_u64..100_000,
        calls in 1_u64..40,
        active in 0_usize..8,
        seed in any::<u64>(),
    ) {
        let mut group = Group::new(regions, quota, 150, seed);
        group.rest(500);
        let units = (quota * 9 / 10 / calls).max(1);
        for _ in 0..calls.min(quota) {
            prop_assert!(group.ask(active % regions, units));
            group.step();
        }
    }

    /// As long as enough is asked of it, a quota is used up to the last two units, in whatever regions.
    #[test]
    fn no_unit_is_stuck(
        regions in 2_usize..=8,
        quota in 1_u64..300,
        delay in select(vec![5_u64, 50, 150]),
        seed in any::<u64>(),
        weights in vec(select(vec![0_u64, 1, 1, 5, 100]), 8),
    ) {
        let mut group = Group::new(regions, quota, delay, seed);
        let mut weights = weights[..regions].to_vec();
        weights[0] += u64::from(weights.iter().all(|weight| *weight == 0));
        // More than ten round trips, and a second for the last units.
        group.load(&weights, 1, 20 * delay / STEP_MS + quota + 200);
        prop_assert!(group.granted + 2 >= quota, "{} granted", group.granted);
    }

    /// Both sides of a cut together use no more than was left, but for units dealt out by views that differ.
    #[test]
    fn the_sides_of_a_cut_share_what_was_left(
        regions in 2_usize..=8,
        first in 1_usize..8,
        quota in 20_u64..400,
        seed in any::<u64>(),
        before in phases(3),
        after in phases(6),
    ) {
        let first = 1 + first % (regions - 1);
        let mut group = Group::new(regions, quota, 60, seed);
        // Shares by demand may add up to more than one inside a side.
        group.split = Split::Equal;
        run(&mut group, &before);
        group.rest(500);
        let left = quota.saturating_sub(group.granted);
        group.cut_off(first);
        let granted = group.granted;
        run(&mut group, &after);
        let since = group.granted - granted;
        prop_assert!(since <= left + regions as u64, "{since} of {left}");
        // A quota that was not used up is there for all again.
        let all_left = quota.saturating_sub(group.granted);
        group.cut_off(0);
        for own in 0..regions {
            group.send_round(own);
        }
        group.rest(1_000);
        let known: Vec<u64> = group
            .regions
            .iter()
            .map(|region| quota.saturating_sub(region.used.iter().sum()))
            .collect();
        prop_assert_eq!(known, vec![all_left; regions]);
        group.load(&[1], 1, 2 * quota + 1_000);
        prop_assert!(group.granted + 2 >= quota);
    }
}

#[test]
fn nothing_is_pushed_once_the_quota_is_spent() {
    let mut group = Group::new(3, 50, 100, 7);
    group.load(&[1, 1, 1], 1, 400);
    assert!(group.granted >= 50);
    let pushes = |group: &Group| -> Vec<usize> {
        group
            .regions
            .iter()
            .map(|region| region.pushes_ms.len())
            .collect()
    };
    let before = pushes(&group);
    assert!(before.iter().all(|pushes| *pushes > 0));
    group.load(&[1, 1, 1], 3, 400);
    assert_eq!(pushes(&group), before);
}
