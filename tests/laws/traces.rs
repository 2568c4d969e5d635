//! Random traces of every algorithm through the ledger, each answer compared with the algorithm's oracle.
//!
//! Compared are the decision, its reason, `used`, `remaining`, the start of the window, the delay of a
//! leaky bucket, and the two waits: after `retry_after` the same cost must pass and one nanosecond earlier
//! it must not; after `reset_after` nothing is in use and one nanosecond earlier something is. The waits
//! are tried on copies of the oracle, and the traces themselves go to those instants too.
//!
//! There are two kinds of traces, since a counter that was swept, or a process that was started again,
//! has forgotten when it was last looked at: in one time steps back and a bucket's rate changes, in the
//! other there are sweeps and restarts.

use highwater::domain::decision::Decision;
use highwater::domain::decision::Reason;
use highwater::domain::limit::Limit;
use highwater::domain::limit::Rule;
use highwater::domain::time::Span;
use highwater::domain::time::Timestamp;
use highwater::ledger::Ledger;
use highwater::ledger::check::ItemOutcome;
use highwater::usage::record::CounterRecord;
use num_bigint::BigInt;
use num_rational::BigRational;
use proptest::collection::vec;
use proptest::strategy::BoxedStrategy;
use proptest::test_runner::TestRunner;

use crate::oracle::Bucket;
use crate::oracle::CalendarWindow;
use crate::oracle::FixedWindow;
use crate::oracle::Oracle;
use crate::oracle::SlidingLog;
use crate::oracle::SlidingWindow;
use crate::oracle::begun;
use crate::oracle::whole;
use crate::restart::restore;
use crate::scene::Desk;
use crate::scene::at;
use crate::scene::bucket;
use crate::scene::config;
use crate::scene::drain;
use crate::scene::fixed;
use crate::scene::leaky;
use crate::scene::ledger;
use crate::scene::log;
use crate::scene::sliding;
use crate::steps::Step;
use crate::steps::buckets;
use crate::steps::calendars;
use crate::steps::flags;
use crate::steps::starts;
use crate::steps::windows;
use crate::steps::with_back_steps;
use crate::steps::with_restarts;

/// A trace under way.
struct Trace<O> {
    desk: Desk,
    ledger: Ledger,
    oracle: O,
    /// Whether the ledger has a counter, so that what the oracle saw is remembered.
    exists: bool,
    now: i64,
    refused: Option<(u64, Span)>,
    reset_after: Span,
    start: u32,
    written: Vec<CounterRecord>,
}

/// The span in which a rule moves.
fn scale(rule: &Rule) -> i64 {
    let nanos = match *rule {
        Rule::FixedWindow { window, .. }
        | Rule::SlidingWindow { window, .. }
        | Rule::SlidingLog { window, .. } => window.as_nanos(),
        Rule::TokenBucket {
            capacity,
            refill: rate,
            per,
        }
        | Rule::LeakyBucket {
            capacity,
            drain: rate,
            per,
        } => {
            let time = u128::from(per.as_nanos()) * u128::from(capacity) / u128::from(rate);
            u64::try_from(time).unwrap_or(u64::MAX)
        }
        Rule::CalendarWindow { ref calendar, .. } => calendar.longest().as_nanos() / 2,
        Rule::Concurrency { .. } => 0,
    };
    i64::try_from(nanos).unwrap_or(i64::MAX).clamp(1, 1 << 50)
}

fn is_bucket(rule: &Rule) -> bool {
    matches!(rule, Rule::TokenBucket { .. } | Rule::LeakyBucket { .. })
}

impl<O: Oracle> Trace<O> {
    fn new(limit: Limit, oracle: O, now: i64) -> Self {
        Self {
            desk: Desk::of(limit),
            ledger: ledger(),
            oracle,
            exists: false,
            now,
            refused: None,
            reset_after: Span::ZERO,
            start: 1,
            written: Vec::new(),
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Take(cost) => self.take(cost),
            Step::Refund(units) => self.refund(units),
            Step::Wait(thousandths, nanos) => {
                let part =
                    i128::from(scale(&self.desk.limit.rule)) * i128::from(thousandths) / 1000;
                self.pass(i64::try_from(part).expect("a scale is short") + nanos);
            }
            Step::Edge(nanos) => {
                let scale = scale(&self.desk.limit.rule);
                self.pass(scale - self.now.rem_euclid(scale) + nanos);
            }
            Step::Retry(nanos) => {
                if let Some((cost, wait)) = self.refused {
                    self.pass(
                        i64::try_from(wait.as_nanos())
                            .unwrap_or(i64::MAX)
                            .saturating_add(nanos),
                    );
                    self.take(cost);
                }
            }
            Step::Reset(nanos) => {
                let wait = i64::try_from(self.reset_after.as_nanos()).unwrap_or(i64::MAX);
                self.pass(wait.saturating_add(nanos));
            }
            Step::Back(nanos) => self.now -= nanos,
            Step::Amounts(quota, rate) => self.set_amounts(quota, rate),
            Step::Sweep => {
                // A process writes many times before the grace of a dead counter is over.
                self.written.extend(drain(&self.ledger));
                self.ledger.sweep(at(self.now), 1 << 18);
            }
            Step::Restart(order) => {
                self.written.extend(drain(&self.ledger));
                self.start += 1;
                self.ledger = restore(&self.written, order, self.start);
            }
        }
    }

