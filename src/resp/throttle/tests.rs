//! Against redis-cell's own arithmetic, its own test, and its documented calls.

use super::*;
use crate::algorithm::Admission;
use crate::algorithm::bucket::Flow;
use crate::algorithm::bucket::Level;
use crate::domain::time::Timestamp;

/// redis-cell's own state: the theoretical arrival time.
#[derive(Default)]
struct Cell {
    arrival: i64,
}

impl Cell {
    /// Its arithmetic on nanoseconds, as it stands in its source.
    fn throttle(&mut self, call: &Throttle, now: i64) -> [i64; 5] {
        let increment = call.interval * call.quantity;
        let new = self.arrival.max(now) + increment;
        let diff = now - (new - call.tolerance);
        let limited = diff < 0;
        let mut retry = -1;
        let ttl = if limited {
            if increment <= call.tolerance {
                retry = seconds(-diff);
            }
            self.arrival - now
        } else {
            self.arrival = new;
            new - now
        };
        let next = call.tolerance - ttl;
        let remaining = if next > -call.interval {
            next / call.interval
        } else {
            0
        };
        [
            i64::from(limited),
            call.limit,
            remaining,
            retry,
            seconds(ttl.max(0)),
        ]
    }
}

/// The same call on a bucket, as the ledger keeps one.
fn on_bucket(level: &mut Level, call: &Throttle, now: i64) -> [i64; 5] {
    let flow = Flow {
        capacity: call.tolerance.unsigned_abs(),
        rate: 1,
        per: Span::from_nanos(1),
    };
    *level = level.at(&flow, Timestamp::from_nanos(now));
    let asked = call.cost();
    let allowed = level.admission(&flow, asked.max(1)) == Admission::Pass;
    if allowed {
        level.draw(&flow, asked);
    }
    call.answer(allowed, level.wait(&flow))
}

fn call(words: &[i64]) -> Throttle {
    let mut texts = vec!["key".to_owned()];
    texts.extend(words.iter().map(ToString::to_string));
    Throttle::read(&texts).expect("a call")
}

#[test]
fn the_documented_calls_are_answered_as_documented() {
    let mut level = Level::default();
    let first = call(&[15, 30, 60, 1]);
    assert_eq!(on_bucket(&mut level, &first, 0), [0, 16, 15, -1, 2]);
    let mut level = Level::default();
    let single = call(&[0, 1, 2, 1]);
    assert_eq!(on_bucket(&mut level, &single, 0), [0, 1, 0, -1, 2]);
    assert_eq!(on_bucket(&mut level, &single, 0), [1, 1, 0, 2, 2]);
}

/// redis-cell's own test of its algorithm: burst 4 and 1 per second.
#[test]
fn its_own_sequence_is_reproduced() {
    let mut level = Level::default();
    let start = 1_800_000_000 * SECOND;
    for (number, (ms, quantity, remaining, reset, retry, limited)) in [
        (0, 6, 5, 0, -1, 1),
        (0, 1, 4, 1, -1, 0),
        (0, 1, 3, 2, -1, 0),
        (0, 1, 2, 3, -1, 0),
        (0, 1, 1, 4, -1, 0),
        (0, 1, 0, 5, -1, 0),
        (0, 1, 0, 5, 1, 1),
        (3_000, 1, 2, 3, -1, 0),
        (3_100, 1, 1, 4, -1, 0),
        (4_000, 1, 1, 4, -1, 0),
        (8_000, 1, 4, 1, -1, 0),
        (9_500, 1, 4, 1, -1, 0),
        (9_500, 0, 4, 1, -1, 0),
        (9_500, 2, 2, 3, -1, 0),
        (9_500, 5, 2, 3, 3, 1),
    ]
    .into_iter()
    .enumerate()
    {
        let now = start + ms * 1_000_000;
        let told = on_bucket(&mut level, &call(&[4, 1, 1, quantity]), now);
        assert_eq!(told, [limited, 5, remaining, retry, reset], "call {number}");
    }
}

#[test]
fn seconds_are_rounded_up_from_a_millisecond_on() {
    assert_eq!(seconds(0), 0);
    assert_eq!(seconds(999_999), 0);
    assert_eq!(seconds(1_000_000), 1);
    assert_eq!(seconds(SECOND), 1);
    assert_eq!(seconds(SECOND + 1_000_000), 2);
}

#[test]
fn what_is_no_call_is_refused_in_its_words() {
    let refused = |words: &[&str]| {
        let error = Throttle::read(words).expect_err("refused");
        error.to_string()
    };
    assert!(refused(&["k", "1", "1"]).starts_with("Cell error: Usage: cl.throttle <key>"));
    assert!(refused(&["k", "1", "1", "1", "1", "1"]).contains("Usage"));
    assert_eq!(
        refused(&["k", "1", "x", "1"]),
        "Cell error: Couldn't parse as integer: x"
    );
    for zero in [
        ["k", "1", "0", "1"],
        ["k", "1", "1", "0"],
        ["k", "1", "-1", "1"],
        ["k", "1", "2000000000", "1"],
    ] {
        assert_eq!(refused(&zero), "Cell error: Zero rates are not supported");
    }
    for bad in [
        ["k", "-1", "1", "1", "1"],
        ["k", "1", "1", "1", "-1"],
        ["k", "9223372036854775807", "1", "1", "1"],
        ["k", "1", "1", "9223372036854775807", "1"],
    ] {
        assert!(Throttle::read(&bad).is_err(), "{bad:?}");
    }
}

mod laws {
    use proptest::collection::vec;
    use proptest::prop_assert_eq;
    use proptest::proptest;

    use super::*;

    proptest! {
        /// Calls with changing amounts on one key are answered as redis-cell answers them.
        #[test]
        fn any_calls_are_answered_as_redis_cell_does(
            calls in vec(
                (0_i64..20, 1_i64..40, 1_i64..10, 0_i64..25, 0_i64..4_000_000_000),
                1..40,
            ),
        ) {
            let mut now = 1_800_000_000 * SECOND;
            let mut cell = Cell { arrival: now };
            let mut level = Level::default();
            for (burst, count, period, quantity, elapsed) in calls {
                now += elapsed;
                let call = call(&[burst, count, period, quantity]);
                // What has come back is gone from both.
                cell.arrival = cell.arrival.max(now);
                prop_assert_eq!(on_bucket(&mut level, &call, now), cell.throttle(&call, now));
            }
        }
    }
}
