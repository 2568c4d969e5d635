//! The network: one-way delays with jitter, loss, doubles, messages that overtake, links that are cut in
//! one direction.

use std::collections::BTreeMap;

use super::MS;
use super::rng::Rng;

/// How bad the network is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weather {
    pub loss: f64,
    pub double: f64,
    /// Up to 2 s late, and without order.
    pub late: f64,
}

/// All links.
#[derive(Clone, Debug)]
pub struct Net {
    /// One-way delays in ms.
    pub delays: Vec<Vec<u64>>,
    pub weather: Weather,
    pub cut: Vec<Vec<bool>>,
    pub last: BTreeMap<(usize, usize), u64>,
    /// How many times its delay a link takes.
    slow: BTreeMap<(usize, usize), u64>,
}

impl Net {
    pub fn new(delays: Vec<Vec<u64>>) -> Self {
        let regions = delays.len();
        Self {
            delays,
            weather: Weather::default(),
            cut: vec![vec![false; regions]; regions],
            last: BTreeMap::new(),
            slow: BTreeMap::new(),
        }
    }

    pub fn cut(&mut self, from: usize, to: usize, is_cut: bool) {
        self.cut[from][to] = is_cut && from != to;
    }

    /// A link takes so many times its delay from now on.
    pub fn slow(&mut self, from: usize, to: usize, times: u64) {
        self.slow.insert((from, to), times);
    }

    pub fn all_fast(&mut self) {
        self.slow.clear();
    }

    fn delay_ms(&self, from: usize, to: usize) -> u64 {
        self.delays[from][to] * self.slow.get(&(from, to)).copied().unwrap_or(1)
    }

    pub fn heal(&mut self) {
        self.cut.iter_mut().flatten().for_each(|cut| *cut = false);
    }

    /// Whether both can talk to each other.
    pub fn connects(&self, one: usize, other: usize) -> bool {
        !self.cut[one][other] && !self.cut[other][one]
    }

    pub fn round_trip(&self, one: usize, other: usize) -> u64 {
        (self.delay_ms(one, other) + self.delay_ms(other, one)) * MS
    }

    /// When a message sent at `at` arrives: never, once, or twice.
    pub fn send(&mut self, rng: &mut Rng, from: usize, to: usize, at: u64) -> Vec<u64> {
        if from == to {
            return vec![at + 1_000];
        }
        if self.cut[from][to] || rng.chance(self.weather.loss) {
            return Vec::new();
        }
        let copies = if rng.chance(self.weather.double) {
            2
        } else {
            1
        };
        (0..copies)
            .map(|_| self.arrival(rng, from, to, at))
            .collect()
    }

    fn arrival(&mut self, rng: &mut Rng, from: usize, to: usize, at: u64) -> u64 {
        let delay = (self.delay_ms(from, to) * MS) as f64;
        let arrives = at + (delay + rng.exponential(delay / 10.0)) as u64;
        if rng.chance(self.weather.late) {
            return arrives + rng.between(0, 2_000 * MS);
        }
        let last = self.last.entry((from, to)).or_default();
        *last = arrives.max(*last + 1);
        *last
    }
}
