//! What a ledger gathers for peers, and what it makes of their words.

mod buckets;
mod windows;

use highwater::domain::calendar::Period;
use highwater::domain::decision::Decision;
use highwater::domain::limit::Mode;
use highwater::domain::limit::Rule;
use highwater::domain::limit::Split;
use highwater::domain::name::RegionName;
use highwater::domain::time::Span;
use highwater::domain::time::Timestamp;
use highwater::domain::time::Window;
use highwater::domain::time::WindowId;
use highwater::ledger::Ledger;
use highwater::ledger::check::Request;
use highwater::ledger::counter;
use highwater::ledger::counter::Counter;
use highwater::ledger::exchange::Heard;
use highwater::ledger::exchange::LONG_AGO;
use highwater::ledger::exchange::News;
use highwater::ledger::exchange::Told;
use highwater::ledger::mesh::Mesh;
use highwater::ledger::mesh::Peer;
use highwater::usage::actor::Actor;
use highwater::usage::window::Slot;

use crate::scene::Desk;
use crate::scene::bucket;
use crate::scene::calendar;
use crate::scene::concurrency;
use crate::scene::fixed;
use crate::scene::ledger;
use crate::scene::ms;
use crate::scene::seconds;
use crate::scene::sliding;

/// Every place of a small ledger.
const ALL_CELLS: u32 = 256 * 256;

fn shared(rule: Rule) -> Desk {
    let mut desk = Desk::new(rule);
    desk.limit.mode = Mode::Approximate;
    desk
}

fn peer() -> Actor {
    Actor {
        region: RegionName::new("eu-west-1").expect("a region's name"),
        incarnation: 7,
    }
}

/// A ledger of two regions that are in touch.
fn of_two_regions() -> Ledger {
    let ledger = ledger();
    ledger.keep_for_peers(true);
    let site = ledger.site(&peer().region).expect("room");
    ledger.set_mesh(Mesh {
        peers: [Peer {
            site,
            heard: Span::ZERO,
            is_in_touch: true,
            is_reachable: true,
            acked_round: 0,
            latency: Span::ZERO,
        }]
        .into_iter()
        .collect(),
        regions: 2,
        order: 1,
    });
    ledger
}

/// The own slots that peers are to be told: window, charged, given back.
fn gathered(ledger: &Ledger) -> Vec<(WindowId, u64, u64)> {
    let own = ledger.actors().own();
    let mut slots = Vec::new();
    for shard in 0..ledger.shards() {
        ledger.gather(shard, |_, _, counter| {
            let unsent = counter.take_unsent();
            counter.show(counter::Told::Changed, unsent, own, |window, told| {
                slots.extend(told.iter().map(|slot| (window, slot.p, slot.n)));
            });
        });
    }
    slots
}

/// The peer says that it charged `p` units in `window`.
fn tells(
    ledger: &Ledger,
    desk: &Desk,
    now: Timestamp,
    lives: (Timestamp, Timestamp),
    told: (WindowId, u64),
) -> Heard {
    tells_after(ledger, desk, now, lives, told, |_| ())
}

/// The same, after `before` was done with the counter as it was.
fn tells_after(
    ledger: &Ledger,
    desk: &Desk,
    now: Timestamp,
    (dead_at, since): (Timestamp, Timestamp),
    (window, p): (WindowId, u64),
    before: impl FnOnce(&mut Counter),
) -> Heard {
    let (actor, site) = ledger.number(&peer()).expect("room");
    let news = News {
        limit: desk.id,
        tenant: &desk.tenant,
        key: &desk.key,
        epoch: desk.epoch,
        dead_at,
        since,
    };
    let slot = Slot {
        actor,
        p,
        n: 0,
        site,
    };
    let told = [Told {
        window,
        slot,
        speaks: true,
        is_fresh: true,
    }];
    ledger.hear(&news, now, told.into_iter(), before, |_| ())
}

fn window(start: Timestamp) -> WindowId {
    WindowId(start.as_nanos())
}

#[test]
fn a_late_charge_that_opens_a_window_is_told() {
    let ledger = of_two_regions();
    let desk = shared(fixed(100, seconds(60)));
    assert!(desk.passes(&ledger, ms(59_000), 1));
    assert_eq!(gathered(&ledger), [(window(ms(0)), 1, 0)]);
    assert_eq!(desk.charge_late(&ledger, ms(61_000), 5, 1, ms(90_000)), 5);
    assert!(gathered(&ledger).contains(&(window(ms(60_000)), 5, 0)));
}

