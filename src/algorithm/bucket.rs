//! Token bucket and leaky bucket: the same state seen from two sides.
//!
//! The state is what was *drawn* and has not come back yet, in units times the nanoseconds of `per`, so
//! that a refill of `rate` units per `per` is exactly `rate` per nanosecond and nothing is ever rounded:
//!
//! - drawn(now) = max(0, drawn − elapsed·rate)
//! - admit ⇔ drawn + asked·per ≤ capacity·per
//! - remaining = ⌊(capacity·per − drawn)/per⌋; retry = ⌈(drawn + asked·per − capacity·per)/rate⌉;
//!   reset (token bucket full, leaky bucket empty) = ⌈drawn/rate⌉
//! - a leaky bucket is a queue served at a constant rate: a unit waits drawn/rate before it is served.
//!
//! This is GCRA (ITU-T I.371) with time scaled by the rate: drawn = X − t·rate. Keeping what was drawn
//! rather than what is left means that a changed capacity keeps the use.

use serde::Deserialize;
use serde::Serialize;

use crate::algorithm::Admission;
use crate::algorithm::Standing;
use crate::algorithm::rebased;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;

/// A bucket's amounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flow {
    /// Most units that can be drawn, not zero.
    pub capacity: u64,
    /// Units that come back per `per`, not zero.
    pub rate: u64,
    /// Not zero.
    pub per: Span,
}

impl Flow {
    fn per(&self) -> u128 {
        u128::from(self.per.as_nanos().max(1))
    }

    fn rate(&self) -> u128 {
        u128::from(self.rate.max(1))
    }

    fn full(&self) -> u128 {
        u128::from(self.capacity).saturating_mul(self.per())
    }

    /// The time in which a whole capacity comes back.
    pub fn time_to_refill(&self) -> Span {
        Span::from_nanos_saturating(self.full().div_ceil(self.rate()))
    }
}

/// What was drawn, and when that was true.
///
/// Packed to words of 8 bytes: the alignment of a 128-bit integer would cost every counter 16 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[repr(Rust, packed(8))]
pub struct Level {
    /// Units drawn times nanoseconds of `per`.
    pub drawn: u128,
    /// When.
    pub at: Timestamp,
}

impl Level {
    /// The level at `now`; a clock that ran back earns nothing and costs nothing.
    #[must_use]
    pub fn at(self, flow: &Flow, now: Timestamp) -> Self {
        let at = rebased(self.at, now);
        let earned = u128::from(now.since(at).as_nanos()).saturating_mul(flow.rate());
        Self {
            drawn: self.drawn.saturating_sub(earned),
            at: at.max(now),
        }
    }

    /// May `asked` units pass? The level must be that of `now`.
    pub fn admission(&self, flow: &Flow, asked: u64) -> Admission {
        if asked > flow.capacity {
            return Admission::Never;
        }
        let wanted = self.drawn.saturating_add(u128::from(asked) * flow.per());
        match wanted.checked_sub(flow.full()) {
            None | Some(0) => Admission::Pass,
            Some(missing) => Admission::Wait {
                retry_after: Span::from_nanos_saturating(missing.div_ceil(flow.rate())),
            },
        }
    }

    /// How the bucket stands. The level must be that of `now`.
    pub fn standing(&self, flow: &Flow) -> Standing {
        let left = flow.full().saturating_sub(self.drawn) / flow.per();
        let remaining = u64::try_from(left).unwrap_or(u64::MAX);
        Standing {
            used: flow.capacity.saturating_sub(remaining),
            remaining,
            reset_after: self.wait(flow),
        }
    }

    /// The time until all that was drawn has come back: how long a leaky bucket's next unit waits.
    pub fn wait(&self, flow: &Flow) -> Span {
        Span::from_nanos_saturating(self.drawn.div_ceil(flow.rate()))
    }

    /// Draws `units`. The level must be that of `now`.
    pub fn draw(&mut self, flow: &Flow, units: u64) {
        self.drawn = self.drawn.saturating_add(u128::from(units) * flow.per());
    }

    /// Puts up to `units` back; returns how many whole units were.
    pub fn put_back(&mut self, flow: &Flow, units: u64) -> u64 {
        let drawn_units = u64::try_from(self.drawn.div_ceil(flow.per())).unwrap_or(u64::MAX);
        let units = units.min(drawn_units);
        self.drawn = self.drawn.saturating_sub(u128::from(units) * flow.per());
        units
    }
}
