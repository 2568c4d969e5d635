//! Who asks when: Poisson arrivals whose rate differs by region and changes with time.

use super::SECOND;
use super::rng::Rng;

/// How demand is spread over the regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// All alike.
    Balanced,
    /// 90 % in the region that is not the leader's.
    Skew,
    /// Each region is on for a tenth of the time, ten times as fast.
    Bursty,
    /// 98 % in one region, another one every 7 s.
    Moving,
    /// Everything in one region within 200 ms of each window's start.
    Flash,
    /// The same in all regions at once.
    Rush,
}

/// The steady kinds, of which tables show the mean.
pub const STEADY: [Traffic; 4] = [
    Traffic::Balanced,
    Traffic::Skew,
    Traffic::Bursty,
    Traffic::Moving,
];

/// The demand of one region.
#[derive(Clone, Debug)]
pub struct Source {
    traffic: Traffic,
    region: usize,
    regions: usize,
    /// Checks per nanosecond over all regions.
    rate: f64,
    window: u64,
    is_on: bool,
    changes_at: u64,
}

impl Source {
    pub fn new(traffic: Traffic, region: usize, regions: usize, rate: f64, window: u64) -> Self {
        Self {
            traffic,
            region,
            regions,
            rate,
            window,
            is_on: false,
            changes_at: 0,
        }
    }

    /// The rate at `at`, and until when it holds.
    fn rate(&mut self, rng: &mut Rng, at: u64) -> (f64, u64) {
        let regions = self.regions as f64;
        let rest = |busy: f64, is_busy: bool| {
            if is_busy {
                busy
            } else {
                (1.0 - busy) / (regions - 1.0).max(1.0)
            }
        };
        match self.traffic {
            Traffic::Balanced => (self.rate / regions, u64::MAX),
            Traffic::Skew => {
                let busy = 1 % self.regions;
                (self.rate * rest(0.9, self.region == busy), u64::MAX)
            }
            Traffic::Moving => {
                let turn = at / (7 * SECOND);
                let busy = (turn * 2) as usize % self.regions;
                let share = rest(0.98, self.region == busy);
                (self.rate * share, (turn + 1) * 7 * SECOND)
            }
            Traffic::Bursty => {
                while self.changes_at <= at {
                    self.is_on = !self.is_on;
                    let mean = if self.is_on { 1.0 } else { 9.0 };
                    let lasts = rng.exponential(mean * SECOND as f64) as u64;
                    self.changes_at += lasts.max(1);
                }
                let factor = if self.is_on { 10.0 } else { 0.0 };
                (self.rate * factor / regions, self.changes_at)
            }
            Traffic::Flash | Traffic::Rush => {
                let begin = at / self.window * self.window;
                let lasts = SECOND / 5;
                let is_rush = self.traffic == Traffic::Rush;
                if !is_rush && self.region != 1 % self.regions {
                    return (0.0, u64::MAX);
                }
                if at - begin >= lasts {
                    return (0.0, begin + self.window);
                }
                let part = if is_rush { 1.0 / regions } else { 1.0 };
                let factor = self.window as f64 / lasts as f64;
                (self.rate * part * factor, begin + lasts)
            }
        }
    }

    /// When the next check comes after `at`.
    pub fn next(&mut self, rng: &mut Rng, at: u64) -> u64 {
        let mut at = at;
        loop {
            let (rate, until) = self.rate(rng, at);
            if rate > 0.0 {
                let next = at.saturating_add((rng.exponential(1.0 / rate) as u64).max(1));
                if next < until {
                    return next;
                }
            }
            if until == u64::MAX {
                return u64::MAX;
            }
            at = until;
        }
    }
}
