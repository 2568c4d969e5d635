//! The bounds of the leader's clock against a clock that keeps to its promises, and against any numbers.

use proptest::prelude::ProptestConfig;
use proptest::prelude::any;
use proptest::prop_assert;
use proptest::prop_assert_eq;
use proptest::proptest;

use super::*;

fn stamp(term: u64, log_ms: i64, echo_ms: Option<u64>) -> LogStamp {
    LogStamp {
        lease: None,
        term,
        log_time: Timestamp::from_unix_ms(log_ms),
        echo: echo_ms.map(Span::from_ms),
    }
}

/// Log time of a leader whose clock is off by `ppm` against the boot clock.
fn true_log(boot_nanos: u64, offset: i64, ppm: i64) -> i64 {
    let boot = i128::from(boot_nanos);
    let nanos = boot + boot * i128::from(ppm) / 1_000_000 + i128::from(offset);
    i64::try_from(nanos).expect("a small time")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn log_time_is_where_the_bounds_say(
        offset in -1_000_000_000_000_i64..1_000_000_000_000,
        ppm in -699_i64..=699,
        talks in proptest::collection::vec(
            (0_u64..20_000_000_000, 0_u64..300_000_000, 0_u64..300_000_000, any::<bool>()), 1..20),
        ahead in 0_u64..4_000_000_000_000,
    ) {
        let mut exchange = Exchange::new();
        let mut boot = 1_000_000_000_u64;
        for (pause, there, back, is_push) in talks {
            let sent = boot + pause;
            let read = sent + there;
            boot = read + back;
            exchange.heard(
                &LogStamp {
                    lease: None,
                    term: 3,
                    log_time: Timestamp::from_nanos(true_log(read, offset, ppm)),
                    echo: (!is_push).then_some(Span::from_nanos(sent)),
                },
                Span::from_nanos(boot),
            );
            let Some(time) = exchange.log_time(Span::from_nanos(boot)) else { continue };
            let log = true_log(boot, offset, ppm);
            prop_assert!(time.earliest.as_nanos() <= log && log <= time.latest.as_nanos());
        }
        let Some(time) = exchange.log_time(Span::from_nanos(boot)) else { return Ok(()) };
        let mark = time.latest.plus(Span::from_nanos(ahead));
        let (Some(after), Some(before)) = (exchange.not_after(mark), exchange.not_before(mark)) else {
            return Err(proptest::test_runner::TestCaseError::fail("bounds without an answer"));
        };
        prop_assert!(after <= before, "{after:?} {before:?}");
        if after.as_nanos() > boot {
            prop_assert!(true_log(after.as_nanos() - 1, offset, ppm) < mark.as_nanos());
        }
        prop_assert!(true_log(before.as_nanos(), offset, ppm) >= mark.as_nanos());
        let later = exchange.log_time(before).expect("bounds");
        prop_assert!(later.earliest >= mark);
    }

    #[test]
    fn no_number_panics(talks in proptest::collection::vec(
        (any::<u64>(), any::<i64>(), any::<Option<u64>>(), any::<u64>(), any::<i64>()), 0..8)) {
        let mut exchange = Exchange::new();
        for (term, log, echo, boot, mark) in talks {
            let boot = Span::from_nanos(boot);
            let stamp = LogStamp {
                lease: None,
                term: term % 3,
                log_time: Timestamp::from_nanos(log),
                echo: echo.map(Span::from_nanos),
            };
            let slowest_refill = Span::from_nanos(term);
            exchange.pulse(&PulseAnswer { stamp, slowest_refill, restarting: false }, boot);
            exchange.refilled(Span::from_nanos(term));
            let mark = Timestamp::from_nanos(mark);
            let _ = (exchange.not_after(mark), exchange.not_before(mark), exchange.log_time(boot));
            prop_assert!(exchange.max_wait() <= Span::from_seconds(31));
            prop_assert_eq!(exchange.max_wait(), exchange.refill_time().plus(exchange.slowest_refill()).plus(WAIT_MARGIN));
        }
    }
}

#[test]
fn every_exchange_narrows_the_gap_between_two_windows() {
    let mut exchange = Exchange::new();
    exchange.heard(&stamp(1, 10_100, Some(1_000)), Span::from_ms(1_300));
    let end = Timestamp::from_unix_ms(60_000);
    let gap = |exchange: &Exchange| {
        let before = exchange.not_before(end).expect("bounds");
        before.minus(exchange.not_after(end).expect("bounds"))
    };
    // A round trip of 300 ms, and 50 s of drift to both sides.
    assert!((300..380).contains(&gap(&exchange).as_ms_ceil()));
    let before = exchange.revision();
    exchange.heard(&stamp(1, 59_000, Some(49_980)), Span::from_ms(50_020));
    assert!((30..45).contains(&gap(&exchange).as_ms_ceil()));
    assert_ne!(before, exchange.revision());
}

#[test]
fn a_deposed_leader_moves_no_bound_and_a_push_takes_no_term_over() {
    let mut exchange = Exchange::new();
    exchange.heard(&stamp(5, 10_000, Some(900)), Span::from_ms(1_000));
    let known = exchange.log_time(Span::from_ms(2_000));
    exchange.heard(&stamp(4, 90_000, Some(1_900)), Span::from_ms(2_000));
    exchange.heard(&stamp(6, 90_000, None), Span::from_ms(2_000));
    assert_eq!(exchange.log_time(Span::from_ms(2_000)), known);
    assert_eq!(exchange.term(), Some(5));
    exchange.heard(&stamp(6, 11_500, Some(2_000)), Span::from_ms(2_100));
    assert_eq!(exchange.term(), Some(6));
    let time = exchange.log_time(Span::from_ms(2_100)).expect("bounds");
    assert_eq!(time.earliest, Timestamp::from_unix_ms(11_500));
    // The round trip, and what the two clocks may have drifted apart in it.
    let drift = Span::from_nanos(70_000);
    assert_eq!(time.latest, Timestamp::from_unix_ms(11_600).plus(drift));
}

#[test]
fn a_refill_is_estimated_with_two_deviations() {
    let mut exchange = Exchange::new();
    assert_eq!(exchange.refill_time(), Span::from_ms(250));
    for _ in 0..60 {
        exchange.refilled(Span::from_ms(80));
        exchange.refilled(Span::from_ms(120));
    }
    let refill = exchange.refill_time();
    assert!(
        refill >= Span::from_ms(130) && refill <= Span::from_ms(150),
        "{refill}"
    );
    exchange.pulse(
        &PulseAnswer {
            stamp: stamp(1, 0, Some(0)),
            slowest_refill: Span::from_ms(300),
            restarting: true,
        },
        Span::from_ms(1),
    );
    assert_eq!(exchange.max_wait(), refill.plus(Span::from_ms(350)));
    assert!(exchange.is_restarting());
}

/// Found by the law above: a leader that read its clock when it was asked, and drifts ahead.
#[test]
fn a_leader_may_drift_while_its_answer_travels() {
    let (sent, received) = (1_000_000_000_u64, 1_000_003_691_u64);
    let mut exchange = Exchange::new();
    exchange.heard(
        &LogStamp {
            lease: None,
            term: 3,
            log_time: Timestamp::from_nanos(true_log(sent, 0, 271)),
            echo: Some(Span::from_nanos(sent)),
        },
        Span::from_nanos(received),
    );
    let time = exchange
        .log_time(Span::from_nanos(received))
        .expect("bounds");
    let log = true_log(received, 0, 271);
    assert!(time.earliest.as_nanos() <= log && log <= time.latest.as_nanos());
}
