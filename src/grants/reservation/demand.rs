//! How fast units of a counter are wanted, over four horizons.
//!
//! Each horizon keeps a sum that decays exponentially; the rate is the sum divided by the horizon. What is
//! wanted is collected by one addition and folded into the sums every few milliseconds. Rates are units per
//! 1000 seconds, integers throughout.

use crate::domain::time::NANOS_PER_MS;
use crate::domain::time::Span;

/// What is wanted is folded in no more often than this.
const FOLD_EVERY: Span = Span::from_ms(5);
/// Nanoseconds in the 1000 seconds that rates are told for.
pub(super) const RATE_NANOS: u128 = 1_000_000_000_000;
/// Sums have this many bits after the point.
const FRACTION_BITS: u32 = 20;
/// Keeps `sum · RATE_NANOS` and `sum · 2^32` below 2^128.
const SUM_MAX: u128 = 1 << 84;

/// The longest a reservation is meant to last without a leader: 4 s, or 5 % of a short window.
pub(super) fn cover(window: Span) -> Span {
    Span::from_seconds(4).min(Span::from_nanos(window.as_nanos() / 20))
}

/// Units that a rate comes to in a span, in parts of [`RATE_NANOS`].
pub(super) fn parts(rate: u64, span: Span) -> u128 {
    u128::from(rate) * u128::from(span.as_nanos())
}

/// How fast units are wanted.
#[derive(Clone, Debug)]
pub(super) struct Demand {
    pending: u64,
    folded_at: Span,
    sums: [u128; 4],
    horizons: [u64; 4],
}

impl Demand {
    pub(super) fn new(window: Span, boot: Span) -> Self {
        Self {
            pending: 0,
            folded_at: boot,
            sums: [0; 4],
            horizons: horizons(window),
        }
    }

    /// The window's length is another one: horizons follow, what was seen stays.
    pub(super) fn set_window(&mut self, window: Span) {
        self.horizons = horizons(window);
    }

    /// Units are wanted.
    pub(super) const fn add(&mut self, units: u64) {
        self.pending = self.pending.saturating_add(units);
    }

    /// Whether enough time passed for [`Demand::fold`] to change something.
    pub(super) fn is_due(&self, boot: Span) -> bool {
        boot.minus(self.folded_at) >= FOLD_EVERY
    }

    /// Brings the sums to `boot`.
    pub(super) fn fold(&mut self, boot: Span) {
        let passed = boot.minus(self.folded_at).as_nanos();
        self.folded_at = self.folded_at.max(boot);
        let wanted = u128::from(self.pending) << FRACTION_BITS;
        self.pending = 0;
        for (sum, horizon) in self.sums.iter_mut().zip(self.horizons) {
            *sum = (decay(*sum, passed, horizon) + wanted).min(SUM_MAX);
        }
    }

    /// What the next round trips will need, per 1000 s.
    pub(super) fn now(&self) -> u64 {
        self.rate(0).max(self.rate(1))
    }

    /// What is worth holding, per 1000 s: never faster than the limit itself.
    pub(super) fn hold(&self, quota: u64, window: Span) -> u64 {
        let limit = u128::from(quota) * RATE_NANOS / u128::from(window.as_nanos().max(1));
        let limit = u64::try_from(limit).unwrap_or(u64::MAX);
        self.rate(2).max(self.rate(3)).min(limit)
    }

    fn rate(&self, which: usize) -> u64 {
        let scaled = self.sums[which] * RATE_NANOS / u128::from(self.horizons[which]);
        u64::try_from(scaled >> FRACTION_BITS).unwrap_or(u64::MAX)
    }
}

fn horizons(window: Span) -> [u64; 4] {
    let second = 1_000 * NANOS_PER_MS;
    [
        100 * NANOS_PER_MS,
        second,
        cover(window).as_nanos().max(second),
        (30 * second).min(window.as_nanos() / 2).max(second),
    ]
}

/// `sum · e^(−passed/horizon)`, as `(1 + x/8)^−8`: within 1 % for steps up to a third of the horizon, and
/// nothing is left after 16 horizons.
fn decay(sum: u128, passed: u64, horizon: u64) -> u128 {
    let (passed, horizon) = (u128::from(passed), u128::from(horizon));
    if sum == 0 || passed >= 16 * horizon {
        return 0;
    }
    let mut factor = ((8 * horizon) << 32) / (8 * horizon + passed);
    for _ in 0..3 {
        factor = (factor * factor) >> 32;
    }
    (sum * factor) >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Span = Span::from_seconds(60);

    #[test]
    fn a_steady_stream_is_measured_on_every_horizon() {
        let mut demand = Demand::new(MINUTE, Span::ZERO);
        for step in 0..12_000 {
            demand.add(2);
            demand.fold(Span::from_ms(10 * step));
        }
        // 200 a second.
        for which in 0..4 {
            let rate = demand.rate(which);
            assert!((190_000..220_000).contains(&rate), "{which}: {rate}");
        }
        assert!(demand.hold(6_000, MINUTE) <= 100_000);
    }

    #[test]
    fn a_stream_that_ended_is_forgotten_by_the_short_horizons_first() {
        let mut demand = Demand::new(MINUTE, Span::ZERO);
        for step in 0..6_000 {
            demand.add(1);
            demand.fold(Span::from_ms(10 * step));
        }
        demand.fold(Span::from_seconds(65));
        assert!(demand.now() < 2_500, "{}", demand.now());
        assert!(
            demand.hold(u64::MAX, MINUTE) > 50_000,
            "{}",
            demand.hold(u64::MAX, MINUTE)
        );
        demand.fold(Span::from_seconds(3_600));
        assert_eq!(demand.hold(u64::MAX, MINUTE), 0);
    }

    #[test]
    fn no_number_panics() {
        let mut demand = Demand::new(Span::ZERO, Span::MAX);
        for boot in [Span::MAX, Span::ZERO, Span::from_nanos(1), Span::MAX] {
            demand.add(u64::MAX);
            demand.add(u64::MAX);
            demand.fold(boot);
            let _ = (demand.now(), demand.hold(u64::MAX, Span::ZERO));
        }
        demand.set_window(Span::MAX);
        demand.fold(Span::MAX);
        let _ = (demand.now(), demand.hold(u64::MAX, Span::MAX));
    }
}
