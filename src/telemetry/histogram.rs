//! A histogram of durations made of plain atomics: one relaxed add to a bucket and one to the sum.
//!
//! The library's own histogram takes a mutex per observation, which every check in the region would share.
//! A scrape that meets an observation half way may see it in the bucket and not yet in the sum.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use prometheus_client::encoding::EncodeMetric;
use prometheus_client::encoding::MetricEncoder;
use prometheus_client::encoding::NoLabelSet;
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::TypedMetric;

use crate::domain::time::Span;

/// Upper bounds of the buckets, in nanoseconds and in seconds as they are shown.
const BUCKETS: [(u64, f64); 13] = [
    (50_000, 0.000_05),
    (100_000, 0.000_1),
    (250_000, 0.000_25),
    (500_000, 0.000_5),
    (1_000_000, 0.001),
    (2_500_000, 0.002_5),
    (5_000_000, 0.005),
    (10_000_000, 0.01),
    (25_000_000, 0.025),
    (50_000_000, 0.05),
    (100_000_000, 0.1),
    (250_000_000, 0.25),
    (1_000_000_000, 1.0),
];
const BUCKET_COUNT: usize = BUCKETS.len() + 1;

/// A histogram of durations. Copies share their counts.
#[derive(Clone, Debug, Default)]
pub struct Histogram(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    counts: [AtomicU64; BUCKET_COUNT],
    sum_nanos: AtomicU64,
}

impl Histogram {
    /// Counts one duration.
    pub fn observe(&self, duration: Span) {
        let nanos = duration.as_nanos();
        let bucket = BUCKETS
            .iter()
            .position(|(bound, _)| nanos <= *bound)
            .unwrap_or(BUCKETS.len());
        self.0.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.0.sum_nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    /// How many durations were counted.
    pub fn count(&self) -> u64 {
        self.0
            .counts
            .iter()
            .map(|count| count.load(Ordering::Relaxed))
            .sum()
    }
}

impl EncodeMetric for Histogram {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
        let bounds = BUCKETS
            .iter()
            .map(|(_, seconds)| *seconds)
            .chain([f64::INFINITY]);
        let counts = self
            .0
            .counts
            .iter()
            .map(|count| count.load(Ordering::Relaxed));
        let buckets: Vec<(f64, u64)> = bounds.zip(counts).collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let sum = Span::from_nanos(self.0.sum_nanos.load(Ordering::Relaxed));
        encoder.encode_histogram::<NoLabelSet>(sum.to_std().as_secs_f64(), count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

impl TypedMetric for Histogram {
    const TYPE: MetricType = MetricType::Histogram;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_on_a_bound_belongs_to_the_bucket_below_it() {
        let histogram = Histogram::default();
        for nanos in [0, 50_000, 50_001, 1_000_000_000, 1_000_000_001] {
            histogram.observe(Span::from_nanos(nanos));
        }
        let counts: Vec<u64> = histogram
            .0
            .counts
            .iter()
            .map(|count| count.load(Ordering::Relaxed))
            .collect();
        assert_eq!(counts, [2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
        assert_eq!(histogram.count(), 5);
    }

    #[test]
    fn both_forms_of_a_bound_agree() {
        for (nanos, seconds) in BUCKETS {
            assert!(
                (Span::from_nanos(nanos).to_std().as_secs_f64() - seconds).abs() < 1e-12,
                "{seconds}"
            );
        }
    }
}
