//! Comparing finds exactly what differs, and two or three regions come to have the same.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use bytes::Bytes;
use proptest::collection::btree_map;
use proptest::collection::vec;
use proptest::prelude::Strategy;
use proptest::proptest;

use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::domain::time::WindowId;
use crate::replication::repair::ActorMark;
use crate::replication::repair::Collection;
use crate::replication::repair::Difference;
use crate::replication::repair::Digest;
use crate::replication::repair::Identity;
use crate::replication::repair::LISTING_ITEMS_MAX;
use crate::replication::repair::Listing;
use crate::replication::repair::MARGIN;
use crate::replication::repair::RANGES;
use crate::replication::repair::RangeSet;
use crate::replication::repair::State;
use crate::replication::repair::Sums;
use crate::replication::repair::WANT_MAX;
use crate::replication::repair::Want;
use crate::replication::sender::Ref;
use crate::replication::tests::actor;
use crate::replication::wire::Frame;

/// Counts by (window, actor).
type Counts = BTreeMap<(i64, usize), (u64, u64)>;
/// Counts by counter.
type Ledger = BTreeMap<u64, Counts>;

const NOW: Timestamp = Timestamp::from_unix_ms(1_796_000_400_000);

fn identity(counter: u64) -> Identity {
    Identity::new("api", "acme", &counter.to_string(), 3)
}

fn state(counter: u64, counts: &Counts) -> State {
    let mut state = State::new(identity(counter));
    for ((window, of), (p, n)) in counts {
        state.slot(WindowId(*window), ActorMark::new(&actor(*of, 1)), *p, *n);
    }
    state
}

fn sums(ledger: &Ledger) -> Sums {
    let mut sums = Sums::begin_pass(NOW);
    for (counter, counts) in ledger {
        sums.add(state(*counter, counts), Timestamp::MAX);
    }
    sums
}

fn collected(ledger: &Ledger, ranges: RangeSet) -> Collection {
    let mut collection = Collection::begin_pass(NOW, ranges);
    for (counter, counts) in ledger.iter().rev() {
        collection.add(state(*counter, counts), Timestamp::MAX, Ref(*counter));
    }
    collection.finish_pass();
    collection
}

/// One turn of `a` with `b` without the telling: what `a` found, where the next turn goes on, and what `b`
/// would tell when asked for it.
fn turn(a: &Ledger, b: &Ledger, from: u16) -> (Difference, Option<u16>, Vec<Ref>) {
    let asked = sums(a).digest(&actor(0, 1), 1, from);
    let frame = Frame::read(&asked).expect("a frame");
    let digest = Digest::read(&frame).expect("a digest");
    let choice = sums(b).choose(&digest);
    let theirs = collected(b, choice.ranges);
    let answer = theirs.listing(&actor(1, 1), 1, choice.next);
    let frame = Frame::read(&answer).expect("a frame");
    let listing = Listing::read(&frame).expect("a listing");
    assert_eq!(listing.next(), choice.next);
    let found = collected(a, listing.ranges()).compare(&listing);
    let mut told = Vec::new();
    for want in found.want.chunks(WANT_MAX) {
        let wanted = Want::write(&actor(0, 1), 1, want);
        let frame = Frame::read(&wanted).expect("a frame");
        told.extend(theirs.places(&Want::read(&frame).expect("a want")));
    }
    (found, listing.next(), told)
}

fn merge(into: &mut Ledger, from: &Ledger, counters: &[Ref]) {
    for place in counters {
        for (slot, (p, n)) in &from[&place.0] {
            let known = into.entry(place.0).or_default().entry(*slot).or_default();
            *known = (known.0.max(*p), known.1.max(*n));
        }
    }
}

/// Counters with counts, as merging would leave them.
fn real(ledger: &Ledger) -> Ledger {
    let mut real = ledger.clone();
    for counts in real.values_mut() {
        counts.retain(|_, counts| *counts != (0, 0));
    }
    real.retain(|_, counts| !counts.is_empty());
    real
}