#[test]
fn what_is_given_back_in_the_window_before_is_told() {
    let ledger = of_two_regions();
    let desk = shared(sliding(100, seconds(60)));
    let receipt = desk
        .hold(&ledger, ms(59_000), 8, 1, ms(90_000))
        .expect("there are units");
    assert!(desk.passes(&ledger, ms(61_000), 1));
    gathered(&ledger);
    assert_eq!(desk.give_back(&ledger, ms(62_000), &receipt, 3, 1), 3);
    assert!(gathered(&ledger).contains(&(window(ms(0)), 8, 3)));
}

#[test]
fn a_bucket_that_was_full_again_goes_on_with_its_slot() {
    let ledger = of_two_regions();
    let desk = shared(bucket(10, 10, seconds(12)));
    // Its segments are of 2^35 ns, which is 34 s.
    let segment = Window::aligned(ms(0), Span::from_nanos(1 << 35)).end;
    let after = |seconds: u64| segment.plus(Span::from_seconds(seconds));
    assert!(desk.passes(&ledger, after(1), 4));
    assert_eq!(gathered(&ledger), [(window(segment), 4, 0)]);
    ledger.sweep(after(25), ALL_CELLS);
    assert!(desk.passes(&ledger, after(26), 1));
    assert_eq!(gathered(&ledger), [(window(segment), 5, 0)]);
    ledger.sweep(after(60), ALL_CELLS);
    assert_eq!(ledger.keys(), 0);
}

#[test]
fn what_a_peer_drew_long_ago_has_come_back_to_a_bucket() {
    let ledger = of_two_regions();
    let desk = shared(bucket(100, 100, seconds(100)));
    let segment = Window::aligned(ms(0), Span::from_nanos(1 << 38)).id;
    let is_full_at = ms(6_000);
    // To the peer 5 units are drawn, of all that it counted.
    let heard = tells(
        &ledger,
        &desk,
        ms(1_000),
        (is_full_at, LONG_AGO),
        (segment, 900),
    );
    assert_eq!(heard, Heard::Kept);
    assert_eq!(desk.look(&ledger, ms(1_000)).standing.remaining, 95);
    // The same to a bucket that was asked before.
    let asked = desk.with_key("user-2");
    assert!(asked.passes(&ledger, ms(1_000), 1));
    tells(
        &ledger,
        &asked,
        ms(1_000),
        (is_full_at, LONG_AGO),
        (segment, 900),
    );
    assert_eq!(asked.look(&ledger, ms(1_000)).standing.remaining, 94);
    // What it draws now is drawn, whatever debt that makes.
    tells(
        &ledger,
        &asked,
        ms(1_000),
        (ms(200_000), ms(990)),
        (segment, 1_050),
    );
    assert_eq!(asked.look(&ledger, ms(51_000)).standing.remaining, 0);
    assert_eq!(asked.look(&ledger, ms(67_000)).standing.remaining, 10);
}

#[test]
fn a_window_that_a_peer_is_ahead_in_outlives_the_one_before() {
    let ledger = of_two_regions();
    let desk = shared(fixed(100, seconds(60)));
    assert!(desk.passes(&ledger, ms(59_000), 1));
    let next = (window(ms(60_000)), 7);
    tells(&ledger, &desk, ms(59_900), (ms(120_000), ms(59_800)), next);
    assert!(desk.passes(&ledger, ms(59_950), 1));
    ledger.sweep(ms(75_000), ALL_CELLS);
    assert_eq!(desk.look(&ledger, ms(76_000)).standing.used, 7);
}

#[test]
fn slices_that_ended_make_room_though_nobody_asks() {
    let ledger = of_two_regions();
    let desk = shared(concurrency(100));
    let slice = |end: Timestamp| WindowId(-end.as_nanos());
    for second in 0..5_000 {
        let (now, end) = (ms(second * 1_000), ms((second + 2) * 1_000));
        let since = ms(second * 1_000 - 100);
        let heard = tells(&ledger, &desk, now, (end, since), (slice(end), 1));
        assert_eq!(heard, Heard::Kept);
    }
    assert_eq!(desk.look(&ledger, ms(4_999_000)).standing.used, 2);
    let now = ms(4_999_000);
    for end in [now.plus(seconds(366 * 86_400)), Timestamp::MAX] {
        let heard = tells(&ledger, &desk, now, (end, now), (slice(end), 1));
        assert_eq!(heard, Heard::TooFarAhead);
    }
    let unnamed = (WindowId(i64::MIN), 1);
    let heard = tells(&ledger, &desk, now, (ms(5_000_000), now), unnamed);
    assert_eq!(heard, Heard::TooFarAhead);
    assert_eq!(desk.look(&ledger, now).standing.used, 2);
}

