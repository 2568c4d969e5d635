//! The metrics of links to other regions. Their label `peer` is a region's name from the configuration or
//! the cluster's log; sets of regions that are peers no more are removed.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

use crate::domain::time::Span;

/// The label of regions that are not configured.
const STRANGER: &str = "other";

/// A gauge of seconds.
pub type Seconds = Gauge<f64, AtomicU64>;

/// The label of one peer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct PeerLabels {
    peer: String,
}

/// The labels of one direction.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct TrafficLabels {
    peer: String,
    direction: &'static str,
}

/// The labels of one kind of refusal.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RefusedLabels {
    peer: String,
    reason: &'static str,
}

/// How it stands with one peer.
#[derive(Clone, Debug)]
pub struct PeerReading<'a> {
    /// Its name.
    pub peer: &'a str,
    /// Whether it can be called.
    pub is_connected: bool,
    /// Its clock minus ours, in nanoseconds.
    pub clock_offset_ns: Option<i64>,
    /// The newest round trip.
    pub rtt: Option<Span>,
    /// Since when nothing was heard of it.
    pub last_frame_age: Option<Span>,
    /// Bytes received.
    pub bytes_in: u64,
    /// Bytes sent.
    pub bytes_out: u64,
    /// Messages dropped.
    pub dropped: u64,
    /// Whether calls fail at once.
    pub is_breaker_open: bool,
    /// Refused handshakes by reason.
    pub refusals: &'a [(&'static str, u64)],
}

/// The metrics.
#[derive(Debug)]
pub struct PeerMeters {
    /// 1 while the peer can be called.
    pub connected: Family<PeerLabels, Gauge>,
    /// The peer's clock minus ours.
    pub clock_offset: Family<PeerLabels, Seconds>,
    /// The newest round trip.
    pub rtt: Family<PeerLabels, Seconds>,
    /// Since when nothing was heard.
    pub last_frame_age: Family<PeerLabels, Seconds>,
    /// Bytes by direction.
    pub bytes: Family<TrafficLabels, Counter>,
    /// Messages dropped.
    pub dropped: Family<PeerLabels, Counter>,
    /// 1 while calls fail at once.
    pub breaker_open: Family<PeerLabels, Gauge>,
    /// Refused handshakes.
    pub refused: Family<RefusedLabels, Counter>,
    /// The refusals that are shown, to be removed with their peers.
    pub shown: Mutex<BTreeSet<(String, &'static str)>>,
    /// The peers that are shown.
    pub known: Mutex<BTreeSet<String>>,
}

impl PeerMeters {
    /// Shows `readings` and no other peers. `strangers`: refused handshakes of other regions, by reason.
    pub fn show(&self, readings: &[PeerReading<'_>], strangers: &[(&'static str, u64)]) {
        let mut known = self.known.lock();
        let now: BTreeSet<String> = readings
            .iter()
            .map(|reading| reading.peer.to_owned())
            .collect();
        for gone in known.difference(&now) {
            self.remove(gone);
        }
        *known = now;
        drop(known);
        for reading in readings {
            self.show_one(reading);
        }
        self.show_refusals(STRANGER, strangers);
    }

    fn show_one(&self, reading: &PeerReading<'_>) {
        let labels = PeerLabels {
            peer: reading.peer.to_owned(),
        };
        let gauge = |family: &Family<PeerLabels, Gauge>, value: bool| {
            family.get_or_create_owned(&labels).set(i64::from(value));
        };
        gauge(&self.connected, reading.is_connected);
        gauge(&self.breaker_open, reading.is_breaker_open);
        let seconds = |family: &Family<PeerLabels, Seconds>, value: Option<f64>| match value {
            Some(value) => {
                family.get_or_create_owned(&labels).set(value);
            }
            None => {
                family.remove(&labels);
            }
        };
        let of_span = |span: Span| span.to_std().as_secs_f64();
        let offset = reading.clock_offset_ns.map(|ns| {
            let magnitude = of_span(Span::from_nanos(ns.unsigned_abs()));
            if ns < 0 { -magnitude } else { magnitude }
        });
        seconds(&self.clock_offset, offset);
        seconds(&self.rtt, reading.rtt.map(of_span));
        seconds(&self.last_frame_age, reading.last_frame_age.map(of_span));
        for (direction, bytes) in [("in", reading.bytes_in), ("out", reading.bytes_out)] {
            let labels = TrafficLabels {
                peer: reading.peer.to_owned(),
                direction,
            };
            set(&self.bytes.get_or_create_owned(&labels), bytes);
        }
        set(&self.dropped.get_or_create_owned(&labels), reading.dropped);
        self.show_refusals(reading.peer, reading.refusals);
    }

    fn show_refusals(&self, peer: &str, refusals: &[(&'static str, u64)]) {
        let mut shown = self.shown.lock();
        for (reason, count) in refusals {
            let labels = RefusedLabels {
                peer: peer.to_owned(),
                reason,
            };
            set(&self.refused.get_or_create_owned(&labels), *count);
            shown.insert((peer.to_owned(), reason));
        }
    }

    fn remove(&self, peer: &str) {
        let labels = PeerLabels {
            peer: peer.to_owned(),
        };
        self.connected.remove(&labels);
        self.breaker_open.remove(&labels);
        self.clock_offset.remove(&labels);
        self.rtt.remove(&labels);
        self.last_frame_age.remove(&labels);
        self.dropped.remove(&labels);
        for direction in ["in", "out"] {
            self.bytes.remove(&TrafficLabels {
                peer: peer.to_owned(),
                direction,
            });
        }
        self.shown.lock().retain(|(shown, reason)| {
            if shown == peer {
                self.refused.remove(&RefusedLabels {
                    peer: peer.to_owned(),
                    reason,
                });
            }
            shown != peer
        });
    }
}

/// The links keep their own counts; a peer that comes back counts from zero, as after a restart.
fn set(counter: &Counter, value: u64) {
    counter.inner().store(value, Ordering::Relaxed);
}