fn ledgers() -> impl Strategy<Value = Ledger> {
    let counts = btree_map((0_i64..2, 0_usize..3), (0_u64..4, 0_u64..3), 1..4);
    btree_map(0_u64..60, counts, 0..50)
}

#[test]
fn a_missing_region_of_many_counters_is_filled_in_bounded_turns() {
    let counts = Counts::from([((0, 0), (5, 0))]);
    let a: Ledger = (0..20_000).map(|n| (n, counts.clone())).collect();
    let mut b = Ledger::new();
    let mut from = 0;
    for turns in 1..9 {
        let (found, next, _) = turn(&a, &b, from);
        assert!(found.give.len() <= LISTING_ITEMS_MAX);
        assert!(found.want.is_empty());
        merge(&mut b, &a, &found.give);
        let Some(next) = next else {
            assert_eq!(turns, 3);
            break;
        };
        from = next;
    }
    assert_eq!(a, b);
    assert_eq!(turn(&a, &b, from), (Difference::default(), None, vec![]));
}

#[test]
fn constant_change_cannot_starve_a_difference() {
    let hot = |units: u64| -> Ledger {
        (0..30_000)
            .map(|n| (n, Counts::from([((0, 0), (units, 0))])))
            .collect()
    };
    let mut b = hot(1);
    b.insert(99_999, Counts::from([((0, 2), (7, 0))]));
    let mut from = 0;
    let mut was_found = false;
    let mut last_was_found = false;
    let last = (0..30_000).map(identity).max().expect("some");
    for units in 2..8 {
        // Everything differs whenever it is looked at.
        let (found, next, _) = turn(&hot(units), &b, from);
        was_found |= found.want.contains(&identity(99_999));
        last_was_found |= found.want.contains(&last);
        from = next.expect("there is always more");
    }
    assert!(was_found && last_was_found);
}

#[test]
fn what_dies_soon_and_what_is_empty_is_left_out() {
    let counts = Counts::from([((0, 0), (1, 0))]);
    let mut sums = Sums::begin_pass(NOW);
    sums.add(state(1, &counts), NOW.plus(MARGIN));
    sums.add(state(2, &Counts::new()), Timestamp::MAX);
    sums.add(state(3, &Counts::from([((0, 0), (0, 0))])), Timestamp::MAX);
    assert_eq!(sums, Sums::begin_pass(NOW));
    sums.add(state(1, &counts), NOW.plus(MARGIN).plus(Span::from_ms(1)));
    assert_ne!(sums, Sums::begin_pass(NOW));
}

#[test]
fn identities_are_the_same_in_every_build() {
    // Regions of different versions compare these.
    assert_eq!(Identity::new("api", "acme", "", 1).0, IDENTITIES[0]);
    assert_eq!(
        Identity::new("tokens", "日本", "a key longer than a word", u64::MAX).0,
        IDENTITIES[1]
    );
    let counts = Counts::from([((-1, 0), (u64::MAX, 3)), ((5, 2), (1, 0))]);
    assert_eq!(state(1, &counts).sum(), IDENTITIES[2]);
}

/// Computed apart from this program.
const IDENTITIES: [u64; 3] = [
    0x2509_4789_841c_c0ca,
    0xd1f6_4d73_956d_8c20,
    0x50ba_21ca_34a0_ceb3,
];

#[test]
fn names_never_run_together() {
    let names = [
        Identity::new("a", "bc", "", 1),
        Identity::new("ab", "c", "", 1),
        Identity::new("a", "b", "c", 1),
        Identity::new("a", "bc", "\u{0}", 1),
        Identity::new("a", "bc", "", 2),
        Identity::new("a", "bc\u{0}", "", 1),
    ];
    assert_eq!(names.into_iter().collect::<BTreeSet<Identity>>().len(), 6);
}

