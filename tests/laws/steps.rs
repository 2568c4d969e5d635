//! Limits and steps to draw traces from.
//!
//! Quotas are mostly small and costs near them, spans mostly short: edges are where things go wrong.

use highwater::domain::calendar::Period;
use highwater::domain::limit::Limit;
use highwater::domain::limit::Rule;
use highwater::domain::name::Key;
use highwater::domain::time::Span;
use proptest::prelude::Just;
use proptest::prelude::Strategy;
use proptest::prelude::any;
use proptest::prop_oneof;
use proptest::strategy::BoxedStrategy;

use crate::oracle::HELD;
use crate::restart::Order;
use crate::scene::T0;
use crate::scene::calendar;
use crate::scene::limit;
use crate::scene::span;

/// One step of a trace.
#[derive(Clone, Debug)]
pub enum Step {
    /// A check; cost 0 looks.
    Take(u64),
    /// A refund.
    Refund(u64),
    /// Time passes: so many thousandths of the rule's own span, and so many nanoseconds.
    Wait(u32, i64),
    /// To the next edge of an aligned window, and so many nanoseconds.
    Edge(i64),
    /// To the end of the wait that the last refusal told, and so many nanoseconds; then the same check.
    Retry(i64),
    /// To the instant at which the last answer said that all is unused, and so many nanoseconds.
    Reset(i64),
    /// The clock is set back by so many nanoseconds.
    Back(i64),
    /// The quota, and maybe the rate of a bucket, are changed.
    Amounts(u64, Option<u64>),
    /// Dead counters are dropped.
    Sweep,
    /// The process is started again from what it wrote, merged in this order.
    Restart(Order),
}

fn spans() -> impl Strategy<Value = Span> {
    prop_oneof![
        (1_i64..50).prop_map(span),
        (1_i64..5_000_000_000).prop_map(span),
        (1_u64..200).prop_map(Span::from_seconds),
        prop_oneof![Just(3_600_u64), Just(86_400), Just(259_200)].prop_map(Span::from_seconds),
    ]
}

fn amounts() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 1_u64..12, 2 => 12_u64..2_000, 1 => 1_u64..(1 << 53)]
}

/// Limits with `rule`, some of them with one of the flags that let calls pass.
pub fn flags(rule: BoxedStrategy<Rule>) -> BoxedStrategy<Limit> {
    let flags = prop_oneof![
        6 => Just(0_u8),
        1 => Just(1_u8),
        1 => Just(2_u8),
        1 => Just(3_u8),
        1 => Just(4_u8),
    ];
    (rule, flags)
        .prop_map(|(rule, flag)| {
            let mut limit = limit(rule);
            match flag {
                1 => limit.overdraft = true,
                2 => limit.enforce = false,
                3 => limit.unlimited = true,
                4 => {
                    limit
                        .always_allow
                        .insert(Key::new("user-1").expect("a key"));
                }
                _ => {}
            }
            limit
        })
        .boxed()
}

/// Steps that all traces have. Costs are drawn near the quota that `rule` has.
fn common() -> BoxedStrategy<Step> {
    let near = -1_i64..=1;
    prop_oneof![
        12 => (0_u64..14).prop_map(Step::Take),
        2 => amounts().prop_map(Step::Take),
        4 => (0_u32..400, 0_i64..3).prop_map(|(part, nanos)| Step::Wait(part, nanos)),
        2 => (0_u32..3_000, 0_i64..3).prop_map(|(part, nanos)| Step::Wait(part, nanos)),
        2 => near.clone().prop_map(Step::Edge),
        4 => near.clone().prop_map(Step::Retry),
        1 => near.prop_map(Step::Reset),
        2 => (1_u64..9).prop_map(Step::Refund),
        1 => amounts().prop_map(|quota| Step::Amounts(quota, None)),
    ]
    .boxed()
}

/// Steps of traces in which the clock is set back.
pub fn with_back_steps() -> BoxedStrategy<Step> {
    let hour = i64::try_from(HELD).expect("an hour");
    prop_oneof![
        12 => common(),
        1 => (amounts(), amounts()).prop_map(|(quota, rate)| Step::Amounts(quota, Some(rate))),
        1 => (1_i64..1_000).prop_map(Step::Back),
        1 => (1_i64..=hour).prop_map(Step::Back),
        1 => (hour - 1..=hour + 1).prop_map(Step::Back),
        1 => (hour..hour * 60).prop_map(Step::Back),
    ]
    .boxed()
}

/// Steps of traces in which counters are swept and processes started again.
pub fn with_restarts() -> BoxedStrategy<Step> {
    prop_oneof![
        12 => common(),
        1 => Just(Step::Sweep),
        2 => any::<Order>().prop_map(Step::Restart),
    ]
    .boxed()
}

/// Instants to begin at.
pub fn starts() -> impl Strategy<Value = i64> {
    prop_oneof![
        4 => (0_i64..1_000_000_000_000).prop_map(|n| T0 + n),
        1 => -1_000_000_000_000_i64..1_000_000_000_000,
    ]
}

/// Rules of a windowed kind.
pub fn windows(make: fn(u64, Span) -> Rule) -> BoxedStrategy<Rule> {
    let quotas = prop_oneof![1 => Just(0_u64), 20 => amounts()];
    (quotas, spans())
        .prop_map(move |(quota, window)| make(quota, window))
        .boxed()
}

/// The catalogue refuses buckets that take longer to refill: ten years.
const REFILL_MAX: u128 = 315_576_000_000_000_000;

/// Rules of a bucket.
pub fn buckets(make: fn(u64, u64, Span) -> Rule) -> BoxedStrategy<Rule> {
    (amounts(), amounts(), spans())
        .prop_map(|(capacity, rate, per)| {
            let slowest = u128::from(capacity) * u128::from(per.as_nanos()) / REFILL_MAX + 1;
            (
                capacity,
                rate.max(u64::try_from(slowest).expect("far below 2^64")),
                per,
            )
        })
        .prop_map(move |(capacity, rate, per)| make(capacity, rate, per))
        .boxed()
}

/// Calendar rules.
pub fn calendars() -> BoxedStrategy<Rule> {
    let zones = prop_oneof![
        Just("UTC"),
        Just("America/New_York"),
        Just("Asia/Kolkata"),
        Just("Pacific/Kiritimati"),
        Just("America/Santiago"),
    ];
    let periods = prop_oneof![
        Just(Period::Hour),
        Just(Period::Day),
        Just(Period::Week),
        Just(Period::Month),
        Just(Period::Quarter),
        Just(Period::Year),
    ];
    (amounts(), periods, zones)
        .prop_map(|(quota, period, zone)| calendar(quota, period, zone))
        .boxed()
}
