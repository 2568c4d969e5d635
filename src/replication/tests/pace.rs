//! Single cases of acknowledged rounds, of bounds and of pauses.

use bytes::Bytes;

use crate::domain::name::RegionName;
use crate::domain::time::Span;
use crate::replication::repair::LISTING_ITEMS_MAX;
use crate::replication::sender::Action;
use crate::replication::sender::BACKLOG_FLIGHTS_MAX;
use crate::replication::sender::BACKLOG_LOST_MAX;
use crate::replication::sender::FLIGHTS_MAX;
use crate::replication::sender::FLYING_BYTES_MAX;
use crate::replication::sender::Ref;
use crate::replication::sender::Replication;
use crate::replication::sender::SendId;
use crate::replication::tests::actor;
use crate::replication::tests::region;
use crate::replication::turns::CYCLE;
use crate::replication::turns::CYCLE_ITEMS_MAX;
use crate::replication::turns::TURN_MAX;
use crate::replication::turns::TURNS_MAX;
use crate::replication::turns::Turns;
use crate::replication::wire::Frame;
use crate::replication::wire::Kind;

const START: Span = Span::from_seconds(1);

fn ms(ms: u64) -> Span {
    START.plus(Span::from_ms(ms))
}

fn refs(counters: impl IntoIterator<Item = u64>) -> Vec<Ref> {
    counters.into_iter().map(Ref).collect()
}

fn frame(counters: impl IntoIterator<Item = u64>) -> (Bytes, Vec<Ref>) {
    (Bytes::from_static(b"frame"), refs(counters))
}

fn sends(actions: &[Action]) -> Vec<SendId> {
    actions
        .iter()
        .filter_map(|action| match action {
            Action::Send { id, .. } => Some(*id),
            Action::Encode { .. } | Action::Everything { .. } => None,
        })
        .collect()
}

fn encodes(actions: &[Action]) -> Vec<(SendId, Vec<Ref>)> {
    actions
        .iter()
        .filter_map(|action| match action {
            Action::Encode { id, refs, .. } => Some((*id, refs.clone())),
            Action::Send { .. } | Action::Everything { .. } => None,
        })
        .collect()
}

/// A machine and its one peer, which was told everything of an empty ledger.
fn caught_up() -> (Replication, RegionName) {
    let peer = region(1);
    let mut machine = Replication::new(actor(0, 7));
    let actions = machine.peer_connected(&peer, 1, START);
    let [Action::Everything { pass, .. }] = actions.as_slice() else {
        panic!("a new peer is told everything: {actions:?}");
    };
    assert!(!machine.is_caught_up(&peer));
    let actions = machine.mark_all(&peer, *pass, [], true, START);
    let [Action::Send { id, bytes, .. }] = actions.as_slice() else {
        panic!("an empty ledger is told with a word: {actions:?}");
    };
    let head = Frame::read(bytes).expect("a frame").head();
    assert_eq!(head.kind, Kind::Everything);
    machine.replied(&peer, *id, START);
    assert!(!machine.is_caught_up(&peer), "the peer's word is missing");
    machine.told_everything(&peer, 1, START);
    assert!(machine.is_caught_up(&peer));
    (machine, peer)
}

fn round(machine: &mut Replication, round: u64, counters: &[u64]) -> SendId {
    let actions = machine.round(
        ms(round * 100),
        round,
        vec![frame(counters.iter().copied())],
    );
    let sent = sends(&actions);
    assert_eq!(sent.len(), 1, "{actions:?}");
    sent[0]
}

#[test]
fn replies_out_of_order_free_what_they_are_for() {
    let (mut machine, peer) = caught_up();
    let first = round(&mut machine, 1, &[1, 2]);
    let second = round(&mut machine, 2, &[3]);
    let third = round(&mut machine, 3, &[1]);
    assert_eq!(machine.lag(&peer, ms(1100)), Span::from_ms(1000));
    machine.replied(&peer, third, ms(400));
    assert_eq!(machine.acked_round(&peer), 0);
    machine.replied(&peer, first, ms(400));
    assert_eq!(machine.acked_round(&peer), 1);
    assert_eq!(machine.lag(&peer, ms(1100)), Span::from_ms(900));
    machine.replied(&peer, second, ms(400));
    assert_eq!(machine.acked_round(&peer), 3);
    assert_eq!(machine.lag(&peer, ms(1100)), Span::ZERO);
}