#[test]
fn ranges_are_spread_evenly() {
    let mut counts = vec![0_u32; usize::from(RANGES)];
    for counter in 0..409_600 {
        counts[usize::from(identity(counter).range())] += 1;
    }
    assert!(counts.iter().all(|count| (40..180).contains(count)));
}

#[test]
fn surveys_out_of_shape_are_refused() {
    let ledger = Ledger::from([(1, Counts::from([((0, 0), (1, 0))]))]);
    let own = actor(0, 1);
    let mut all = RangeSet::new();
    (0..RANGES).for_each(|range| all.insert(range));
    let reads = |bytes: &Bytes| {
        let frame = Frame::read(bytes).expect("a frame");
        [
            Digest::read(&frame).is_ok(),
            Listing::read(&frame).is_ok(),
            Want::read(&frame).is_ok(),
        ]
    };
    let digest = sums(&ledger).digest(&own, 1, RANGES - 1);
    let listing = collected(&ledger, all).listing(&own, 1, Some(RANGES - 1));
    let want = Want::write(&own, 1, &[Identity(1)]);
    assert_eq!(reads(&digest), [true, false, false]);
    assert_eq!(reads(&listing), [false, true, false]);
    assert_eq!(reads(&want), [false, false, true]);
    for whole in [digest, listing, want] {
        assert_eq!(reads(&whole.slice(..whole.len() - 1)), [false; 3]);
        let longer = Bytes::from([&whole[..], &[0]].concat());
        assert_eq!(reads(&longer), [false; 3]);
    }
    let beyond = sums(&ledger).digest(&own, 1, RANGES);
    assert_eq!(reads(&beyond), [false; 3]);
}

proptest! {
    #[test]
    fn exactly_what_differs_is_found(a in ledgers(), b in ledgers(), from in 0_u16..RANGES) {
        let (found, next, told) = turn(&a, &b, from);
        assert_eq!(next, None);
        let (a, b) = (real(&a), real(&b));
        let gives: BTreeSet<u64> = found.give.iter().map(|r| r.0).collect();
        let expected = a.iter().filter(|(counter, counts)| b.get(counter) != Some(counts));
        assert_eq!(gives, expected.map(|(counter, _)| *counter).collect());
        let tells: BTreeSet<u64> = told.iter().map(|r| r.0).collect();
        let expected = b.iter().filter(|(counter, counts)| a.get(counter) != Some(counts));
        assert_eq!(tells, expected.map(|(counter, _)| *counter).collect());
        assert_eq!(gives.len() + tells.len(), found.give.len() + told.len(), "each once");
    }

    #[test]
    fn two_regions_are_the_same_after_one_turn(mut a in ledgers(), mut b in ledgers()) {
        let (found, _, told) = turn(&a, &b, 0);
        let before = a.clone();
        merge(&mut a, &b, &told);
        merge(&mut b, &before, &found.give);
        assert_eq!(real(&a), real(&b));
        assert_eq!(turn(&a, &b, 0).0, Difference::default());
    }

    #[test]
    fn three_regions_are_the_same_after_a_turn_of_each_pair(
        ledgers in vec(ledgers(), 3),
        pairs in vec((0_usize..3, 1_usize..3), 0..4),
    ) {
        let mut ledgers = ledgers;
        let calm = [(0, 1), (1, 1), (0, 2), (0, 1), (1, 1)];
        for (at, step) in pairs.into_iter().chain(calm) {
            let with = (at + step) % 3;
            let (found, _, told) = turn(&ledgers[at], &ledgers[with], 0);
            let (a, b) = (ledgers[at].clone(), ledgers[with].clone());
            merge(&mut ledgers[at], &b, &told);
            merge(&mut ledgers[with], &a, &found.give);
        }
        assert_eq!(real(&ledgers[0]), real(&ledgers[1]));
        assert_eq!(real(&ledgers[0]), real(&ledgers[2]));
    }
}
