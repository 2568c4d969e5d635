//! Frames are read back as they were written, and garbage is refused.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::Just;
use proptest::prelude::Strategy;
use proptest::prelude::any;
use proptest::prop_oneof;
use proptest::proptest;
use proptest::sample::Index;

use crate::domain::time::Timestamp;
use crate::domain::time::WindowId;
use crate::replication::repair::Digest;
use crate::replication::repair::Listing;
use crate::replication::repair::Want;
use crate::replication::tests::actor;
use crate::replication::wire::FRAME_BYTES_MAX;
use crate::replication::wire::Frame;
use crate::replication::wire::FrameWriter;
use crate::replication::wire::Head;
use crate::replication::wire::Kind;
use crate::replication::wire::bare;
use crate::usage::actor::Actor;
use crate::usage::actor::ActorId;

/// Actor, charged, given back.
type Slots = Vec<(u32, u64, u64)>;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Told {
    limit: String,
    tenant: String,
    key: String,
    epoch: u64,
    dead_at: i64,
    near: bool,
    gossip: Option<[u8; 2]>,
    windows: Vec<(i64, Slots)>,
}

fn actors() -> Vec<Actor> {
    (0..4)
        .flat_map(|number| [1, u64::MAX].map(|incarnation| actor(number, incarnation)))
        .collect()
}

fn written(head: &Head, own: u32, entries: &[Told]) -> Vec<u8> {
    let mut writer = FrameWriter::new(ActorId(own));
    for told in entries {
        writer.begin_entry(
            &told.limit,
            &told.tenant,
            &told.key,
            told.epoch,
            Timestamp::from_nanos(told.dead_at),
            told.near,
            told.gossip,
        );
        for (start, slots) in &told.windows {
            writer.window(WindowId(*start));
            for (actor, p, n) in slots {
                writer.slot(ActorId(*actor), *p, *n);
            }
        }
        writer.end_entry();
    }
    assert_eq!(writer.entries(), entries.len());
    let bytes_max = writer.len();
    let actors = actors();
    let bytes = writer.finish(head, |id| actors.get(id.0 as usize));
    assert!(bytes.len() <= bytes_max);
    bytes.to_vec()
}

fn read(frame: &Frame<'_>) -> Vec<Told> {
    let known = actors();
    let named: Vec<u32> = frame
        .actors()
        .map(|named| {
            let is = |actor: &Actor| {
                actor.region.as_str() == named.region && actor.incarnation == named.incarnation
            };
            u32::try_from(known.iter().position(is).expect("known")).expect("small")
        })
        .collect();
    frame
        .entries()
        .map(|entry| Told {
            limit: entry.limit.to_owned(),
            tenant: entry.tenant.to_owned(),
            key: entry.key.to_owned(),
            epoch: entry.epoch,
            dead_at: entry.dead_at.as_nanos(),
            near: entry.near,
            gossip: entry.gossip,
            windows: entry
                .windows()
                .map(|window| {
                    let slots = window
                        .slots()
                        .map(|slot| (named[slot.actor as usize], slot.p, slot.n));
                    (window.start.0, slots.collect())
                })
                .collect(),
        })
        .collect()
}

fn counts() -> impl Strategy<Value = u64> {
    prop_oneof![3 => Just(0), 3 => 0_u64..300, 1 => any::<u64>(), 1 => Just(u64::MAX)]
}

fn times() -> impl Strategy<Value = i64> {
    let day = 1_796_000_400_000_000_000;
    prop_oneof![
        4 => Just(day),
        2 => (0_i64..1000).prop_map(move |n| day + n * 1_000_000_000),
        1 => any::<i64>(),
        1 => prop_oneof![Just(i64::MIN), Just(i64::MAX)],
    ]
}