#[test]
fn every_part_of_a_round_counts() {
    let (mut machine, peer) = caught_up();
    let actions = machine.round(ms(100), 1, vec![frame([1]), frame([2])]);
    let sent = sends(&actions);
    machine.replied(&peer, sent[1], ms(200));
    assert_eq!(machine.acked_round(&peer), 0);
    machine.replied(&peer, sent[0], ms(200));
    assert_eq!(machine.acked_round(&peer), 1);
}

#[test]
fn a_sign_of_life_owes_nothing() {
    let (mut machine, peer) = caught_up();
    let id = round(&mut machine, 5, &[]);
    assert_eq!(machine.acked_round(&peer), 5);
    machine.failed(&peer, id, ms(600));
    assert_eq!(machine.acked_round(&peer), 5);
    assert_eq!(machine.backlog_len(&peer), 0);
}

/// A round tells what changed, and by the next one that may be another window of the counter.
#[test]
fn a_later_round_does_not_pay_for_an_earlier_one() {
    let (mut machine, peer) = caught_up();
    let first = round(&mut machine, 1, &[1]);
    let second = round(&mut machine, 2, &[1]);
    let third = round(&mut machine, 3, &[1]);
    machine.failed(&peer, first, ms(400));
    machine.failed(&peer, third, ms(400));
    let asked = machine.replied(&peer, second, ms(400));
    assert_eq!(machine.acked_round(&peer), 0);
    // A reply ends the pause, so the counter was asked for at once, as it stands.
    let [(id, counters)] = &encodes(&asked)[..] else {
        panic!("{asked:?}");
    };
    assert_eq!(*counters, refs([1]));
    let sent = machine.encoded(&peer, *id, vec![frame([1])], ms(400));
    for id in sends(&sent) {
        machine.replied(&peer, id, ms(500));
    }
    assert_eq!(machine.acked_round(&peer), 3);
    assert_eq!(machine.backlog_len(&peer), 0);
}

#[test]
fn an_older_failure_that_comes_later_holds_back_more() {
    let (mut machine, peer) = caught_up();
    let first = round(&mut machine, 1, &[1]);
    let second = round(&mut machine, 2, &[2]);
    let third = round(&mut machine, 3, &[1]);
    machine.replied(&peer, second, ms(400));
    machine.failed(&peer, third, ms(400));
    assert_eq!(machine.acked_round(&peer), 0);
    machine.failed(&peer, first, ms(400));
    assert_eq!(machine.backlog_len(&peer), 1);
    assert_eq!(machine.acked_round(&peer), 0);
}

#[test]
fn backlog_that_was_written_before_a_round_does_not_pay_for_it() {
    let (mut machine, peer) = caught_up();
    let first = round(&mut machine, 1, &[1]);
    machine.failed(&peer, first, ms(110));
    let actions = machine.tick(ms(300));
    let wanted = encodes(&actions);
    assert_eq!(wanted[0].1, refs([1]));
    let second = round(&mut machine, 4, &[1]);
    machine.failed(&peer, second, ms(410));
    let actions = machine.encoded(&peer, wanted[0].0, vec![frame([1])], ms(420));
    assert_eq!(sends(&actions), [wanted[0].0]);
    let actions = machine.replied(&peer, wanted[0].0, ms(500));
    assert_eq!(machine.acked_round(&peer), 3);
    let wanted = encodes(&actions);
    assert_eq!(wanted[0].1, refs([1]));
    machine.encoded(&peer, wanted[0].0, vec![frame([1])], ms(510));
    machine.replied(&peer, wanted[0].0, ms(600));
    assert_eq!(machine.acked_round(&peer), 4);
}

