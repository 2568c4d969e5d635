//! Instants and lengths of time in whole nanoseconds.
//!
//! Decisions take a [`Timestamp`] called `now`; only `region::clock` makes one. All arithmetic saturates:
//! an instant beyond the range stays at its end, an elapsed time below zero is zero (the clamp that
//! `lib.rs` lists as invariant 8).

use std::fmt;

use serde::Deserialize;
use serde::Serialize;

/// Nanoseconds in a millisecond.
pub const NANOS_PER_MS: u64 = 1_000_000;
/// Nanoseconds in a second.
pub const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// An instant: nanoseconds since the Unix epoch, 1677 to 2262.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The Unix epoch.
    pub const EPOCH: Self = Self(0);
    /// The last instant that can be told.
    pub const MAX: Self = Self(i64::MAX);

    /// The instant `nanos` nanoseconds after the Unix epoch.
    pub const fn from_nanos(nanos: i64) -> Self {
        Self(nanos)
    }

    /// The instant `ms` milliseconds after the Unix epoch.
    pub const fn from_unix_ms(ms: i64) -> Self {
        Self(ms.saturating_mul(NANOS_PER_MS as i64))
    }

    /// Nanoseconds since the Unix epoch.
    pub const fn as_nanos(self) -> i64 {
        self.0
    }

    /// Whole milliseconds since the Unix epoch, rounded down.
    pub const fn as_unix_ms(self) -> i64 {
        self.0.div_euclid(NANOS_PER_MS as i64)
    }

    /// Whole seconds since the Unix epoch, rounded up.
    pub const fn as_unix_seconds_ceil(self) -> i64 {
        let nanos_per_second = NANOS_PER_SECOND as i64;
        let whole = self.0.div_euclid(nanos_per_second);
        if self.0.rem_euclid(nanos_per_second) == 0 {
            whole
        } else {
            whole + 1
        }
    }

    /// The time from `earlier` to here; zero when `earlier` is later than this.
    pub const fn since(self, earlier: Self) -> Span {
        let nanos = self.0.saturating_sub(earlier.0);
        if nanos > 0 {
            Span(nanos as u64)
        } else {
            Span::ZERO
        }
    }

    /// This instant moved ahead by `span`, at most to [`Timestamp::MAX`].
    pub const fn plus(self, span: Span) -> Self {
        Self(self.0.saturating_add_unsigned(span.0))
    }

    /// This instant moved back by `span`.
    pub const fn minus(self, span: Span) -> Self {
        Self(self.0.saturating_sub_unsigned(span.0))
    }
}

/// A length of time in nanoseconds, never negative.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Span(u64);

impl Span {
    /// No time at all.
    pub const ZERO: Self = Self(0);
    /// The longest span.
    pub const MAX: Self = Self(u64::MAX);

    /// A span of `nanos` nanoseconds.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// A span of `nanos` nanoseconds, or the longest one when it does not fit.
    pub fn from_nanos_saturating(nanos: u128) -> Self {
        Self(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// A span of `ms` milliseconds.
    pub const fn from_ms(ms: u64) -> Self {
        Self(ms.saturating_mul(NANOS_PER_MS))
    }

    /// A span of `seconds` seconds.
    pub const fn from_seconds(seconds: u64) -> Self {
        Self(seconds.saturating_mul(NANOS_PER_SECOND))
    }

    /// Nanoseconds.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Whole milliseconds, rounded up.
    pub const fn as_ms_ceil(self) -> u64 {
        self.0.div_ceil(NANOS_PER_MS)
    }

    /// Whole seconds, rounded up.
    pub const fn as_seconds_ceil(self) -> u64 {
        self.0.div_ceil(NANOS_PER_SECOND)
    }

    /// Whether this is no time at all.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// The sum of two spans, at most the longest one.
    pub const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// What is left of this span after `other`, at least zero.
    pub const fn minus(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// This span as the standard library's duration.
    pub const fn to_std(self) -> std::time::Duration {
        std::time::Duration::from_nanos(self.0)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&crate::domain::duration::format(*self))
    }
}

/// Names one window of a limit: nanoseconds of its start.
///
/// For aligned windows that is the Unix time of the start; for calendar windows it is the *civil* start
/// read as if it were UTC, so that two regions with different zone databases name the same period alike.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct WindowId(pub i64);

/// One window: its name and its half-open bounds `[start, end)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// The window's name.
    pub id: WindowId,
    /// The first instant inside.
    pub start: Timestamp,
    /// The first instant after.
    pub end: Timestamp,
}

impl Window {
    /// A window that begins at `start` and never ends, named after its start: what a bucket has.
    pub const fn endless(start: Timestamp) -> Self {
        Self {
            id: WindowId(start.0),
            start,
            end: Timestamp::MAX,
        }
    }

    /// Whether this never ends.
    pub const fn is_endless(&self) -> bool {
        self.end.0 == Timestamp::MAX.0
    }

    /// The window of length `length` (not zero) aligned to the Unix epoch that contains `now`.
    pub fn aligned(now: Timestamp, length: Span) -> Self {
        let length_nanos = i64::try_from(length.as_nanos()).unwrap_or(i64::MAX).max(1);
        let start = now
            .as_nanos()
            .saturating_sub(now.as_nanos().rem_euclid(length_nanos));
        Self {
            id: WindowId(start),
            start: Timestamp(start),
            end: Timestamp(start.saturating_add(length_nanos)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elapsed_time_is_never_negative() {
        assert_eq!(
            Timestamp::from_nanos(5).since(Timestamp::from_nanos(9)),
            Span::ZERO
        );
        assert_eq!(
            Timestamp::MAX.since(Timestamp::from_nanos(i64::MIN)),
            Span::from_nanos(i64::MAX as u64)
        );
    }

    #[test]
    fn rounding_is_up_for_spans_and_down_for_milliseconds_of_instants() {
        assert_eq!(Span::from_nanos(500_000).as_ms_ceil(), 1);
        assert_eq!(Span::from_ms(49_400).as_seconds_ceil(), 50);
        assert_eq!(Timestamp::from_nanos(1_999_999).as_unix_ms(), 1);
        assert_eq!(Timestamp::from_nanos(-1).as_unix_ms(), -1);
        assert_eq!(Timestamp::from_unix_ms(1).as_unix_seconds_ceil(), 1);
    }

    #[test]
    fn aligned_windows_are_half_open() {
        let minute = Span::from_seconds(60);
        let edge = Timestamp::from_unix_ms(120_000);
        assert_eq!(Window::aligned(edge, minute).start, edge);
        let before = Window::aligned(Timestamp::from_nanos(edge.as_nanos() - 1), minute);
        assert_eq!(before.end, edge);
        assert_eq!(before.start, Timestamp::from_unix_ms(60_000));
    }
}