#[test]
fn leases_that_an_earlier_process_told_of_are_not_told_twice() {
    let ledger = of_two_regions();
    let desk = shared(concurrency(10));
    // One of these came back from disk, and nobody has told yet that the process before had told of it.
    assert!(desk.hold(&ledger, ms(0), 4, 1, ms(60_000)).is_some());
    let told = gathered(&ledger);
    let [(slice, 4, 0)] = told[..] else {
        panic!("one slice: {told:?}");
    };
    let before = Actor {
        incarnation: 1,
        ..ledger.actors().own_actor().clone()
    };
    let (actor, site) = ledger.number(&before).expect("room");
    let news = News {
        limit: desk.id,
        tenant: &desk.tenant,
        key: &desk.key,
        epoch: desk.epoch,
        dead_at: ms(70_000),
        since: LONG_AGO,
    };
    let slot = Slot {
        actor,
        p: 3,
        n: 0,
        site,
    };
    let handed_back = Told {
        window: slice,
        slot,
        speaks: false,
        is_fresh: true,
    };
    ledger.hear(
        &news,
        ms(1_000),
        std::iter::once(handed_back),
        |_| (),
        |_| (),
    );
    assert_eq!(gathered(&ledger), [(slice, 4, 3)]);
    assert_eq!(desk.look(&ledger, ms(1_001)).standing.used, 4);
}

#[test]
fn who_is_refused_a_share_of_what_is_held_is_told_to_wait() {
    let ledger = of_two_regions();
    let mut desk = shared(concurrency(10));
    desk.limit.split = Split::Equal;
    assert!(desk.hold(&ledger, ms(0), 5, 1, ms(60_000)).is_some());
    let refused = desk.ask(&ledger, ms(1), 1, Some((2, ms(60_000)))).items[0];
    assert_eq!(refused.decision, Decision::Deny);
    assert!(refused.retry_after.is_some_and(|wait| !wait.is_zero()));
}

#[test]
fn a_counter_that_peers_have_in_a_later_epoch_is_held_to_its_limit() {
    let ledger = of_two_regions();
    let later = Desk {
        epoch: 50,
        ..shared(fixed(3, seconds(60)))
    };
    let start = (window(ms(0)), 1);
    tells(&ledger, &later, ms(1_000), (ms(60_000), ms(900)), start);
    // The catalogue has forgotten that the key was reset, or is not there yet.
    let desk = Desk { epoch: 1, ..later };
    let passed = (0..5).filter(|n| desk.passes(&ledger, ms(1_100 + n), 1));
    assert!(passed.count() <= 2);
}

#[test]
fn an_older_shape_that_asked_first_keeps_no_window() {
    let ledger = of_two_regions();
    let hour = Desk {
        epoch: 50,
        ..shared(fixed(10, seconds(3_600)))
    };
    let told = (window(ms(0)), 4);
    tells(
        &ledger,
        &hour,
        ms(100_000),
        (ms(3_600_000), ms(99_900)),
        told,
    );
    let minute = Desk {
        epoch: 1,
        ..shared(fixed(10, seconds(60)))
    };
    minute.passes(&ledger, ms(100_100), 1);
    assert_eq!(hour.look(&ledger, ms(100_200)).standing.used, 4);
}

#[test]
fn a_window_that_ended_is_noted_once_however_often_it_is_judged() {
    let ledger = of_two_regions();
    let desk = shared(fixed(10, seconds(60)));
    assert!(desk.passes(&ledger, ms(59_000), 1));
    for _ in 0..3 {
        ledger.check(&Request {
            judge_only: true,
            boot: Span::ZERO,
            words: &[],
            now: ms(61_000),
            tenant: &desk.tenant,
            items: &[desk.item(1)],
            hold: None,
            keep: false,
            store_failed: false,
        });
    }
    assert_eq!(ledger.ended_windows(), (0, 0));
    desk.look(&ledger, ms(62_000));
    assert_eq!(ledger.ended_windows(), (0, 10));
}