#[test]
fn a_counter_that_is_gone_is_owed_no_more() {
    let (mut machine, peer) = caught_up();
    let id = round(&mut machine, 1, &[1, 2]);
    machine.failed(&peer, id, ms(110));
    let wanted = encodes(&machine.tick(ms(300)));
    assert_eq!(wanted[0].1.len(), 2);
    machine.encoded(&peer, wanted[0].0, Vec::new(), ms(300));
    assert_eq!(machine.acked_round(&peer), 1);
}

#[test]
fn what_a_lost_link_took_along_is_told_again_and_late_replies_mean_nothing() {
    let (mut machine, peer) = caught_up();
    let id = round(&mut machine, 1, &[1]);
    machine.peer_lost(&peer);
    assert!(machine.replied(&peer, id, ms(200)).is_empty());
    assert_eq!(machine.acked_round(&peer), 0);
    let actions = machine.round(ms(300), 2, vec![frame([2])]);
    assert_eq!(actions, [], "nothing is sent without a link");
    assert_eq!(machine.tick(ms(400)), []);
    assert_eq!(machine.backlog_len(&peer), 2);
    let actions = machine.peer_connected(&peer, 1, ms(500));
    let wanted = encodes(&actions);
    let mut told = wanted[0].1.clone();
    told.sort();
    assert_eq!(told, refs([1, 2]));
    assert_eq!(actions.len(), 1, "the same process has all else");
    machine.encoded(&peer, wanted[0].0, vec![frame([1, 2])], ms(500));
    machine.replied(&peer, wanted[0].0, ms(600));
    assert_eq!(machine.acked_round(&peer), 2);
    assert!(machine.is_caught_up(&peer));
}

#[test]
fn another_process_has_acknowledged_nothing_until_it_was_told_all() {
    let (mut machine, peer) = caught_up();
    let first = round(&mut machine, 1, &[1]);
    machine.replied(&peer, first, ms(200));
    let second = round(&mut machine, 2, &[2]);
    assert_eq!(machine.acked_round(&peer), 1);
    // It started again before the loss of its link was seen.
    let actions = machine.peer_connected(&peer, 2, ms(300));
    let [Action::Everything { pass, .. }] = actions[..] else {
        panic!("a new process is told everything: {actions:?}");
    };
    machine.replied(&peer, second, ms(310));
    assert_eq!(machine.acked_round(&peer), 0);
    assert!(!machine.is_caught_up(&peer));
    assert_eq!(machine.lag(&peer, ms(400)), Span::from_ms(100));
    let third = round(&mut machine, 3, &[1]);
    machine.replied(&peer, third, ms(400));
    assert_eq!(machine.acked_round(&peer), 0, "the walk has not ended");
    assert_eq!(
        machine.mark_all(&peer, pass - 1, refs([9]), true, ms(410)),
        []
    );
    assert_eq!(machine.acked_round(&peer), 0, "that was an older walk");
    let actions = machine.mark_all(&peer, pass, refs([1]), false, ms(420));
    let wanted = encodes(&actions);
    assert_eq!(wanted[0].1, refs([1]));
    let again = matches!(actions[0], Action::Everything { pass: p, .. } if p == pass);
    assert!(again, "the walk goes on: {actions:?}");
    machine.mark_all(&peer, pass, refs([2]), true, ms(430));
    machine.encoded(&peer, wanted[0].0, vec![frame([1])], ms(440));
    let actions = machine.replied(&peer, wanted[0].0, ms(500));
    assert_eq!(
        machine.acked_round(&peer),
        0,
        "counter 2 is under way: {actions:?}"
    );
}

#[test]
fn the_word_that_all_was_told_is_repeated_until_it_arrives() {
    let peer = region(1);
    let mut machine = Replication::new(actor(0, 7));
    // The peer may be the first to speak.
    machine.told_everything(&peer, 1, START);
    machine.peer_connected(&peer, 1, START);
    let actions = machine.mark_all(&peer, 1, [], true, START);
    machine.failed(&peer, sends(&actions)[0], START);
    assert_eq!(machine.tick(ms(99)), [], "there is a pause after a failure");
    let actions = machine.tick(ms(100));
    machine.failed(&peer, sends(&actions)[0], ms(100));
    assert_eq!(machine.tick(ms(299)), [], "the pause grows");
    let actions = machine.tick(ms(300));
    assert!(!machine.is_caught_up(&peer));
    machine.replied(&peer, sends(&actions)[0], ms(300));
    assert!(machine.is_caught_up(&peer));
    assert_eq!(machine.tick(ms(10_000)), []);
}

