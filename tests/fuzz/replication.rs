//! What a region reads from another one about counts.

use highwater::domain::name::RegionName;
use highwater::domain::time::Timestamp;
use highwater::domain::time::WindowId;
use highwater::replication::repair::ActorMark;
use highwater::replication::repair::Collection;
use highwater::replication::repair::Digest;
use highwater::replication::repair::Identity;
use highwater::replication::repair::Listing;
use highwater::replication::repair::RANGES;
use highwater::replication::repair::RangeSet;
use highwater::replication::repair::State;
use highwater::replication::repair::Sums;
use highwater::replication::repair::Want;
use highwater::replication::sender::Ref;
use highwater::replication::wire::Frame;
use highwater::replication::wire::FrameWriter;
use highwater::replication::wire::Head;
use highwater::replication::wire::Kind;
use highwater::replication::wire::bare;
use highwater::usage::actor::Actor;
use highwater::usage::actor::ActorId;

use super::Target;

/// See the module.
pub const FRAME: Target = Target {
    name: "replication",
    run: frame,
    samples: frames,
};

/// Reads a frame with all that is in it; whether it was taken.
pub fn frame(bytes: &[u8]) -> bool {
    let Ok(frame) = Frame::read(bytes) else {
        return false;
    };
    match frame.head().kind {
        Kind::Digest => digest(&frame),
        Kind::Listing => listing(&frame),
        Kind::Want => want(&frame),
        Kind::Round | Kind::Backlog | Kind::Everything | Kind::Repair | Kind::Reply => {
            let again = rewritten(&frame);
            let again = Frame::read(&again).expect("what was written is read");
            assert_eq!(again.head(), frame.head());
            assert_eq!(told(&again), told(&frame));
            true
        }
    }
}

fn actors(frame: &Frame<'_>) -> Vec<Actor> {
    frame
        .actors()
        .map(|named| Actor {
            region: RegionName::new(named.region).expect("a region's name"),
            incarnation: named.incarnation,
        })
        .collect()
}

/// Everything that a frame says of its counters.
fn told(frame: &Frame<'_>) -> Vec<String> {
    let actors = actors(frame);
    let mut told = Vec::new();
    for entry in frame.entries() {
        told.push(format!(
            "{}/{}/{} {} {:?} {} {:?}",
            entry.limit,
            entry.tenant,
            entry.key,
            entry.epoch,
            entry.dead_at,
            entry.near,
            entry.gossip
        ));
        for window in entry.windows() {
            for slot in window.slots() {
                let actor = &actors[slot.actor as usize];
                told.push(format!(
                    "{:?} {actor:?} {} {}",
                    window.start, slot.p, slot.n
                ));
            }
        }
    }
    told
}

fn rewritten(frame: &Frame<'_>) -> Vec<u8> {
    let mut writer = FrameWriter::new(ActorId(0));
    for entry in frame.entries() {
        writer.begin_entry(
            entry.limit,
            entry.tenant,
            entry.key,
            entry.epoch,
            entry.dead_at,
            entry.near,
            entry.gossip,
        );
        for window in entry.windows() {
            writer.window(window.start);
            for slot in window.slots() {
                writer.slot(ActorId(slot.actor), slot.p, slot.n);
            }
        }
        writer.end_entry();
    }
    let actors = actors(frame);
    writer
        .finish(&frame.head(), |id| actors.get(id.0 as usize))
        .to_vec()
}

fn own() -> Actor {
    Actor {
        region: RegionName::new("us-east-1").expect("a region's name"),
        incarnation: 7,
    }
}

fn state(counter: u64) -> State {
    let mut state = State::new(Identity::new("api", "acme", &counter.to_string(), 1));
    state.slot(WindowId(0), ActorMark::new(&own()), counter + 1, 0);
    state
}

fn sums() -> Sums {
    let mut sums = Sums::begin_pass(Timestamp::EPOCH);
    (0..20).for_each(|counter| sums.add(state(counter), Timestamp::MAX));
    sums
}

fn collection() -> Collection {
    let mut all = RangeSet::new();
    (0..RANGES).for_each(|range| all.insert(range));
    let mut collection = Collection::begin_pass(Timestamp::EPOCH, all);
    (0..20).for_each(|counter| collection.add(state(counter), Timestamp::MAX, Ref(counter)));
    collection.finish_pass();
    collection
}

fn digest(frame: &Frame<'_>) -> bool {
    let Ok(digest) = Digest::read(frame) else {
        return false;
    };
    assert_eq!(digest.ranges().count(), usize::from(RANGES));
    let choice = sums().choose(&digest);
    assert!(choice.next.is_none() || !choice.ranges.is_empty());
    true
}

fn listing(frame: &Frame<'_>) -> bool {
    let Ok(listing) = Listing::read(frame) else {
        return false;
    };
    let found = collection().compare(&listing);
    assert!(found.give.len() <= 20);
    assert!(found.want.len() <= listing.items().len());
    true
}

fn want(frame: &Frame<'_>) -> bool {
    Want::read(frame).is_ok_and(|want| collection().places(&want).len() <= want.identities().len())
}

/// Frames that are taken.
pub fn frames() -> Vec<Vec<u8>> {
    let actors = [
        own(),
        Actor {
            region: RegionName::new("eu-west-1").expect("a region's name"),
            incarnation: u64::MAX,
        },
    ];
    let day = 1_796_000_400_000_000_000;
    let mut writer = FrameWriter::new(ActorId(0));
    for (key, near) in [("gpt-5", true), ("gpt-4", false), ("", false)] {
        let dead_at = Timestamp::from_nanos(day + 60_000_000_000);
        let gossip = near.then_some([40, 255]);
        writer.begin_entry("tokens", "acme", key, 17, dead_at, near, gossip);
        for window in [day, day - 60_000_000_000] {
            writer.window(WindowId(window));
            writer.slot(ActorId(0), 120, 0);
            writer.slot(ActorId(1), u64::MAX, 5);
        }
        writer.end_entry();
    }
    let head = Head {
        kind: Kind::Round,
        round: 300,
        part: 1,
        parts: 3,
    };
    let round = writer.finish(&head, |id| actors.get(id.0 as usize));
    vec![
        round.to_vec(),
        bare(&Head::single(Kind::Everything, 300), &own()).to_vec(),
        sums().digest(&own(), 300, 4095).to_vec(),
        collection().listing(&own(), 300, Some(9)).to_vec(),
        Want::write(&own(), 300, &[state(3).identity()]).to_vec(),
    ]
}
