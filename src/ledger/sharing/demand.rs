//! How much of a counter is asked for in a region, refused units too.
//!
//! Attempts are collected in bins of about 100 ms. What leaves the newest bin goes into a sum that decays by
//! e in a second, so the sum is a rate per second; three bins together are compared with the peak.

use super::gossip::FRACTION_BITS;
use super::gossip::Gossip;
use super::gossip::decoded;
use super::gossip::encoded;
use crate::domain::time::Span;

/// Ages are counted in ticks of 2^24 ns, about 17 ms: 32 bits last for two years.
const TICK_BITS: u32 = 24;
/// Ticks in a bin.
const BIN_TICKS: u64 = 6;
const BIN_NANOS: u64 = BIN_TICKS << TICK_BITS;
/// Bits after the point of sums and peaks kept here, and of factors.
const KEPT_BITS: u32 = 16;
const FACTOR_BITS: u32 = 32;
/// e^(−1 tick / 1 s).
const TICK_OF_SECOND: u64 = 4_223_510_799;
const BIN_OF_SECOND: u64 = power(TICK_OF_SECOND, BIN_TICKS);
/// e^(−3 ticks / 1 s): half a bin.
const HALF_BIN_OF_SECOND: u64 = 4_084_144_546;
/// 2^(−1 tick / 30 s).
const TICK_OF_MEMORY: u64 = 4_293_302_735;
const BIN_OF_MEMORY: u64 = power(TICK_OF_MEMORY, BIN_TICKS);
/// 400 ms: a demand that a busy counter would have told again by then.
const TOLD_TICKS: u64 = 24;

fn ticks(boot: Span) -> u64 {
    boot.as_nanos() >> TICK_BITS
}

/// `factor` to the power of `times`.
const fn power(factor: u64, times: u64) -> u64 {
    let (mut product, mut square, mut times) = (1 << FACTOR_BITS, factor, times);
    while times > 0 {
        if times & 1 == 1 {
            product = (product * square) >> FACTOR_BITS;
        }
        square = (square * square) >> FACTOR_BITS;
        times >>= 1;
    }
    product
}

fn scaled(value: u64, factor: u64) -> u64 {
    let product = (u128::from(value) * u128::from(factor)) >> FACTOR_BITS;
    u64::try_from(product).unwrap_or(u64::MAX)
}

fn kept(units: u64) -> u64 {
    units.min(u64::MAX >> (KEPT_BITS + 1)) << KEPT_BITS
}

/// What is asked for here.
#[derive(Clone, Debug)]
pub(super) struct Demand {
    sum: u64,
    peak: u64,
    /// Units by bin, the newest first.
    bins: [u32; 3],
    /// Number of the newest bin since boot.
    bin: u32,
}

impl Demand {
    pub(super) fn new(boot: Span) -> Self {
        Self {
            sum: 0,
            peak: 0,
            bins: [0; 3],
            bin: bin(boot),
        }
    }

    /// `units` are asked for.
    pub(super) fn add(&mut self, boot: Span, units: u64) {
        self.turn(boot);
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        self.bins[0] = self.bins[0].saturating_add(units);
    }

    /// As the others are told.
    pub(super) fn gossip(&mut self, boot: Span) -> Gossip {
        self.turn(boot);
        let into_bin = boot.as_nanos() % BIN_NANOS;
        // Straight between two bins.
        let passed = (into_bin << FACTOR_BITS) / BIN_NANOS;
        let lost = scaled(self.sum - scaled(self.sum, BIN_OF_SECOND), passed);
        let sum = self.sum - lost;
        let sum = sum.saturating_add(kept(u64::from(self.bins[0])));
        let shift = KEPT_BITS - FRACTION_BITS;
        Gossip {
            demand: encoded(sum >> shift),
            peak: encoded(self.peak.max(self.recent()) >> shift),
        }
    }

    fn recent(&self) -> u64 {
        kept(self.bins.iter().map(|units| u64::from(*units)).sum())
    }

    fn turn(&mut self, boot: Span) {
        let now = bin(boot);
        let passed = match now.checked_sub(self.bin) {
            Some(passed) if passed > 0 => u64::from(passed),
            _ => return,
        };
        let ended = scaled(kept(u64::from(self.bins[0])), HALF_BIN_OF_SECOND);
        let since = power(BIN_OF_SECOND, passed - 1);
        self.sum = scaled(scaled(self.sum, BIN_OF_SECOND).saturating_add(ended), since);
        self.peak = self.peak.max(self.recent());
        self.peak = scaled(self.peak, power(BIN_OF_MEMORY, passed));
        self.bins = match passed {
            1 => [0, self.bins[0], self.bins[1]],
            2 => [0, 0, self.bins[0]],
            _ => [0; 3],
        };
        self.bin = now;
    }
}