#[test]
fn the_word_of_an_older_process_does_not_undo_that_of_the_newer() {
    let (mut machine, peer) = caught_up();
    machine.told_everything(&peer, 2, ms(1));
    machine.told_everything(&peer, 1, ms(2));
    let actions = machine.peer_connected(&peer, 2, ms(3));
    assert!(!machine.is_caught_up(&peer));
    assert_eq!(actions.len(), 1, "{actions:?}");
    let actions = machine.mark_all(&peer, 2, [], true, ms(4));
    machine.replied(&peer, sends(&actions)[0], ms(5));
    assert!(machine.is_caught_up(&peer));
}

#[test]
fn what_is_on_its_way_is_bounded() {
    let (mut machine, peer) = caught_up();
    let mut sent = Vec::new();
    for n in 1..=100 {
        sent.extend(sends(&machine.round(ms(n), n, vec![frame([n]), frame([])])));
    }
    let figures = machine.figures(&peer).expect("known");
    assert_eq!(figures.in_flight, FLIGHTS_MAX);
    assert_eq!(sent.len(), FLIGHTS_MAX);
    assert!(figures.backlog >= 100 - FLIGHTS_MAX);
    let mut written = Vec::new();
    for id in sent {
        let actions = machine.replied(&peer, id, ms(200));
        written.extend(encodes(&actions));
    }
    assert_eq!(written.len(), 1);
    let (mut machine, peer) = caught_up();
    let large = Bytes::from(vec![0; FLYING_BYTES_MAX / 3]);
    let frames = (0..5).map(|n| (large.clone(), refs([n]))).collect();
    let actions = machine.round(ms(1), 1, frames);
    assert_eq!(sends(&actions).len(), 3);
    assert!(machine.figures(&peer).expect("known").flying_bytes <= FLYING_BYTES_MAX);
    assert_eq!(machine.backlog_len(&peer), 2);
}

#[test]
fn a_long_backlog_leaves_room_for_rounds_and_is_told_oldest_first() {
    let (mut machine, peer) = caught_up();
    machine.peer_lost(&peer);
    for n in 1..=10 {
        let counters = n * 1000..n * 1000 + 600;
        machine.round(ms(n), n, vec![frame(counters)]);
    }
    let actions = machine.peer_connected(&peer, 1, ms(20));
    let wanted = encodes(&actions);
    assert_eq!(wanted.len(), BACKLOG_FLIGHTS_MAX);
    assert!(wanted[0].1.iter().all(|r| r.0 / 1000 == 1));
    let id = round(&mut machine, 11, &[1]);
    machine.replied(&peer, id, ms(30));
    let mut under_way = wanted;
    let mut told = 0;
    let mut acked = 0;
    while let Some((id, refs)) = (!under_way.is_empty()).then(|| under_way.remove(0)) {
        // In two parts, as when entries are long.
        let halves = refs.chunks(refs.len().div_ceil(2)).map(<[Ref]>::to_vec);
        let frames = halves
            .map(|half| (Bytes::from_static(b"f"), half))
            .collect();
        let actions = machine.encoded(&peer, id, frames, ms(40));
        told += refs.len();
        for id in sends(&actions) {
            under_way.extend(encodes(&machine.replied(&peer, id, ms(40))));
            assert!(machine.acked_round(&peer) >= acked);
            acked = machine.acked_round(&peer);
        }
    }
    assert_eq!(told, 6000);
    assert_eq!(machine.acked_round(&peer), 11);
}

