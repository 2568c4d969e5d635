//! When callers ask, for which key and how much: from a seed, the same in every way to run a drill.

use crate::domain::draws::Draws;

use super::scenario::Load;
use super::scenario::Shape;

/// One call that a caller is to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// When, in microseconds since callers began.
    pub at_us: u64,
    /// For which key.
    pub key: u32,
    /// Units.
    pub cost: u64,
}

/// The calls of one load in one region, in the order of time.
#[derive(Clone, Debug)]
pub struct Arrivals {
    draws: Draws,
    shape: Shape,
    rate: u64,
    keys: u32,
    cost: (u64, u64),
    next_us: u64,
    end_us: u64,
    made: u64,
    from_us: u64,
}

/// Between two calls of a burst.
const BURST_STEP_US: u64 = 1_000;

impl Arrivals {
    /// The calls of `load` in its region number `region`, by `seed`.
    pub fn new(load: &Load, region: usize, seed: u64) -> Self {
        let number = u64::try_from(region).unwrap_or(0);
        let mut draws = Draws::new(seed ^ number.wrapping_mul(0xa076_1d64_78bd_642f));
        let from_us = load.span_ms.0 * 1_000;
        let gap_us = 1_000_000 / load.rate.max(1);
        // Regions do not ask at the same instant, except in bursts.
        let first = match load.shape {
            Shape::Bursty => 0,
            Shape::Steady | Shape::Poisson => draws.below(gap_us),
        };
        Self {
            shape: load.shape,
            rate: load.rate.max(1),
            keys: load.keys.max(1),
            cost: load.cost,
            next_us: from_us + first,
            end_us: load.span_ms.1 * 1_000,
            made: 0,
            from_us,
            draws,
        }
    }

    fn gap_us(&mut self) -> u64 {
        match self.shape {
            Shape::Steady => 1_000_000 / self.rate,
            Shape::Poisson => {
                #[expect(clippy::cast_precision_loss, reason = "rates are small")]
                let mean_us = 1_000_000.0 / self.rate as f64;
                let gap = -self.draws.share().ln() * mean_us;
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "positive, and at most 37 means"
                )]
                let gap_us = gap as u64;
                gap_us
            }
            Shape::Bursty => {
                let in_burst = self.made % self.rate;
                if in_burst == 0 {
                    let second = self.made / self.rate;
                    (self.from_us + second * 1_000_000).saturating_sub(self.next_us)
                } else {
                    BURST_STEP_US.min(1_000_000 / self.rate)
                }
            }
        }
    }
}

impl Iterator for Arrivals {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        if self.next_us >= self.end_us {
            return None;
        }
        let at_us = self.next_us;
        let key = u32::try_from(self.draws.below(u64::from(self.keys))).unwrap_or(0);
        let (least, most) = self.cost;
        let cost = least + self.draws.below(most - least + 1);
        self.made += 1;
        self.next_us += self.gap_us();
        Some(Arrival { at_us, key, cost })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(shape: Shape) -> Load {
        Load {
            tenant: "a".to_owned(),
            limit: 0,
            regions: vec![0, 1],
            rate: 50,
            shape,
            keys: 7,
            cost: (1, 3),
            is_keyed: false,
            span_ms: (1_000, 21_000),
        }
    }

    #[test]
    fn every_shape_keeps_its_rate_its_bounds_and_its_seed() {
        for shape in [Shape::Steady, Shape::Poisson, Shape::Bursty] {
            let made: Vec<Arrival> = Arrivals::new(&load(shape), 1, 9).collect();
            assert_eq!(made, Arrivals::new(&load(shape), 1, 9).collect::<Vec<_>>());
            assert_ne!(made, Arrivals::new(&load(shape), 0, 9).collect::<Vec<_>>());
            assert!(
                (850..=1_150).contains(&made.len()),
                "{shape:?}: {}",
                made.len()
            );
            assert!(made.windows(2).all(|two| two[0].at_us <= two[1].at_us));
            assert!(
                made.iter()
                    .all(|one| (1_000_000..21_000_000).contains(&one.at_us))
            );
            assert!(
                made.iter()
                    .all(|one| one.key < 7 && (1..=3).contains(&one.cost))
            );
            assert!((0..7).all(|key| made.iter().any(|one| one.key == key)));
        }
    }

    #[test]
    fn a_burst_is_a_seconds_calls_at_its_beginning() {
        let made: Vec<Arrival> = Arrivals::new(&load(Shape::Bursty), 0, 1).collect();
        assert_eq!(made.len(), 1_000);
        assert!(made.iter().all(|one| one.at_us % 1_000_000 < 50_000));
    }
}
