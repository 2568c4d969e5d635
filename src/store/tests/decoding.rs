//! Every decoder reads what was written, and refuses anything else without a panic.

use std::collections::BTreeMap;

use crdts::CmRDT;
use crdts::PNCounter;
use proptest::collection::vec;
use proptest::prelude::any;
use proptest::prelude::prop_assert;
use proptest::prelude::prop_assert_eq;
use proptest::proptest;

use super::*;
use crate::store::decode_answer;
use crate::store::decode_group;
use crate::store::decode_header;
use crate::store::decode_hold;
use crate::store::decode_row;
use crate::store::format;
use crate::usage::record::BucketLevel;
use crate::usage::record::LogEntry;
use crate::usage::record::Stamp;
use crate::usage::record::slots;

fn decode_all(bytes: &[u8]) {
    // Only that none of them panics.
    drop(decode_group(bytes));
    drop(decode_hold(bytes));
    drop(decode_answer(bytes));
    drop(decode_header(bytes));
    drop(decode_row(bytes, 0, bytes));
    drop(decode_row(&format::encode_id(&counter_id(1)), 0, bytes));
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in vec(any::<u8>(), 0..300)) {
        decode_all(&bytes);
        let marked: Vec<u8> = std::iter::once(1).chain(bytes).collect();
        decode_all(&marked);
    }

    #[test]
    fn a_damaged_group_is_read_or_refused(at in any::<u16>(), bit in 0_u8..8, keys in 1_u64..5) {
        let records: Vec<CounterRecord> = (0..keys).map(|key| record(key, ActorId(0), key)).collect();
        let mut written = format::encode_group(&records, &[hold(1, 1)]);
        let place = usize::from(at) % written.len();
        written[place] ^= 1 << bit;
        decode_all(&written);
    }

    #[test]
    fn what_is_written_is_read(keys in vec(any::<u64>(), 0..5), holds in vec(any::<u128>(), 0..3)) {
        let records: Vec<CounterRecord> = keys.iter().map(|key| record(*key, ActorId(3), *key)).collect();
        let holds: Vec<HoldRecord> = holds.into_iter().map(|key| hold(key, 2)).collect();
        let group = decode_group(&format::encode_group(&records, &holds));
        let group = group.expect("a group");
        prop_assert_eq!((&group.records, &group.holds), (&records, &holds));
        for record in records {
            let id = format::encode_id(&record.id);
            let row = format::encode_row(record.clone());
            prop_assert_eq!(decode_row(&id, row.dead_at, &row.body).expect("a row"), record);
        }
        for hold in holds {
            prop_assert_eq!(decode_hold(&format::encode_hold(&hold)).expect("a hold"), hold);
        }
    }

    #[test]
    fn a_value_cut_short_or_followed_by_more_is_refused(cut in any::<u16>(), more in any::<u8>()) {
        let written = format::encode_answer(&answer(1));
        prop_assert_eq!(decode_answer(&written), Ok(answer(1)));
        let cut = usize::from(cut) % written.len();
        prop_assert!(decode_answer(&written[..cut]).is_err());
        let longer: Vec<u8> = written.iter().copied().chain([more]).collect();
        prop_assert!(decode_answer(&longer).is_err());
    }
}

#[test]
fn another_format_is_refused_by_its_number() {
    let mut written = format::encode_hold(&hold(1, 1));
    written[0] = 9;
    let error = decode_hold(&written).expect_err("a refusal").to_string();
    assert!(error.contains("format 9"), "{error}");
}

/// Rows that a version wrote whose windows were another kind of map.
#[test]
fn windows_are_written_as_a_map_in_order() {
    let mut record = record(1, ActorId(3), 7);
    record.set_slot(WindowId(-60), ActorId(3), 2, 1);
    let windows: BTreeMap<WindowId, PNCounter<ActorId>> =
        record.windows.clone().into_iter().collect();
    assert!(windows.len() > 1);
    let (bucket, log) = (record.bucket, record.log.clone());
    let horizons = (record.windows_from, record.log_from);
    let body = (record.epoch, windows, bucket, log, horizons);
    let written = postcard::to_extend(&body, vec![1]).expect("plain data");
    assert_eq!(format::encode_row(record).body, written);
}

#[test]
fn windows_out_of_order_and_twice_are_read_as_one_map() {
    let one = |p| {
        let mut counter = PNCounter::new();
        counter.apply(counter.inc_many(ActorId(0), p));
        counter
    };
    let windows = vec![
        (WindowId(5), one(1)),
        (WindowId(3), one(2)),
        (WindowId(5), one(4)),
    ];
    let empty: BTreeMap<Stamp, LogEntry> = BTreeMap::new();
    let body = (
        1_u64,
        windows,
        None::<BucketLevel>,
        empty,
        None::<u8>,
        None::<u8>,
    );
    let written = postcard::to_extend(&body, vec![1]).expect("plain data");
    let id = format::encode_id(&counter_id(1));
    let read = decode_row(&id, 0, &written).expect("a row");
    let windows: Vec<(i64, u64)> = read
        .windows
        .iter()
        .map(|(window, counter)| (window.0, slots(counter)[0].1))
        .collect();
    assert_eq!(windows, [(3, 2), (5, 4)]);
}

#[test]
fn a_row_that_tells_of_more_windows_than_it_has_is_refused() {
    // Format, epoch 0, and the largest number that can be written.
    let lies = [&[1, 0][..], &[0xff; 9], &[1]].concat();
    assert!(decode_row(&format::encode_id(&counter_id(1)), 0, &lies).is_err());
}
