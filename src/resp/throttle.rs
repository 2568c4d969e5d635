//! `CL.THROTTLE` as redis-cell answers it: the generic cell rate algorithm, with its amounts in every call.
//!
//! The state is what redis-cell keeps, the time until all has come back, written as a token bucket whose units are
//! nanoseconds: capacity τ = T·(max_burst + 1), cost T·quantity, and one unit earned per nanosecond, where T is the
//! period divided by the count. That state has no amounts in it, so a key keeps its use when a caller changes them,
//! as it does there. Pure.

use thiserror::Error;

use crate::domain::limit::Limit;
use crate::domain::name::CL_THROTTLE;
use crate::domain::time::NANOS_PER_MS;
use crate::domain::time::Span;
use crate::resp::parse;

/// Nanoseconds of a second.
const SECOND: i64 = 1_000_000_000;
/// The longest time in which a burst comes back: ten years, as of every bucket.
const TOLERANCE_MAX: i64 = 3_652 * 86_400 * SECOND;
/// redis-cell's word on the wrong number of words.
const USAGE: &str = "Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]";

/// What a call asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Throttle {
    /// Most units at once: the burst and one.
    pub limit: i64,
    /// Units per period.
    pub count: i64,
    /// The period in seconds.
    pub period: i64,
    /// Units asked for; 0 looks.
    pub quantity: i64,
    /// Nanoseconds in which a unit comes back.
    interval: i64,
    /// Nanoseconds in which all units come back.
    tolerance: i64,
}

/// Why a call cannot be answered; in redis-cell's words where it has some.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("Cell error: {0}")]
pub struct CellError(String);

fn refuse<T>(message: impl Into<String>) -> Result<T, CellError> {
    Err(CellError(message.into()))
}

impl Throttle {
    /// Reads the words after the command's name: key, burst, count, period and perhaps quantity.
    ///
    /// # Errors
    /// When there are too few or too many, or they are not such numbers.
    pub fn read<W: AsRef<[u8]>>(words: &[W]) -> Result<Self, CellError> {
        if !(4..=5).contains(&words.len()) {
            return refuse(USAGE);
        }
        let number = |at: usize| match words.get(at).map(AsRef::as_ref) {
            None => Ok(1),
            Some(text) => parse::integer(text).map_or_else(
                || {
                    let text = String::from_utf8_lossy(text);
                    let text: String = text.chars().take(64).collect();
                    refuse(format!("Couldn't parse as integer: {text}"))
                },
                Ok,
            ),
        };
        let (burst, count, period, quantity) = (number(1)?, number(2)?, number(3)?, number(4)?);
        if burst < 0 || quantity < 0 {
            return refuse("max_burst and quantity must not be negative");
        }
        if count <= 0 || period <= 0 {
            return refuse("Zero rates are not supported");
        }
        let nanos = i128::from(period) * i128::from(SECOND);
        let interval = i64::try_from(nanos / i128::from(count)).unwrap_or(i64::MAX);
        if interval == 0 {
            return refuse("Zero rates are not supported");
        }
        let limit = burst.saturating_add(1);
        let tolerance = i128::from(interval) * i128::from(limit);
        match i64::try_from(tolerance) {
            Ok(tolerance) if tolerance <= TOLERANCE_MAX => Ok(Self {
                limit,
                count,
                period,
                quantity,
                interval,
                tolerance,
            }),
            _ => refuse("the burst takes more than 10 years to come back"),
        }
    }

    /// The limit that the call is counted under: its units are nanoseconds.
    pub fn counted(&self) -> Limit {
        let capacity = self.tolerance.unsigned_abs();
        Limit::bucket(CL_THROTTLE, capacity, 1, Span::from_nanos(1))
    }

    /// Nanoseconds asked for.
    pub fn cost(&self) -> u64 {
        let interval = self.interval.unsigned_abs();
        interval.saturating_mul(self.quantity.unsigned_abs())
    }

    /// The limit as its caller thinks of it, for logs.
    pub fn told(&self) -> Limit {
        let per = Span::from_seconds(self.period.unsigned_abs());
        let (limit, count) = (self.limit.unsigned_abs(), self.count.unsigned_abs());
        Limit::bucket(CL_THROTTLE, limit, count, per)
    }

    /// The five numbers of the answer when all comes back after `full_after`: whether the call is limited, the
    /// limit, what is left, when to come back (-1: at once, or never), and when all has come back; both in seconds.
    pub fn answer(&self, allowed: bool, full_after: Span) -> [i64; 5] {
        let full = i64::try_from(full_after.as_nanos()).unwrap_or(i64::MAX);
        // A look asks for nothing, which only a limit that has become smaller can refuse.
        let allowed = if self.quantity == 0 {
            full <= self.tolerance
        } else {
            allowed
        };
        let left = self.tolerance.saturating_sub(full);
        let remaining = if left > -self.interval {
            left / self.interval
        } else {
            0
        };
        let cost = i64::try_from(self.cost()).unwrap_or(i64::MAX);
        let retry = if allowed || cost > self.tolerance {
            -1
        } else {
            seconds(full.saturating_add(cost).saturating_sub(self.tolerance))
        };
        [
            i64::from(!allowed),
            self.limit,
            remaining,
            retry,
            seconds(full),
        ]
    }
}

/// Whole seconds, and one more when a millisecond or more is left.
fn seconds(nanos: i64) -> i64 {
    let ms = i64::try_from(NANOS_PER_MS).unwrap_or(i64::MAX);
    nanos / SECOND + i64::from(nanos % SECOND >= ms)
}

#[cfg(test)]
mod tests;
