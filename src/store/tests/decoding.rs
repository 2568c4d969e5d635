//! Every decoder reads what was written, and refuses anything else without a panic.

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
