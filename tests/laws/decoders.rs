//! Every decoder of `tests/fuzz/targets.rs`, with any bytes, and with samples that were tampered with.

use proptest::collection::vec;
use proptest::prelude::Just;
use proptest::prelude::Strategy;
use proptest::prelude::any;
use proptest::prop_oneof;
use proptest::sample::Index;
use proptest::test_runner::TestRunner;

use crate::scene::config;
use crate::targets::TARGETS;
use crate::targets::by_name;

#[test]
fn every_sample_is_taken_and_every_target_has_a_name_of_its_own() {
    assert_eq!(by_name().len(), TARGETS.len());
    for target in TARGETS {
        let samples = (target.samples)();
        assert!(!samples.is_empty(), "{} has no sample", target.name);
        for sample in samples {
            let shown = String::from_utf8_lossy(&sample).into_owned();
            assert!((target.run)(&sample), "{} refuses {shown}", target.name);
        }
    }
}

#[test]
fn any_bytes_are_read_or_refused() {
    TestRunner::new(config(400))
        .run(&vec(any::<u8>(), 0..300), |bytes| {
            for target in TARGETS {
                (target.run)(&bytes);
            }
            Ok(())
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
}

/// One change to bytes that are taken.
#[derive(Clone, Debug)]
enum Tamper {
    Set(Index, u8),
    Insert(Index, Vec<u8>),
    Remove(Index, usize),
    Repeat(Index, usize, usize),
    Cut(Index),
}

/// Bytes that mean something to some decoder.
fn telling() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        vec(any::<u8>(), 1..4),
        prop_oneof![
            Just("null"),
            Just("-1"),
            Just("0"),
            Just("1e400"),
            Just("9007199254740993"),
            Just("18446744073709551616"),
            Just("\"\""),
            Just("{}"),
            Just("[[[["),
            Just("\u{0}"),
            Just("\\ud800"),
            Just("%"),
            Just(",\"x\":1"),
        ]
        .prop_map(|text| text.as_bytes().to_vec()),
        Just(vec![0xff; 10]),
    ]
}

fn tampers() -> impl Strategy<Value = Tamper> {
    prop_oneof![
        4 => (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Tamper::Set(at, byte)),
        3 => (any::<Index>(), telling()).prop_map(|(at, bytes)| Tamper::Insert(at, bytes)),
        2 => (any::<Index>(), 1_usize..12).prop_map(|(at, length)| Tamper::Remove(at, length)),
        1 => (any::<Index>(), 1_usize..20, 1_usize..40)
            .prop_map(|(at, length, times)| Tamper::Repeat(at, length, times)),
        1 => any::<Index>().prop_map(Tamper::Cut),
    ]
}

fn tampered(mut bytes: Vec<u8>, tampers: &[Tamper]) -> Vec<u8> {
    for tamper in tampers {
        if bytes.is_empty() {
            break;
        }
        let length = bytes.len();
        match tamper {
            Tamper::Set(at, byte) => bytes[at.index(length)] = *byte,
            Tamper::Insert(at, more) => {
                let at = at.index(length);
                bytes.splice(at..at, more.iter().copied());
            }
            Tamper::Remove(at, count) => {
                let at = at.index(length);
                bytes.drain(at..length.min(at + count));
            }
            Tamper::Repeat(at, count, times) => {
                let at = at.index(length);
                let part = bytes[at..length.min(at + count)].repeat(*times);
                bytes.splice(at..at, part);
            }
            Tamper::Cut(at) => bytes.truncate(at.index(length)),
        }
    }
    bytes
}

#[test]
fn samples_that_were_tampered_with_are_read_or_refused() {
    for target in TARGETS {
        let samples = (target.samples)();
        let strategy = (any::<Index>(), vec(tampers(), 1..5));
        TestRunner::new(config(300))
            .run(&strategy, |(which, changes)| {
                let sample = samples[which.index(samples.len())].clone();
                (target.run)(&tampered(sample, &changes));
                Ok(())
            })
            .unwrap_or_else(|failure| panic!("{}: {failure}", target.name));
    }
}