#[test]
fn windows_that_pass_while_nobody_asks_make_room_for_the_running_one() {
    // Named by civil time, nine hours from their starts.
    let tokyo_days = calendar(100, Period::Day, "Asia/Tokyo");
    for (rule, minutes, offset_minutes) in [
        (fixed(100, seconds(60)), 1, 0),
        (sliding(100, seconds(60)), 1, 0),
        (tokyo_days, 24 * 60, 9 * 60),
    ] {
        let ledger = of_two_regions();
        let desk = shared(rule);
        let start = |n: i64| ms((n * minutes - offset_minutes) * 60_000);
        let named = |n: i64| window(ms(n * minutes * 60_000));
        assert!(desk.passes(&ledger, start(0), 1));
        for n in 1..20 {
            let now = start(n).plus(Span::from_ms(100));
            let lives = (start(n + 2), now.minus(Span::from_ms(100)));
            let p = u64::try_from(n).expect("few");
            assert_eq!(
                tells(&ledger, &desk, now, lives, (named(n), p)),
                Heard::Kept
            );
            // The peer's clock is ahead.
            tells(&ledger, &desk, now, lives, (named(n + 1), 1));
        }
        let used = desk
            .look(&ledger, start(19).plus(Span::from_ms(200)))
            .standing
            .used;
        let before = if minutes == 1 && matches!(desk.limit.rule, Rule::SlidingWindow { .. }) {
            18
        } else {
            0
        };
        assert!(
            (19..=19 + before).contains(&used),
            "{used} of {:?}",
            desk.limit.rule
        );
        assert!(before == 0 || used > 19, "the window before counts too");
        if minutes == 1 {
            // A day ahead is too far.
            assert!(desk.look(&ledger, start(20)).standing.used >= 1);
        }
    }
}

#[test]
fn what_a_peer_draws_while_nobody_asks_comes_back_meanwhile() {
    let ledger = of_two_regions();
    let desk = shared(bucket(100, 100, seconds(100)));
    let segment = Window::aligned(ms(0), Span::from_nanos(1 << 38)).id;
    let begins = Timestamp::from_nanos(segment.0);
    let after = |ms: u64| begins.plus(Span::from_ms(ms));
    assert!(desk.passes(&ledger, after(0), 10));
    // A unit a second is what comes back, for longer than a bucketful takes.
    for second in 1..=200 {
        let now = after(second * 1_000);
        let lives = (now.plus(seconds(10)), now.minus(Span::from_ms(100)));
        tells(&ledger, &desk, now, lives, (segment, second));
    }
    let left = desk.look(&ledger, after(200_000)).standing.remaining;
    assert!((89..=91).contains(&left), "{left}");
}

/// When the counter of `desk` is dead, as peers are told.
fn dead_at(ledger: &Ledger, desk: &Desk) -> Timestamp {
    let mut found = None;
    for shard in 0..ledger.shards() {
        ledger.visit(shard, |_, name, counter| {
            if name.key() == desk.key {
                found = Some(counter.dead_at);
            }
        });
    }
    found.expect("it was asked")
}

/// A bucket in which something was given back was told to live until its segment ended, and a peer that had been cut
/// off took all that was counted in the segment for drawn: 153 units of a bucket of 32.
#[test]
fn a_bucket_in_which_something_was_given_back_is_full_again_no_later() {
    let ledger = of_two_regions();
    let desk = shared(bucket(10, 10, seconds(12)));
    let segment = Window::aligned(ms(0), Span::from_nanos(1 << 35)).end;
    let now = segment.plus(Span::from_seconds(1));
    let receipt = desk.hold(&ledger, now, 4, 1, now.plus(seconds(9)));
    let receipt = receipt.expect("it is full");
    assert_eq!(desk.give_back(&ledger, now, &receipt, 1, 1), 1);
    assert_eq!(dead_at(&ledger, &desk), now.plus(Span::from_ms(3_600)));
    // The slot stays as long as its segment, or it would begin again below what peers know.
    ledger.sweep(now.plus(seconds(25)), ALL_CELLS);
    assert!(desk.passes(&ledger, now.plus(seconds(25)), 1));
    assert_eq!(gathered(&ledger), [(window(segment), 5, 1)]);
}