fn entries() -> impl Strategy<Value = Vec<Told>> {
    let slots = vec((0_u32..8, counts(), counts()), 0..=40);
    let names = (
        prop_oneof![
            3 => Just("api".to_owned()),
            1 => "[a-z0-9][a-z0-9_-]{0,63}",
            1 => Just("l".repeat(64)),
        ],
        prop_oneof![
            3 => Just("acme".to_owned()),
            1 => "[a-zäöü]{1,40}",
            1 => Just("t".repeat(128)),
        ],
        prop_oneof![
            2 => Just(String::new()),
            3 => "[a-z0-9]{1,12}",
            1 => "\\PC{0,60}",
            1 => Just("k".repeat(255)),
            1 => Just("\u{0}".repeat(512)),
        ],
    );
    let rest = (
        counts(),
        times(),
        any::<bool>(),
        option::of(any::<[u8; 2]>()),
        vec((times(), slots), 0..=3),
    );
    vec(
        (names, rest).prop_map(
            |((limit, tenant, key), (epoch, dead_at, near, gossip, windows))| Told {
                limit,
                tenant,
                key,
                epoch,
                dead_at,
                near,
                gossip,
                windows,
            },
        ),
        0..12,
    )
}

fn heads() -> impl Strategy<Value = Head> {
    (0_usize..5, any::<u64>(), any::<u16>(), 1_u16..).prop_map(|(kind, round, part, parts)| Head {
        kind: [
            Kind::Round,
            Kind::Backlog,
            Kind::Everything,
            Kind::Repair,
            Kind::Reply,
        ][kind],
        round,
        part: part % parts,
        parts,
    })
}

/// Reads everything that can be read of any bytes.
fn read_all(bytes: &[u8]) -> usize {
    let Ok(frame) = Frame::read(bytes) else {
        return 0;
    };
    let actors = frame.actors().len();
    let mut things = frame.actors().count();
    assert_eq!(things, actors);
    for entry in frame.entries() {
        things += 1;
        for window in entry.windows() {
            for slot in window.slots() {
                things += 1;
                assert!((slot.actor as usize) < actors);
            }
        }
    }
    if let Ok(digest) = Digest::read(&frame) {
        things += digest.ranges().count();
    }
    if let Ok(listing) = Listing::read(&frame) {
        things += listing.items().count();
    }
    if let Ok(want) = Want::read(&frame) {
        things += want.identities().count();
    }
    // Nothing is told that no byte stands for.
    assert!(things <= bytes.len());
    things
}

#[test]
fn an_ordinary_entry_takes_few_bytes() {
    let entries: Vec<Told> = (0..1000_u64)
        .map(|n| Told {
            limit: "tokens".to_owned(),
            tenant: "acme".to_owned(),
            key: format!("user-{n:05}"),
            epoch: 17,
            dead_at: 1_796_000_460_000_000_000,
            near: false,
            gossip: Some([40, 30]),
            windows: vec![(1_796_000_400_000_000_000, vec![(0, 120 + n, 0)])],
        })
        .collect();
    let bytes = written(&Head::single(Kind::Round, 7), 0, &entries);
    assert!(bytes.len() <= 30 * entries.len(), "{}", bytes.len());
    assert_eq!(read(&Frame::read(&bytes).expect("a frame")), entries);
}

#[test]
fn a_window_of_very_many_slots_is_told_in_parts() {
    let mut writer = FrameWriter::new(ActorId(0));
    writer.begin_entry("api", "acme", "", 1, Timestamp::MAX, false, None);
    writer.window(WindowId(5));
    for n in 0..1000_u64 {
        writer.slot(ActorId(u32::try_from(n % 8).expect("small")), n, n / 2);
    }
    writer.end_entry();
    let actors = actors();
    let bytes = writer.finish(&Head::single(Kind::Repair, 1), |id| {
        actors.get(id.0 as usize)
    });
    let frame = Frame::read(&bytes).expect("a frame");
    let entry = frame.entries().next().expect("an entry");
    assert!(entry.windows().all(|window| window.start == WindowId(5)));
    let slots: Vec<(u64, u64)> = entry
        .windows()
        .flat_map(|window| window.slots())
        .map(|slot| (slot.p, slot.n))
        .collect();
    let expected: Vec<(u64, u64)> = (0..1000).map(|n| (n, n / 2)).collect();
    assert_eq!(slots, expected);
}