fn bin(boot: Span) -> u32 {
    u32::try_from(boot.as_nanos() / BIN_NANOS).unwrap_or(u32::MAX)
}

/// What another region told of its demand.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Told {
    gossip: Gossip,
    /// Tick of receipt, the low bits.
    at: u32,
}

impl Told {
    pub(super) fn new(boot: Span, gossip: Gossip) -> Self {
        Self {
            gossip,
            at: ticks(boot) as u32,
        }
    }

    /// What is wanted there by now, as far as can be guessed.
    pub(super) fn now(self, boot: Span) -> Wanted {
        if self.gossip == Gossip::default() {
            return Wanted::default();
        }
        let age = u64::from((ticks(boot) as u32).wrapping_sub(self.at));
        let silent = age.saturating_sub(TOLD_TICKS);
        let told = Wanted::from(self.gossip);
        Wanted {
            demand: scaled(told.demand, power(TICK_OF_SECOND, silent)),
            peak: scaled(told.peak, power(TICK_OF_MEMORY, age)),
        }
    }
}

/// Demand per second and peak, in sixteenths of a unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) demand: u64,
    pub(super) peak: u64,
}

impl From<Gossip> for Wanted {
    fn from(gossip: Gossip) -> Self {
        Self {
            demand: decoded(gossip.demand),
            peak: decoded(gossip.peak),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_about(value: u64, expected: u64) {
        let off = value.abs_diff(expected);
        assert!(off * 100 <= expected * 8, "{value}, expected {expected}");
    }

    /// What is told at `ms`, in units.
    fn told(demand: &mut Demand, ms: u64) -> (u64, u64) {
        let wanted = Wanted::from(demand.gossip(Span::from_ms(ms)));
        (wanted.demand >> FRACTION_BITS, wanted.peak >> FRACTION_BITS)
    }

    #[test]
    fn a_steady_stream_is_told_per_second() {
        let mut demand = Demand::new(Span::ZERO);
        for ms in 0..20_000 {
            demand.add(Span::from_ms(ms), 2);
            if ms > 8_000 && ms % 7 == 0 {
                let (rate, peak) = told(&mut demand, ms);
                is_about(rate, 2_000);
                is_about(peak, 603);
            }
        }
    }

    #[test]
    fn demand_is_forgotten_within_seconds_and_a_peak_within_minutes() {
        let mut demand = Demand::new(Span::ZERO);
        demand.add(Span::from_ms(50), 10_000);
        let (rate, peak) = told(&mut demand, 50);
        is_about(rate, 10_000);
        is_about(peak, 10_000);
        let (rate, peak) = told(&mut demand, 2_050);
        is_about(rate, 1_353);
        is_about(peak, 9_550);
        let (rate, peak) = told(&mut demand, 30_050);
        assert_eq!(rate, 0);
        is_about(peak, 5_000);
        assert_eq!(told(&mut demand, 3_600_000), (0, 0));
    }

    #[test]
    fn what_was_heard_is_forgotten_alike() {
        let gossip = Gossip {
            demand: encoded(10_000),
            peak: encoded(10_000),
        };
        let told = Told::new(Span::from_ms(50), gossip);
        is_about(told.now(Span::from_ms(450)).demand, 10_000);
        is_about(told.now(Span::from_ms(2_450)).demand, 1_353);
        is_about(told.now(Span::from_ms(30_050)).peak, 5_000);
        let later = told.now(Span::from_seconds(100_000));
        assert_eq!(later, Wanted::default());
    }

    #[test]
    fn no_amount_and_no_clock_is_too_much() {
        let mut demand = Demand::new(Span::from_seconds(9));
        for boot in [Span::ZERO, Span::from_seconds(9), Span::MAX, Span::ZERO] {
            demand.add(boot, u64::MAX);
            demand.add(boot, u64::MAX);
            assert_eq!(demand.gossip(boot).demand, u8::MAX);
            demand.add(boot.plus(Span::from_ms(150)), 1);
        }
    }
}