/// Of what was drawn long ago as much was taken to be drawn still as the longest debt that anybody had told of allowed,
/// this region's own too.
#[test]
fn what_was_drawn_long_ago_is_bounded_by_the_word_of_who_tells_it() {
    let ledger = of_two_regions();
    let desk = shared(bucket(100, 100, seconds(100)));
    let segment = Window::aligned(ms(0), Span::from_nanos(1 << 38)).id;
    assert!(desk.passes(&ledger, ms(1_000), 40));
    let lives = (ms(6_000), LONG_AGO);
    tells(&ledger, &desk, ms(1_000), lives, (segment, 900));
    assert_eq!(desk.look(&ledger, ms(1_000)).standing.remaining, 55);
}

/// A bucket in debt to several regions was over when the longest debt that one of them knew of was, and began full.
#[test]
fn a_bucket_lives_until_all_that_others_drew_has_come_back() {
    let ledger = of_two_regions();
    let desk = shared(bucket(100, 100, seconds(100)));
    let segment = Window::aligned(ms(0), Span::from_nanos(1 << 38)).id;
    assert!(desk.passes(&ledger, ms(1_000), 100));
    // It knows of none of these.
    let lives = (ms(101_000), ms(990));
    tells(&ledger, &desk, ms(1_000), lives, (segment, 100));
    assert_eq!(dead_at(&ledger, &desk), ms(201_000));
    ledger.sweep(ms(121_000), ALL_CELLS);
    assert_eq!(desk.look(&ledger, ms(121_000)).standing.remaining, 20);
}

/// Peers drew what a bucket had let pass without drawing it, and got into debts without end.
#[test]
fn peers_are_told_of_nothing_that_a_bucket_did_not_draw() {
    let ledger = of_two_regions();
    let mut desk = shared(bucket(10, 10, seconds(1)));
    desk.limit.enforce = false;
    for _ in 0..60 {
        assert!(desk.passes(&ledger, ms(0), 1));
    }
    let receipt = desk.hold(&ledger, ms(0), 1, 1, ms(9_000)).expect("shadow");
    assert_eq!(desk.give_back(&ledger, ms(0), &receipt, 1, 1), 1);
    let segment = Window::aligned(ms(0), Span::from_nanos(1 << 31)).id;
    assert_eq!(gathered(&ledger), [(segment, 10, 0)]);
}

/// A region that was not asked for a while forgot the segment before when it was, and drew all of it again when that was
/// told again.
#[test]
fn what_was_drawn_in_the_segment_before_is_not_drawn_again() {
    let ledger = of_two_regions();
    let desk = shared(bucket(100, 100, seconds(100)));
    let segment = Window::aligned(ms(0), Span::from_nanos(1 << 38));
    let next = segment.end;
    assert!(desk.passes(&ledger, Timestamp::from_nanos(segment.id.0), 1));
    // Of the segment that begins at `next` too nobody here asks.
    let last = next.plus(Span::from_nanos(1 << 38));
    let before_last = last.minus(seconds(10));
    let lives = (last.plus(seconds(50)), before_last);
    tells(&ledger, &desk, before_last, lives, (window(next), 60));
    assert!(desk.passes(&ledger, last, 1));
    assert_eq!(desk.look(&ledger, last).standing.remaining, 49);
    let lives = (last.plus(seconds(50)), LONG_AGO);
    tells(&ledger, &desk, last, lives, (window(next), 60));
    assert_eq!(desk.look(&ledger, last).standing.remaining, 49);
}

/// The same of a segment that is further back, in a region that nobody asks.
#[test]
fn nor_is_what_was_drawn_in_one_before_that() {
    let ledger = of_two_regions();
    let desk = shared(bucket(100, 100, seconds(100)));
    let segment = Window::aligned(ms(0), Span::from_nanos(1 << 38));
    assert!(desk.passes(&ledger, Timestamp::from_nanos(segment.id.0), 1));
    let mut begins = segment.end;
    for _ in 0..3 {
        let lives = (begins.plus(seconds(60)), begins);
        tells(&ledger, &desk, begins, lives, (window(begins), 60));
        begins = begins.plus(Span::from_nanos(1 << 38));
    }
    let now = begins.minus(Span::from_nanos(1 << 38)).plus(seconds(20));
    assert_eq!(desk.look(&ledger, now).standing.remaining, 60);
    let lives = (now.plus(seconds(60)), LONG_AGO);
    tells(&ledger, &desk, now, lives, (window(segment.end), 60));
    assert_eq!(desk.look(&ledger, now).standing.remaining, 60);
}