#[test]
fn a_writer_is_full_at_its_bound() {
    let mut writer = FrameWriter::new(ActorId(0));
    let mut entries = 0;
    while !writer.is_full() {
        writer.begin_entry(
            "api",
            "acme",
            &"k".repeat(100),
            1,
            Timestamp::MAX,
            false,
            None,
        );
        writer.window(WindowId(0));
        writer.slot(ActorId(0), 1, 0);
        writer.end_entry();
        entries += 1;
    }
    assert!(entries > 500);
    assert!(writer.len() < FRAME_BYTES_MAX + 200);
}

#[test]
fn names_that_cannot_be_are_refused() {
    let good = Told {
        limit: "api".to_owned(),
        tenant: "acme".to_owned(),
        key: "kkk".to_owned(),
        epoch: 1,
        dead_at: 0,
        near: false,
        gossip: None,
        windows: vec![(0, vec![(0, 1, 0)])],
    };
    let bytes = written(&Head::single(Kind::Round, 1), 0, &[good]);
    assert!(Frame::read(&bytes).is_ok());
    for (from, to) in [
        (&b"api"[..], &b"-pi"[..]),
        (b"acme", b"ac\ne"),
        (b"kkk", b"k\xffk"),
    ] {
        let at = bytes
            .windows(from.len())
            .position(|part| part == from)
            .expect("the name");
        let mut bytes = bytes.clone();
        bytes[at..at + to.len()].copy_from_slice(to);
        assert!(Frame::read(&bytes).is_err(), "{to:?}");
    }
    let mut of_nobody = bytes.clone();
    let last = of_nobody.len() - 2;
    of_nobody[last] = 2;
    assert!(Frame::read(&of_nobody).is_err(), "an actor beyond the last");
    let mut newer = bytes;
    newer[0] = 2;
    assert!(Frame::read(&newer).is_err(), "another format");
    assert!(Frame::read(&[]).is_err());
}

#[test]
fn a_frame_without_a_body_has_its_sender() {
    let own = actor(2, 99);
    let head = Head::single(Kind::Everything, u64::MAX);
    let bytes = bare(&head, &own);
    let frame = Frame::read(&bytes).expect("a frame");
    assert_eq!(frame.head(), head);
    let sender = frame.actors().next().expect("a sender");
    assert_eq!((sender.region, sender.incarnation), ("c", 99));
    assert_eq!(frame.entries().count(), 0);
}

proptest! {
    #[test]
    fn what_was_written_is_read(head in heads(), own in 0_u32..8, entries in entries()) {
        let bytes = written(&head, own, &entries);
        let frame = Frame::read(&bytes).expect("a frame");
        assert_eq!(frame.head(), head);
        assert_eq!(read(&frame), entries);
        let sender = frame.actors().next().expect("a sender");
        assert_eq!(sender.incarnation, actors()[own as usize].incarnation);
        assert_eq!(sender.region, actors()[own as usize].region.as_str());
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in vec(any::<u8>(), 0..200), kind in 0_u8..10) {
        read_all(&bytes);
        let mut frame = vec![1, kind, 1, 0, 1, 1, 1, b'a', 0, 0, 0, 0, 0, 0, 0, 0];
        frame.extend(bytes);
        read_all(&frame);
    }

    #[test]
    fn frames_that_were_tampered_with_are_read_or_refused(
        entries in entries(),
        changes in vec((any::<Index>(), any::<u8>(), any::<bool>()), 1..6),
    ) {
        let mut bytes = written(&Head::single(Kind::Round, 3), 0, &entries);
        for (at, byte, cuts) in changes {
            if bytes.is_empty() {
                break;
            }
            let at = at.index(bytes.len());
            bytes[at] = byte;
            if cuts {
                bytes.remove(at);
            }
        }
        read_all(&bytes);
    }
}
