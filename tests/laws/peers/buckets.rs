//! What a shared bucket makes of words of which nobody knows when the units in them were charged.

use highwater::catalogue::intern::Interner;
use highwater::domain::name::RegionName;
use highwater::domain::time::Span;
use highwater::domain::time::Window;
use highwater::ledger::exchange::Heard;
use highwater::ledger::exchange::LONG_AGO;
use highwater::ledger::mesh::Mesh;
use highwater::ledger::mesh::Peer;
use highwater::replication::merge;
use highwater::replication::merge::Place;
use highwater::replication::wire::Frame;
use highwater::replication::wire::FrameWriter;
use highwater::replication::wire::Head;
use highwater::replication::wire::Kind;
use highwater::usage::actor::Actor;
use highwater::usage::actor::ActorId;

use super::ALL_CELLS;
use super::dead_at;
use super::of_two_regions;
use super::peer;
use super::shared;
use super::tells;
use super::window;
use crate::scene::bucket;
use crate::scene::ms;
use crate::scene::seconds;

/// A region told in a round what it had just learnt of others that were cut off from its hearer. That took all of it for
/// charged since the round before: 210 units of debt of a bucket of 32 that was full by the word of its teller.
#[test]
fn what_is_told_of_regions_that_are_not_in_touch_was_drawn_long_ago() {
    let third = Actor {
        region: RegionName::new("us-east-1").expect("a region's name"),
        incarnation: 8,
    };
    let processes = [peer(), third.clone()];
    // It was asked before the segment began, so that no slot of it can have been forgotten.
    let began = Window::aligned(ms(0), Span::from_nanos(1 << 38)).end;
    let segment = window(began);
    let now = began.plus(seconds(1));
    for (is_in_touch, left) in [(true, 0), (false, 89)] {
        let ledger = of_two_regions();
        let mut mesh = Mesh::clone(&ledger.mesh());
        mesh.peers.push(Peer {
            site: ledger.site(&third.region).expect("room"),
            is_reachable: is_in_touch,
            ..mesh.peers[0]
        });
        ledger.set_mesh(mesh);
        let mut names = Interner::default();
        let mut desk = shared(bucket(100, 100, seconds(100)));
        desk.id = names.intern(&desk.limit.name).expect("room");
        assert!(desk.passes(&ledger, began.minus(seconds(1)), 1));
        assert!(desk.passes(&ledger, now, 1));
        let mut writer = FrameWriter::new(ActorId(0));
        let (limit, is_full_at) = (desk.limit.name.as_str(), now.plus(seconds(5)));
        writer.begin_entry(limit, &desk.tenant, &desk.key, 1, is_full_at, false, None);
        writer.window(segment);
        writer.slot(ActorId(0), 5, 0);
        writer.slot(ActorId(1), 900, 0);
        writer.end_entry();
        let head = Head::single(Kind::Round, 1);
        let bytes = writer.finish(&head, |actor| processes.get(actor.0 as usize));
        let place = Place {
            ledger: &ledger,
            names: &names,
            version: 1,
            now,
            boot: seconds(1),
            round_every: Span::from_ms(100),
        };
        let frame = Frame::read(&bytes).expect("a frame");
        let region = peer().region;
        let merged = merge::merge(&place, &region, &frame, |_, _| true, |_, _, _| (), None);
        assert_eq!((merged.refused, merged.is_whole), (0, true));
        // 1 here, 5 of the teller, and as many of the third as have not come back by the teller's word.
        assert_eq!(desk.look(&ledger, now).standing.remaining, left);
    }
}

/// What was heard between a look and the first charge waited, and all that anybody had told bounded it together.
#[test]
fn words_after_a_look_are_bounded_one_by_one() {
    let ledger = of_two_regions();
    let desk = shared(bucket(100, 100, seconds(100)));
    let segment = Window::aligned(ms(0), Span::from_nanos(1 << 38)).id;
    let now = ms(1_000);
    tells(&ledger, &desk, now, (ms(200_000), LONG_AGO), (segment, 5));
    let standing = ledger.standing(&desk.item(0), &desk.tenant, now);
    assert_eq!(standing.remaining, 95);
    tells(&ledger, &desk, now, (ms(6_000), LONG_AGO), (segment, 900));
    let standing = ledger.standing(&desk.item(0), &desk.tenant, now);
    assert_eq!(standing.remaining, 90);
}

/// What a peer told when it had come back was not kept, and all of it was drawn with what the peer charged next.
#[test]
fn what_had_come_back_when_it_was_told_is_not_drawn_later() {
    let ledger = of_two_regions();
    let desk = shared(bucket(100, 100, seconds(100)));
    let segment = Window::aligned(ms(0), Span::from_nanos(1 << 38)).id;
    assert!(desk.passes(&ledger, ms(1_000), 1));
    let now = ms(20_000);
    let heard = tells(&ledger, &desk, now, (ms(6_000), LONG_AGO), (segment, 900));
    assert_eq!(heard, Heard::Over);
    assert_eq!(desk.look(&ledger, now).standing.remaining, 100);
    let lives = (ms(21_000), ms(19_990));
    tells(&ledger, &desk, now, lives, (segment, 901));
    assert_eq!(desk.look(&ledger, now).standing.remaining, 99);
}

/// A bucket that nobody asked for here was forgotten when it was full again, and made anew: what a peer had drawn
/// from it before was drawn once more with the next unit that the peer charged.
#[test]
fn what_was_forgotten_is_not_drawn_with_what_is_charged_next() {
    let ledger = of_two_regions();
    let desk = shared(bucket(10, 10, seconds(12)));
    let segment = Window::aligned(ms(0), Span::from_nanos(1 << 35)).end;
    let after = |tenths: u64| segment.plus(Span::from_ms(tenths * 100));
    let lives = (after(106), after(9));
    tells(&ledger, &desk, after(10), lives, (window(segment), 8));
    ledger.sweep(after(250), ALL_CELLS);
    assert_eq!(ledger.keys(), 0);
    assert!(desk.passes(&ledger, after(260), 1));
    let lives = (after(272), after(259));
    tells(&ledger, &desk, after(260), lives, (window(segment), 9));
    assert_eq!(desk.look(&ledger, after(260)).standing.remaining, 8);
    // From now on its slot is known, and what is news of it is what it has just charged.
    let lives = (after(272), after(259));
    tells(&ledger, &desk, after(260), lives, (window(segment), 12));
    assert_eq!(desk.look(&ledger, after(260)).standing.remaining, 5);
}

/// Hearers bound what was drawn long ago by when its teller has the bucket full again; a region that passed on the
/// debt that another one told of left them without a bound.
#[test]
fn the_debt_that_a_peer_tells_of_is_not_passed_on() {
    let ledger = of_two_regions();
    let desk = shared(bucket(100, 100, seconds(100)));
    let segment = Window::aligned(ms(0), Span::from_nanos(1 << 38)).id;
    let now = ms(1_000);
    assert!(desk.passes(&ledger, now, 1));
    tells(&ledger, &desk, now, (ms(200_000), ms(990)), (segment, 5));
    assert_eq!(dead_at(&ledger, &desk), ms(7_000));
    // It is kept until that has come back all the same.
    ledger.sweep(ms(190_000), ALL_CELLS);
    assert_eq!(ledger.keys(), 1);
}
