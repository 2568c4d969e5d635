//! The metrics of the exchange of counts between regions, and of what sharing came to.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

use crate::domain::time::Span;

/// The label of one peer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct PeerLabels {
    peer: String,
}

/// How it stands with the counts that one peer is told.
#[derive(Clone, Debug)]
pub struct TellingReading {
    /// Its name.
    pub peer: String,
    /// How long ago the oldest changes were gathered that it has not acknowledged.
    pub lag: Span,
    /// Counters that wait to be told to it.
    pub backlog: usize,
    /// Frames that it acknowledged.
    pub frames: u64,
    /// Whether both have told each other everything since the later of them started.
    pub is_caught_up: bool,
}

/// Totals since the start.
#[derive(Clone, Copy, Debug, Default)]
pub struct UsageTotals {
    /// Counters in frames to peers, each as often as it was told.
    pub told: u64,
    /// Counters that a comparison found to differ.
    pub repaired: u64,
    /// Words of peers that were not taken.
    pub refused: u64,
    /// Units that shared windows had admitted beyond their quota when they ended.
    pub overshoot_units: u64,
    /// The quotas of these and of all other shared windows that were seen to end.
    pub ended_units: u64,
}

/// The metrics.
#[derive(Debug, Default)]
pub struct UsageMeters {
    /// Age of the oldest changes that a peer has not acknowledged.
    pub lag: Family<PeerLabels, Gauge<f64, AtomicU64>>,
    /// Counters that wait to be told.
    pub backlog: Family<PeerLabels, Gauge>,
    /// Frames acknowledged.
    pub frames: Family<PeerLabels, Counter>,
    /// 1 when nothing is missing from before either started.
    pub caught_up: Family<PeerLabels, Gauge>,
    /// See [`UsageTotals::told`].
    pub told: Counter,
    /// See [`UsageTotals::repaired`].
    pub repaired: Counter,
    /// See [`UsageTotals::refused`].
    pub refused: Counter,
    /// See [`UsageTotals::overshoot_units`].
    pub overshoot_units: Counter,
    /// See [`UsageTotals::ended_units`].
    pub ended_units: Counter,
    /// The peers that are shown.
    pub known: Mutex<BTreeSet<String>>,
}

impl UsageMeters {
    /// Shows `readings` and no other peers.
    pub fn show(&self, readings: &[TellingReading], totals: &UsageTotals) {
        let mut known = self.known.lock();
        let now: BTreeSet<String> = readings.iter().map(|one| one.peer.clone()).collect();
        for gone in known.difference(&now) {
            let labels = PeerLabels { peer: gone.clone() };
            self.lag.remove(&labels);
            self.backlog.remove(&labels);
            self.frames.remove(&labels);
            self.caught_up.remove(&labels);
        }
        *known = now;
        drop(known);
        for reading in readings {
            let labels = PeerLabels {
                peer: reading.peer.clone(),
            };
            let lag = reading.lag.to_std().as_secs_f64();
            self.lag.get_or_create_owned(&labels).set(lag);
            let backlog = i64::try_from(reading.backlog).unwrap_or(i64::MAX);
            self.backlog.get_or_create_owned(&labels).set(backlog);
            let caught_up = i64::from(reading.is_caught_up);
            self.caught_up.get_or_create_owned(&labels).set(caught_up);
            set(&self.frames.get_or_create_owned(&labels), reading.frames);
        }
        set(&self.told, totals.told);
        set(&self.repaired, totals.repaired);
        set(&self.refused, totals.refused);
        set(&self.overshoot_units, totals.overshoot_units);
        set(&self.ended_units, totals.ended_units);
    }
}

fn set(counter: &Counter, value: u64) {
    counter.inner().store(value, Ordering::Relaxed);
}
