//! Frames of counts, beside the same data in postcard; and what a pass of repair costs a counter.

use std::hint::black_box;
use std::time::Instant;

use highwater::domain::name::RegionName;
use highwater::domain::time::Timestamp;
use highwater::domain::time::WindowId;
use highwater::replication::repair::ActorMark;
use highwater::replication::repair::Identity;
use highwater::replication::repair::State;
use highwater::replication::repair::Sums;
use highwater::replication::wire::Frame;
use highwater::replication::wire::FrameWriter;
use highwater::replication::wire::Head;
use highwater::replication::wire::Kind;
use highwater::usage::actor::Actor;
use highwater::usage::actor::ActorId;

use crate::Row;
use crate::median;

const ENTRIES: u64 = 1000;
const FRAMES: u32 = 400;
const TURNS: usize = 9;
const DAY: i64 = 1_796_000_400_000_000_000;

/// An entry as postcard would have it: limit, tenant, key, epoch, end, near, gossip, windows of slots.
type Plain<'a> = (
    &'a str,
    &'a str,
    &'a str,
    u64,
    i64,
    bool,
    Option<[u8; 2]>,
    Vec<(i64, Vec<(u32, u64, u64)>)>,
);

fn encode(keys: &[String], own: &Actor) -> bytes::Bytes {
    let mut writer = FrameWriter::new(ActorId(0));
    for (n, key) in (0..).zip(keys) {
        let end = Timestamp::from_nanos(DAY + 60_000_000_000);
        writer.begin_entry("tokens", "acme", key, 17, end, false, Some([40, 30]));
        writer.window(WindowId(DAY));
        writer.slot(ActorId(0), 120 + n, 0);
        writer.end_entry();
    }
    writer.finish(&Head::single(Kind::Round, 7), |_| Some(own))
}

fn decode(bytes: &[u8]) -> u64 {
    let frame = Frame::read(bytes).expect("a frame");
    let mut sum = 0;
    for entry in frame.entries() {
        sum += entry.key.len() as u64;
        for window in entry.windows() {
            sum += window.slots().map(|slot| slot.p).sum::<u64>();
        }
    }
    sum
}

fn ns_each(mut work: impl FnMut()) -> f64 {
    let start = Instant::now();
    for _ in 0..FRAMES {
        work();
    }
    start.elapsed().as_nanos() as f64 / (f64::from(FRAMES) * ENTRIES as f64)
}

/// One entry in, one out, and one counter in the sums.
pub fn entries() -> Vec<Row> {
    let own = Actor {
        region: RegionName::new("us-east-1").expect("a name"),
        incarnation: 1,
    };
    let keys: Vec<String> = (0..ENTRIES).map(|n| format!("user-{n:05}")).collect();
    let bytes = encode(&keys, &own);
    let plain: Vec<Plain<'_>> = (0..)
        .zip(&keys)
        .map(|(n, key)| {
            let windows = vec![(DAY, vec![(0, 120 + n, 0)])];
            let end = DAY + 60_000_000_000;
            (
                "tokens",
                "acme",
                &**key,
                17,
                end,
                false,
                Some([40, 30]),
                windows,
            )
        })
        .collect();
    let plain_bytes = postcard::to_allocvec(&plain).expect("plain data");
    let mark = ActorMark::new(&own);
    let mut rows: [Vec<f64>; 5] = Default::default();
    for _ in 0..TURNS {
        rows[0].push(ns_each(|| {
            black_box(encode(black_box(&keys), &own));
        }));
        rows[1].push(ns_each(|| {
            black_box(postcard::to_allocvec(black_box(&plain)).expect("plain data"));
        }));
        rows[2].push(ns_each(|| {
            black_box(decode(black_box(&bytes)));
        }));
        rows[3].push(ns_each(|| {
            let read: Vec<Plain<'_>> =
                postcard::from_bytes(black_box(&plain_bytes)).expect("plain data");
            black_box(read);
        }));
        rows[4].push(ns_each(|| {
            let mut sums = Sums::begin_pass(Timestamp::EPOCH);
            for (n, key) in (1..).zip(black_box(&keys)) {
                let mut state = State::new(Identity::new("tokens", "acme", key, 17));
                state.slot(WindowId(DAY), mark, n, 0);
                sums.add(state, Timestamp::MAX);
            }
            black_box(sums);
        }));
    }
    let [encode, plain_encode, decode, plain_decode, sums] = rows.map(median);
    vec![
        Row {
            what: "writing an entry of a frame / postcard",
            measured: format!(
                "{encode:.0} / {plain_encode:.0} ns, {} / {} bytes",
                bytes.len() as u64 / ENTRIES,
                plain_bytes.len() as u64 / ENTRIES
            ),
            wanted: "150 ns, 30 bytes",
        },
        Row {
            what: "checking and reading an entry / postcard",
            measured: format!("{decode:.0} / {plain_decode:.0} ns"),
            wanted: "150 ns",
        },
        Row {
            what: "a counter in the sums of repair",
            measured: format!("{sums:.0} ns"),
            wanted: "200 ns",
        },
    ]
}