    /// Lets `nanos` pass, at most three years at once so that a trace stays inside the calendar.
    fn pass(&mut self, nanos: i64) {
        self.now += nanos.clamp(0, 100_000_000_000_000_000);
    }

    fn set_amounts(&mut self, new_quota: u64, new_rate: Option<u64>) {
        match &mut self.desk.limit.rule {
            Rule::FixedWindow { quota, .. }
            | Rule::CalendarWindow { quota, .. }
            | Rule::SlidingWindow { quota, .. }
            | Rule::SlidingLog { quota, .. } => *quota = new_quota,
            Rule::TokenBucket {
                capacity,
                refill: rate,
                ..
            }
            | Rule::LeakyBucket {
                capacity,
                drain: rate,
                ..
            } => {
                *capacity = new_quota.max(1);
                *rate = new_rate.unwrap_or(*rate);
                // What was earned so far was earned at the rate that the next access finds.
                self.oracle.set_rate(*rate);
            }
            Rule::Concurrency { .. } => {}
        }
    }

    fn refund(&mut self, units: u64) {
        let given = self.desk.refund(&self.ledger, at(self.now), units);
        if self.exists {
            self.oracle.observe(self.now.into());
            assert_eq!(given, self.oracle.refund(units), "refunded at {}", self.now);
        } else {
            assert_eq!(given, 0, "refunded without a counter");
        }
    }

    fn take(&mut self, cost: u64) {
        let limit = self.desk.limit.clone();
        let quota = limit.rule.quota();
        let told = self.desk.take(&self.ledger, at(self.now), cost);
        let mut oracle = self.oracle.clone();
        oracle.observe(self.now.into());
        let asked = if cost == 0 || limit.overdraft {
            1
        } else {
            cost
        };
        let before = oracle.in_use();
        let passes = before.clone() + whole(asked) <= whole(quota);
        self.compare_decision(&told, &oracle, asked, passes);
        self.compare_delay(&told, &before);
        if cost > 0 && told.decision == Decision::Allow {
            // A bucket's level tells what enforcement would do: a call that it would have refused is not drawn.
            if passes || !is_bucket(&limit.rule) || told.degraded {
                oracle.charge(self.now.into(), cost);
            }
            self.exists = true;
        }
        self.compare_standing(&told, &oracle);
        self.refused = told.retry_after.map(|wait| (cost, wait));
        self.reset_after = told.standing.reset_after;
        if self.exists {
            self.oracle = oracle;
        }
    }

    fn compare_decision(&self, told: &ItemOutcome, oracle: &O, asked: u64, passes: bool) {
        let limit = &self.desk.limit;
        let quota = limit.rule.quota();
        let refused = !passes && !limit.never_refuses(&self.desk.key);
        let decision = if refused && limit.enforce {
            Decision::Deny
        } else {
            Decision::Allow
        };
        assert_eq!(told.decision, decision, "asked {asked} at {}", self.now);
        assert_eq!(told.would_deny, refused && !limit.enforce);
        assert!(!told.degraded);
        if decision == Decision::Allow {
            assert_eq!((told.reason, told.retry_after), (None, None));
            return;
        }
        if asked > quota {
            assert_eq!(told.reason, Some(Reason::CostExceedsQuota));
            assert_eq!(told.retry_after, None);
            return;
        }
        assert_eq!(told.reason, Some(Reason::QuotaExceeded));
        if oracle.knows_the_future() {
            return;
        }
        let wait = told.retry_after.expect("waiting helps");
        let passes_after =
            |wait: i128| self.after(oracle, wait).in_use() + whole(asked) <= whole(quota);
        self.compare_wait(wait, "passes", passes_after);
    }

    /// A copy of `oracle`, so many nanoseconds later.
    fn after(&self, oracle: &O, wait: i128) -> O {
        let mut later = oracle.clone();
        later.observe(i128::from(self.now) + wait);
        later
    }

    /// `wait` must be the shortest one after which `holds`. An overdraft can take longer to come back than a
    /// span can tell: then the longest span is told.
    fn compare_wait(&self, wait: Span, what: &str, holds: impl Fn(i128) -> bool) {
        let nanos = i128::from(wait.as_nanos());
        let now = self.now;
        assert!(
            wait == Span::MAX || holds(nanos),
            "{what}: not {nanos} ns after {now}"
        );
        assert!(
            nanos == 0 || !holds(nanos - 1),
            "{what}: before {nanos} ns after {now}"
        );
    }

    fn compare_delay(&self, told: &ItemOutcome, before: &BigRational) {
        let expected = match self.desk.limit.rule {
            Rule::LeakyBucket { drain, per, .. } => {
                let wait = before * BigRational::new(per.as_nanos().into(), drain.into());
                begun(&wait).min(u64::MAX.into())
            }
            _ => BigInt::from(0),
        };
        assert_eq!(
            BigInt::from(told.delay.as_nanos()),
            expected,
            "delay at {}",
            self.now
        );
    }