#[test]
fn parts_without_room_are_told_later() {
    let (mut machine, peer) = caught_up();
    machine.peer_lost(&peer);
    machine.round(ms(1), 1, vec![frame(0..6)]);
    let wanted = encodes(&machine.peer_connected(&peer, 1, ms(2)));
    let large = Bytes::from(vec![0; FLYING_BYTES_MAX / 2]);
    let frames = (0..6).map(|n| (large.clone(), refs([n]))).collect();
    let actions = machine.encoded(&peer, wanted[0].0, frames, ms(3));
    assert_eq!(sends(&actions).len(), 2);
    assert_eq!(machine.backlog_len(&peer), 4);
    for id in sends(&actions) {
        machine.replied(&peer, id, ms(4));
    }
    assert_eq!(machine.acked_round(&peer), 0);
}

#[test]
fn a_peer_that_is_away_for_long_is_told_everything() {
    let (mut machine, peer) = caught_up();
    machine.peer_lost(&peer);
    let many = BACKLOG_LOST_MAX as u64 + 1;
    machine.round(ms(1), 1, vec![frame(0..many)]);
    assert_eq!(machine.backlog_len(&peer), 0);
    machine.round(ms(2), 2, vec![frame([1])]);
    assert_eq!(machine.backlog_len(&peer), 0);
    assert!(!machine.is_caught_up(&peer));
    let actions = machine.peer_connected(&peer, 1, ms(3));
    assert!(
        matches!(actions[..], [Action::Everything { .. }]),
        "{actions:?}"
    );
    assert_eq!(machine.acked_round(&peer), 0);
}

#[test]
fn a_walk_that_a_lost_link_interrupted_goes_on() {
    let peer = region(1);
    let mut machine = Replication::new(actor(0, 7));
    machine.peer_connected(&peer, 1, START);
    machine.mark_all(&peer, 1, refs(0..2000), false, START);
    machine.peer_lost(&peer);
    assert_eq!(machine.backlog_len(&peer), 2000);
    let actions = machine.peer_connected(&peer, 1, ms(1));
    assert_eq!(encodes(&actions).len(), 4);
    let walks = actions
        .iter()
        .any(|action| matches!(action, Action::Everything { pass: 1, .. }));
    assert!(!walks, "enough of it waits");
}

#[test]
fn the_oldest_round_ages_over_a_long_time() {
    let (mut machine, peer) = caught_up();
    machine.peer_lost(&peer);
    for n in 1..=5000 {
        machine.round(ms(n * 100), n, vec![frame([n % 7])]);
    }
    assert_eq!(
        machine.lag(&peer, ms(600_000)),
        Span::from_ms(600_000 - 100)
    );
    machine.peer_removed(&peer);
    assert_eq!(machine.figures(&peer), None);
    assert_eq!(machine.acked_round(&peer), 0);
}

#[test]
fn turns_go_on_at_once_while_ranges_differ_as_far_as_a_cycle_allows() {
    let (b, c) = (region(1), region(2));
    let mut turns = Turns::new();
    turns.begin(&b, START);
    assert_eq!(turns.due(START), None);
    let start = START.plus(CYCLE);
    turns.begin(&c, start);
    let mut from = 0;
    for _ in 0..TURNS_MAX {
        assert_eq!(turns.due(start), Some((b.clone(), from)));
        assert_eq!(turns.due(start.plus(Span::from_ms(1))), None, "it runs");
        from += 7;
        turns.ended(&b, Some(from), start);
    }
    assert_eq!(turns.due(start), None, "the cycle has had its turns");
    assert_eq!(CYCLE_ITEMS_MAX, LISTING_ITEMS_MAX * TURNS_MAX as usize);
    let next = start.plus(CYCLE);
    let due: Vec<RegionName> = [turns.due(next), turns.due(next)]
        .into_iter()
        .map(|due| due.expect("both").0)
        .collect();
    assert!(due.contains(&b) && due.contains(&c));
    turns.failed(&b, next);
    assert_eq!(turns.due(next.plus(TURN_MAX)), None);
    // A turn that never ended is given up.
    turns.end(&b);
    assert_eq!(turns.due(next.plus(CYCLE)), Some((c, 0)));
}
