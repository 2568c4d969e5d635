//! The circuit breaker of one peer: after failures in a row, calls fail at once instead of waiting.
//!
//! ```text
//! closed ── 3 failures in a row ──► open for 10 s ── over ──► one probe ── fails ──► open for 20 s, 40 s … 5 min
//!    ▲                                 │                          │
//!    └──────────── any success ────────┴──────────────────────────┘
//! ```
//!
//! Pure: `now` is the monotonic time of the process, an argument. Never here: which calls pass it by.

use serde::Serialize;
use utoipa::ToSchema;

use crate::domain::time::Span;

/// Failures in a row that open the breaker.
const FAILURES_MAX: u32 = 3;
/// The first pause.
pub const PAUSE_MIN: Span = Span::from_seconds(10);
/// The longest pause.
pub const PAUSE_MAX: Span = Span::from_seconds(300);

/// How a breaker stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BreakerState {
    /// Calls pass.
    Closed,
    /// Calls fail at once.
    Open,
    /// The pause is over: one call may try, or is trying.
    HalfOpen,
}

/// Whether a call may be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It may.
    Passed,
    /// It may, and what becomes of it decides.
    Probe,
    /// It fails at once.
    Refused,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed { failures: u32 },
    Open { until: Span, pause: Span },
    Probing { pause: Span },
}

/// A circuit breaker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breaker(State);

impl Default for Breaker {
    fn default() -> Self {
        Self(State::Closed { failures: 0 })
    }
}

impl Breaker {
    /// Asks for one call. A [`Admission::Probe`] must be followed by [`Breaker::succeeded`],
    /// [`Breaker::failed`] or [`Breaker::abandoned`].
    pub fn admit(&mut self, now: Span) -> Admission {
        match self.0 {
            State::Closed { .. } => Admission::Passed,
            State::Open { until, pause } if now >= until => {
                self.0 = State::Probing { pause };
                Admission::Probe
            }
            State::Open { .. } | State::Probing { .. } => Admission::Refused,
        }
    }

    /// Something came back from the peer.
    pub fn succeeded(&mut self) {
        self.0 = State::Closed { failures: 0 };
    }

    /// A call failed; only the probe's own failure counts while it is out.
    pub fn failed(&mut self, now: Span, admission: Admission) {
        self.0 = match (self.0, admission) {
            (State::Closed { failures }, _) if failures + 1 < FAILURES_MAX => State::Closed {
                failures: failures + 1,
            },
            (State::Closed { .. }, _) => open(now, PAUSE_MIN),
            (State::Probing { pause }, Admission::Probe) => {
                open(now, pause.plus(pause).min(PAUSE_MAX))
            }
            (state @ (State::Open { .. } | State::Probing { .. }), _) => state,
        };
    }

    /// Nobody will know what became of a call.
    pub fn abandoned(&mut self, now: Span, admission: Admission) {
        if let (State::Probing { pause }, Admission::Probe) = (self.0, admission) {
            self.0 = State::Open { until: now, pause };
        }
    }

    /// How it stands.
    pub fn state(&self, now: Span) -> BreakerState {
        match self.0 {
            State::Closed { .. } => BreakerState::Closed,
            State::Open { until, .. } if now < until => BreakerState::Open,
            State::Open { .. } | State::Probing { .. } => BreakerState::HalfOpen,
        }
    }
}

const fn open(now: Span, pause: Span) -> State {
    State::Open {
        until: now.plus(pause),
        pause,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: u64) -> Span {
        Span::from_seconds(seconds)
    }

    fn opened_at(now: Span) -> Breaker {
        let mut breaker = Breaker::default();
        for _ in 0..FAILURES_MAX {
            assert_eq!(breaker.admit(now), Admission::Passed);
            breaker.failed(now, Admission::Passed);
        }
        breaker
    }

    #[test]
    fn three_failures_in_a_row_open_it_and_a_success_between_does_not() {
        let mut breaker = Breaker::default();
        for _ in 0..10 {
            breaker.failed(s(1), Admission::Passed);
            breaker.failed(s(1), Admission::Passed);
            breaker.succeeded();
        }
        assert_eq!(breaker.state(s(1)), BreakerState::Closed);
        let mut breaker = opened_at(s(1));
        assert_eq!(breaker.state(s(1)), BreakerState::Open);
        assert_eq!(breaker.admit(s(10)), Admission::Refused);
    }

    #[test]
    fn one_probe_at_a_time_and_longer_pauses_up_to_five_minutes() {
        let mut breaker = opened_at(s(0));
        let mut now = 0;
        for pause in [10, 20, 40, 80, 160, 300, 300] {
            assert_eq!(
                breaker.admit(s(now + pause - 1)),
                Admission::Refused,
                "{pause}"
            );
            now += pause;
            assert_eq!(breaker.state(s(now)), BreakerState::HalfOpen);
            assert_eq!(breaker.admit(s(now)), Admission::Probe, "{pause}");
            assert_eq!(breaker.admit(s(now)), Admission::Refused);
            breaker.failed(s(now), Admission::Probe);
            assert_eq!(breaker.state(s(now)), BreakerState::Open);
        }
    }

    #[test]
    fn any_success_closes_it_and_the_pause_begins_anew() {
        let mut breaker = opened_at(s(0));
        assert_eq!(breaker.admit(s(10)), Admission::Probe);
        breaker.failed(s(10), Admission::Probe);
        breaker.succeeded();
        assert_eq!(breaker.state(s(10)), BreakerState::Closed);
        assert_eq!(breaker.admit(s(10)), Admission::Passed);
        for _ in 0..FAILURES_MAX {
            breaker.failed(s(11), Admission::Passed);
        }
        assert_eq!(breaker.admit(s(20)), Admission::Refused);
        assert_eq!(breaker.admit(s(21)), Admission::Probe);
    }

    #[test]
    fn an_abandoned_probe_leaves_room_for_another_and_late_failures_change_nothing() {
        let mut breaker = opened_at(s(0));
        breaker.failed(s(9), Admission::Passed);
        assert_eq!(breaker.admit(s(10)), Admission::Probe);
        breaker.failed(s(10), Admission::Passed);
        assert_eq!(breaker.admit(s(10)), Admission::Refused);
        breaker.abandoned(s(11), Admission::Probe);
        assert_eq!(breaker.admit(s(11)), Admission::Probe);
        breaker.failed(s(11), Admission::Probe);
        assert_eq!(breaker.admit(s(30)), Admission::Refused);
        assert_eq!(breaker.admit(s(31)), Admission::Probe);
    }
}