    fn compare_standing(&self, told: &ItemOutcome, oracle: &O) {
        let rule = &self.desk.limit.rule;
        let quota = rule.quota();
        let in_use = begun(&oracle.in_use());
        let used = if is_bucket(rule) {
            in_use.clone().min(quota.into())
        } else {
            in_use.clone()
        };
        let remaining = (BigInt::from(quota) - in_use).max(0.into());
        assert_eq!(
            BigInt::from(told.standing.used),
            used.min(u64::MAX.into()),
            "used at {}",
            self.now
        );
        assert_eq!(
            BigInt::from(told.standing.remaining),
            remaining,
            "remaining at {}",
            self.now
        );
        let reset = told.standing.reset_after;
        let Some((start, end)) = oracle.window() else {
            let unused_after = |wait: i128| self.after(oracle, wait).in_use() == whole(0);
            self.compare_wait(reset, "unused", unused_after);
            return;
        };
        let now = i128::from(self.now);
        assert_eq!(now + i128::from(reset.as_nanos()), end, "reset at {now}");
        let told_start = told.window_start.map(Timestamp::as_nanos).map(i128::from);
        assert_eq!(told_start, Some(start), "window at {now}");
        if let Some(length) = told.calendar_length {
            assert_eq!(
                i128::from(length.as_nanos()),
                end - start,
                "length at {now}"
            );
        }
    }
}

/// Runs one trace.
fn run<O: Oracle>(limit: &Limit, oracle: O, start: i64, steps: &[Step]) {
    let mut trace = Trace::new(limit.clone(), oracle, start);
    for step in steps {
        trace.step(step);
    }
}

/// Runs one trace against the oracle that its limit asks for.
pub fn run_limit(limit: &Limit, start: i64, steps: &[Step]) {
    match limit.rule {
        Rule::FixedWindow { window, .. } => {
            run(
                limit,
                FixedWindow::new(window.as_nanos().into()),
                start,
                steps,
            );
        }
        Rule::SlidingWindow { window, .. } => {
            run(
                limit,
                SlidingWindow::new(window.as_nanos().into()),
                start,
                steps,
            );
        }
        Rule::SlidingLog { window, .. } => {
            run(
                limit,
                SlidingLog::new(window.as_nanos().into()),
                start,
                steps,
            );
        }
        Rule::TokenBucket {
            refill: rate, per, ..
        }
        | Rule::LeakyBucket {
            drain: rate, per, ..
        } => {
            run(
                limit,
                Bucket::new(rate, per.as_nanos().into()),
                start,
                steps,
            );
        }
        Rule::CalendarWindow { ref calendar, .. } => {
            run(limit, CalendarWindow::new(calendar.clone()), start, steps);
        }
        Rule::Concurrency { .. } => unreachable!("its traces are in `holds`"),
    }
}

fn try_traces(rule: BoxedStrategy<Rule>, steps: BoxedStrategy<Step>, cases: u32) {
    let strategy = (flags(rule), starts(), vec(steps, 1..40));
    TestRunner::new(config(cases))
        .run(&strategy, |(limit, start, steps)| {
            run_limit(&limit, start, &steps);
            Ok(())
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
}

const CASES: u32 = 1_200;

#[test]
fn a_fixed_window_counts_like_its_oracle() {
    try_traces(windows(fixed), with_back_steps(), CASES);
}

#[test]
fn a_fixed_window_is_the_same_after_sweeps_and_restarts() {
    try_traces(windows(fixed), with_restarts(), CASES);
}

#[test]
fn a_calendar_window_counts_like_its_oracle() {
    try_traces(calendars(), with_back_steps(), CASES);
}

#[test]
fn a_calendar_window_is_the_same_after_sweeps_and_restarts() {
    try_traces(calendars(), with_restarts(), CASES);
}

#[test]
fn a_sliding_window_counts_like_its_oracle() {
    try_traces(windows(sliding), with_back_steps(), CASES);
}

#[test]
fn a_sliding_window_is_the_same_after_sweeps_and_restarts() {
    try_traces(windows(sliding), with_restarts(), CASES);
}

#[test]
fn a_sliding_log_counts_like_its_oracle() {
    try_traces(windows(log), with_back_steps(), CASES);
}

#[test]
fn a_sliding_log_is_the_same_after_sweeps_and_restarts() {
    try_traces(windows(log), with_restarts(), CASES);
}

#[test]
fn a_token_bucket_counts_like_its_oracle() {
    try_traces(buckets(bucket), with_back_steps(), CASES);
}

#[test]
fn a_token_bucket_is_the_same_after_sweeps_and_restarts() {
    try_traces(buckets(bucket), with_restarts(), CASES);
}

#[test]
fn a_leaky_bucket_counts_like_its_oracle() {
    try_traces(buckets(leaky), with_back_steps(), CASES);
}

#[test]
fn a_leaky_bucket_is_the_same_after_sweeps_and_restarts() {
    try_traces(buckets(leaky), with_restarts(), CASES);
}
