//! The log of refused checks, at a bounded rate.
//!
//! A refusal is worth a line because it tells who was refused what; a flood of them is not, because a client
//! that is refused calls again at once and would fill the disk with its own refusals. So a second has room
//! for a fixed number of lines, and the next line that is written says how many were left out.

use std::fmt;
use std::sync::atomic::AtomicI64;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use crate::domain::time::NANOS_PER_SECOND;
use crate::domain::time::Timestamp;

/// Lines in one second.
pub const LINES_PER_SECOND_MAX: u64 = 10;

/// Decides which events of a stream are let through: at most a fixed number in each second.
///
/// A second is what the callers' `now` says; a step back begins a new one.
#[derive(Debug)]
pub struct RateGate {
    per_second_max: u64,
    second: AtomicI64,
    passed: AtomicU64,
    suppressed: AtomicU64,
}

impl RateGate {
    /// A gate that lets `per_second_max` events through in each second.
    pub const fn new(per_second_max: u64) -> Self {
        Self {
            per_second_max,
            second: AtomicI64::new(i64::MIN),
            passed: AtomicU64::new(0),
            suppressed: AtomicU64::new(0),
        }
    }

    /// Whether the event at `now` passes; if so, how many did not since the last one that did.
    pub fn pass(&self, now: Timestamp) -> Option<u64> {
        let second = now.as_nanos().div_euclid(NANOS_PER_SECOND.cast_signed());
        if self.second.swap(second, Ordering::Relaxed) != second {
            self.passed.store(0, Ordering::Relaxed);
        }
        if self.passed.fetch_add(1, Ordering::Relaxed) < self.per_second_max {
            return Some(self.suppressed.swap(0, Ordering::Relaxed));
        }
        self.suppressed.fetch_add(1, Ordering::Relaxed);
        None
    }
}

/// One refused check, as it is logged.
#[derive(Clone, Copy, Debug)]
pub struct Refusal<'a> {
    /// Whose check.
    pub tenant: &'a str,
    /// The limit that refused.
    pub limit: &'a str,
    /// The key, when the limit has one.
    pub key: Option<&'a str>,
    /// The caller's address as the check gave it.
    pub ip: Option<&'a str>,
    /// The endpoint as the check gave it.
    pub endpoint: Option<&'a str>,
    /// Units in use.
    pub used: u64,
    /// Units there are.
    pub quota: u64,
    /// Why, as in the answer.
    pub reason: &'a str,
}

/// The log of refused checks.
#[derive(Debug)]
pub struct RefusalLog {
    gate: RateGate,
}

impl Default for RefusalLog {
    fn default() -> Self {
        Self {
            gate: RateGate::new(LINES_PER_SECOND_MAX),
        }
    }
}

impl RefusalLog {
    /// Logs one refusal if the rate allows it. `false`: it was left out.
    pub fn log(&self, now: Timestamp, refusal: &Refusal<'_>) -> bool {
        let Some(suppressed) = self.gate.pass(now) else {
            return false;
        };
        tracing::info!(
            target: "highwater::refused",
            tenant = %Quoted(refusal.tenant),
            limit = refusal.limit,
            key = refusal.key.map(Quoted).map(tracing::field::display),
            ip = refusal.ip.map(Quoted).map(tracing::field::display),
            endpoint = refusal.endpoint.map(Quoted).map(tracing::field::display),
            used = refusal.used,
            quota = refusal.quota,
            reason = refusal.reason,
            suppressed,
            "refused"
        );
        true
    }
}

/// A text from a caller, written so that it cannot break out of its line or steer a terminal.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            if character.is_control() {
                write!(f, "{}", character.escape_unicode())?;
            } else {
                write!(f, "{character}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_has_room_for_so_many_and_the_next_tells_how_many_were_left_out() {
        let gate = RateGate::new(3);
        let at = |ms: i64| gate.pass(Timestamp::from_unix_ms(ms));
        assert_eq!([at(0), at(10), at(999)], [Some(0); 3]);
        assert_eq!([at(999), at(999)], [None; 2]);
        assert_eq!(at(1_000), Some(2));
        assert_eq!(at(1_001), Some(0));
    }

    #[test]
    fn a_step_back_does_not_close_the_gate() {
        let gate = RateGate::new(1);
        let at = |ms: i64| gate.pass(Timestamp::from_unix_ms(ms));
        assert_eq!(at(10_000), Some(0));
        assert_eq!(at(5_000), Some(0));
        assert_eq!(at(5_001), None);
    }

    #[test]
    fn control_characters_are_written_out() {
        assert_eq!(
            Quoted("a\u{1b}[31m\nb…").to_string(),
            "a\\u{1b}[31m\\u{a}b…"
        );
    }
}
