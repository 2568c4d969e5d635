//! The one table of metric names, and all metrics of a region.
//!
//! Label values come from configuration: limits and plans from the catalogue, endpoints from
//! `metrics.endpoints`; every other endpoint is `other`. A family holds a bounded number of label sets, so
//! that a catalogue with very many plans cannot fill the memory of the server or of those who scrape it.
//! Keys and tenants are never labels.

use std::fmt;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::prometheus_text;
use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Metric;
use prometheus_client::registry::Registry;

use crate::domain::decision::DecidedBy;
use crate::domain::limit::Mode;
use crate::domain::limit::OnPartition;
use crate::domain::limit::OnUnavailable;
use crate::telemetry::histogram::Histogram;
use crate::telemetry::meters::LimitTable;
use crate::telemetry::meters::MODES;
use crate::telemetry::meters::mode_index;
use crate::telemetry::meters::mode_label;
use crate::telemetry::peers::PeerMeters;
use crate::telemetry::usage::UsageMeters;

#[cfg(test)]
mod tests;

/// A metric's name (counters are shown with `_total` behind it) and what it tells.
#[derive(Clone, Copy)]
struct Name(&'static str, &'static str);

const ALLOWED: Name = Name("rate_limit_allowed", "Checks of a limit that were allowed");
const REJECTED: Name = Name(
    "rate_limit_rejected",
    "Checks of a limit that were not allowed, by reason",
);
const CHECK_DURATION: Name = Name(
    "rate_limit_check_duration_seconds",
    "Time from a decoded check to its answer",
);
const ERRORS: Name = Name("rate_limit_errors", "Failures of this server, by stage");
const DEGRADED: Name = Name(
    "rate_limit_degraded",
    "Checks that were decided by on_unavailable, by its policy",
);
const COMMIT_DURATION: Name = Name(
    "highwater_store_commit_duration_seconds",
    "Time of one commit of the store, by file",
);
const PENDING_COMMITS: Name = Name(
    "highwater_pending_commits",
    "Writes that wait for a commit of the store",
);
const STORE_FAILED: Name = Name(
    "highwater_store_failed",
    "1 while the store cannot be written, else 0",
);
const LIVE_COUNTERS: Name = Name("highwater_live_counters", "Counters in memory");
const REFUSED_NEW_KEYS: Name = Name(
    "highwater_refused_new_keys",
    "Checks of a new key at a bound of memory, decided by on_unavailable",
);
const USAGE_LAG: Name = Name(
    "highwater_usage_lag_seconds",
    "Age of the oldest counts that a peer has not acknowledged",
);
const USAGE_BACKLOG: Name = Name(
    "highwater_usage_backlog_counters",
    "Counters that wait to be told to a peer",
);
const USAGE_FRAMES: Name = Name(
    "highwater_usage_frames_acknowledged",
    "Frames of counts that a peer has merged",
);
const USAGE_CAUGHT_UP: Name = Name(
    "highwater_usage_caught_up",
    "1 when a peer and this region have told each other everything since they started, else 0",
);
const USAGE_TOLD: Name = Name(
    "highwater_usage_told_counters",
    "Counters in frames to peers, each as often as it was told",
);
const USAGE_REPAIRED: Name = Name(
    "highwater_usage_repaired_counters",
    "Counters that a comparison with a peer found to differ",
);
const USAGE_REFUSED: Name = Name(
    "highwater_usage_refused",
    "Words of peers about counts that were not taken: garbage, too far ahead, no room",
);
const OVERSHOOT_UNITS: Name = Name(
    "highwater_approximate_overshoot_units",
    "Units that approximate windows had admitted beyond their quota when they ended",
);
const ENDED_UNITS: Name = Name(
    "highwater_approximate_ended_units",
    "Quotas of the approximate windows that were seen to end",
);
const OPEN_HOLDS: Name = Name(
    "highwater_open_holds",
    "Holds that are neither settled nor expired",
);
const IDEMPOTENCY_KEYS: Name = Name("highwater_idempotency_keys", "Answers that are remembered");
const CATALOGUE_VERSION: Name = Name(
    "highwater_catalogue_version",
    "Version of the catalogue in force",
);
const CLOCK_STEPS_BACK: Name = Name(
    "highwater_clock_steps_back",
    "Steps back of the wall clock of more than an hour, which region time followed",
);
const PEER_CONNECTED: Name = Name(
    "highwater_peer_connected",
    "1 while the region can be called, else 0",
);
const PEER_CLOCK_OFFSET: Name = Name(
    "highwater_peer_clock_offset_seconds",
    "The region's clock minus this one's",
);
const PEER_RTT: Name = Name(
    "highwater_peer_rtt_seconds",
    "Round trip of the newest heartbeat",
);
const PEER_LAST_FRAME_AGE: Name = Name(
    "highwater_peer_last_frame_age_seconds",
    "Time since anything was heard of the region",
);
const PEER_BYTES: Name = Name(
    "highwater_peer_bytes",
    "Bytes on the links with the region, by direction",
);
const PEER_DROPPED: Name = Name(
    "highwater_peer_dropped_messages",
    "Messages to the region that were dropped, because no link was up or too much waited",
);
const PEER_BREAKER_OPEN: Name = Name(
    "highwater_peer_breaker_open",
    "1 while calls to the region fail at once, else 0",
);
const PEER_REFUSED: Name = Name(
    "highwater_peer_refused",
    "Handshakes that either side refused, by reason",
);
const LEADER: Name = Name("highwater_leader", "1 while this region leads, else 0");
const TERM: Name = Name(
    "highwater_term",
    "The newest term that this region has seen",
);
const LOG_INDEX: Name = Name(
    "highwater_log_index",
    "Index in the cluster's log: of its last entry here, of the newest one known to be committed, of the newest \
     one in force",
);
const RESERVATIONS_OPEN: Name = Name(
    "highwater_reservations_open",
    "Strict counters of which this region holds, or asks for, units",
);
const STRICT_DECIDED: Name = Name(
    "highwater_strict_decided",
    "Checks of strict limits, by what decided them",
);
const OUTBOX_DROPPED: Name = Name(
    "highwater_outbox_dropped",
    "Words between regions and the leader that were dropped because too many waited",
);
const UNLOGGED_REFUSALS: Name = Name(
    "highwater_unlogged_refusals",
    "Refused checks that were not logged, to bound the rate of the log",
);
const COLLAPSED_LABEL_SETS: Name = Name(
    "highwater_collapsed_label_sets",
    "Label sets that are counted under other because a family is full",
);
const BUILD: Name = Name("highwater_build", "The program");

/// The formats in which metrics are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Prometheus text 0.0.4.
    Prometheus,
    /// OpenMetrics 1.0.0.
    OpenMetrics,
}

impl Format {
    /// The format that an `Accept` header asks for: OpenMetrics only when it is named.
    pub fn accepted(accept: Option<&str>) -> Self {
        let mut kinds = accept
            .unwrap_or_default()
            .split(',')
            .filter_map(|part| part.split(';').next());
        if kinds.any(|kind| {
            kind.trim()
                .eq_ignore_ascii_case("application/openmetrics-text")
        }) {
            return Self::OpenMetrics;
        }
        Self::Prometheus
    }

    /// The `Content-Type` of the format.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => prometheus_text::CONTENT_TYPE,
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Where in a request something of ours failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// A charge or a change could not be kept.
    Store,
    /// The catalogue could not be read or changed.
    Catalogue,
    /// The handler of a request failed.
    Handler,
}

impl Stage {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Catalogue => "catalogue",
            Self::Handler => "handler",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ModeLabels {
    mode: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StageLabels {
    stage: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PolicyLabels {
    policy: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FileLabels {
    file: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabels {
    kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByLabels {
    by: &'static str,
}

/// How this region stands in the cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClusterReading {
    /// Whether it leads.
    pub leads: bool,
    /// The newest term that it has seen.
    pub term: u64,
    /// Index of the last entry of its log.
    pub last_index: u64,
    /// Index of the newest entry that it knows to be committed.
    pub committed_index: u64,
    /// Index of the newest entry in force.
    pub applied_index: u64,
    /// Strict counters that are open.
    pub reservations: u64,
    /// Words that were dropped.
    pub outbox_dropped: u64,
}

struct ClusterMeters {
    leader: Gauge,
    term: Gauge,
    log_index: [Gauge; 3],
    reservations: Gauge,
    outbox_dropped: Counter,
}

/// All metrics of a region.
pub struct Metrics {
    registry: Registry,
    /// The counters of every limit.
    pub limits: LimitTable,
    check_durations: [Histogram; 3],
    errors: Family<StageLabels, Counter>,
    degraded: [Counter; 3],
    cut_off: [Counter; 3],
    /// The exchange of counts with other regions.
    pub usage: UsageMeters,
    /// Commits of the log file.
    pub log_commit_duration: Histogram,
    /// Commits of the counter file.
    pub counter_commit_duration: Histogram,
    /// Writes that wait for a commit of the store.
    pub pending_commits: Gauge,
    /// 1 while the store cannot be written.
    pub store_failed: Gauge,
    /// Counters in memory.
    pub live_counters: Gauge,
    /// Checks of a new key at a bound of memory.
    pub refused_new_keys: Counter,
    /// Holds that are neither settled nor expired.
    pub open_holds: Gauge,
    /// Answers that are remembered.
    pub idempotency_keys: Gauge,
    /// Version of the catalogue in force.
    pub catalogue_version: Gauge,
    clock_steps_back: Counter,
    /// Refused checks that were not logged.
    pub unlogged_refusals: Counter,
    /// The links to other regions.
    pub peers: PeerMeters,
    cluster: ClusterMeters,
    strict_decided: [Counter; 3],
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Metrics {
    /// The metrics of a region that lets the values `endpoints` of the label `endpoint` through.
    pub fn new(endpoints: &[String]) -> Self {
        let mut registry = Registry::default();
        let r = &mut registry;
        let limits = LimitTable::new(
            register(r, ALLOWED, Family::default()),
            register(r, REJECTED, Family::default()),
            register(r, COLLAPSED_LABEL_SETS, Counter::default()),
            endpoints,
        );
        let durations: Family<ModeLabels, Histogram> =
            register(r, CHECK_DURATION, Family::default());
        let degraded: Family<PolicyLabels, Counter> = register(r, DEGRADED, Family::default());
        let commits: Family<FileLabels, Histogram> =
            register(r, COMMIT_DURATION, Family::default());
        let errors: Family<StageLabels, Counter> = register(r, ERRORS, Family::default());
        for stage in [Stage::Store, Stage::Catalogue, Stage::Handler] {
            errors.get_or_create_owned(&StageLabels {
                stage: stage.as_str(),
            });
        }
        let build = Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]);
        r.register(BUILD.0, BUILD.1, build);
        Self {
            limits,
            check_durations: MODES.map(|mode| {
                durations.get_or_create_owned(&ModeLabels {
                    mode: mode_label(mode),
                })
            }),
            errors,
            degraded: POLICIES.map(|policy| {
                degraded.get_or_create_owned(&PolicyLabels {
                    policy: policy_label(policy),
                })
            }),
            cut_off: ["partition_share", "partition_open", "partition_majority"]
                .map(|policy| degraded.get_or_create_owned(&PolicyLabels { policy })),
            log_commit_duration: commits.get_or_create_owned(&FileLabels { file: "log" }),
            counter_commit_duration: commits.get_or_create_owned(&FileLabels { file: "counters" }),
            pending_commits: register(r, PENDING_COMMITS, Gauge::default()),
            store_failed: register(r, STORE_FAILED, Gauge::default()),
            live_counters: register(r, LIVE_COUNTERS, Gauge::default()),
            refused_new_keys: register(r, REFUSED_NEW_KEYS, Counter::default()),
            open_holds: register(r, OPEN_HOLDS, Gauge::default()),
            idempotency_keys: register(r, IDEMPOTENCY_KEYS, Gauge::default()),
            catalogue_version: register(r, CATALOGUE_VERSION, Gauge::default()),
            clock_steps_back: register(r, CLOCK_STEPS_BACK, Counter::default()),
            unlogged_refusals: register(r, UNLOGGED_REFUSALS, Counter::default()),
            usage: usage_meters(r),
            peers: peer_meters(r),
            cluster: cluster_meters(r),
            strict_decided: strict_decided(r),
            registry,
        }
    }

    /// The histogram of the durations of checks in `mode`.
    pub fn check_duration(&self, mode: Mode) -> &Histogram {
        &self.check_durations[mode_index(mode)]
    }

    /// The counter of this server's failures at `stage`.
    pub fn errors(&self, stage: Stage) -> Counter {
        self.errors.get_or_create_owned(&StageLabels {
            stage: stage.as_str(),
        })
    }

    /// The counter of checks that the policy `policy` decided.
    pub fn degraded(&self, policy: OnUnavailable) -> &Counter {
        &self.degraded[policy_index(policy)]
    }

    /// The counter of checks of approximate limits that were decided while a peer was out of reach.
    pub fn cut_off(&self, policy: OnPartition) -> &Counter {
        let index = match policy {
            OnPartition::Share => 0,
            OnPartition::Open => 1,
            OnPartition::Majority => 2,
        };
        &self.cut_off[index]
    }

    /// Tells how often region time has followed a step back; the clock keeps the count.
    pub fn set_clock_steps_back(&self, steps: u64) {
        self.clock_steps_back
            .inner()
            .store(steps, Ordering::Relaxed);
    }

    /// Tells how this region stands in the cluster.
    pub fn show_cluster(&self, reading: &ClusterReading) {
        let set = |gauge: &Gauge, value: u64| {
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        };
        let meters = &self.cluster;
        set(&meters.leader, u64::from(reading.leads));
        set(&meters.term, reading.term);
        let indexes = [
            reading.last_index,
            reading.committed_index,
            reading.applied_index,
        ];
        for (gauge, index) in meters.log_index.iter().zip(indexes) {
            set(gauge, index);
        }
        set(&meters.reservations, reading.reservations);
        let dropped = meters.outbox_dropped.inner();
        dropped.store(reading.outbox_dropped, Ordering::Relaxed);
    }

    /// Counts a check of a strict limit. What was decided without units is not counted.
    pub fn count_strict(&self, by: DecidedBy) {
        let [reservation, leader, fallback] = &self.strict_decided;
        match by {
            DecidedBy::Local => {}
            DecidedBy::Reservation => {
                reservation.inc();
            }
            DecidedBy::Leader => {
                leader.inc();
            }
            DecidedBy::Fallback => {
                fallback.inc();
            }
        }
    }

    /// Writes all metrics.
    pub fn render(&self, format: Format) -> String {
        let mut out = String::new();
        let written = match format {
            Format::Prometheus => prometheus_text::encode(&mut out, &self.registry),
            Format::OpenMetrics => text::encode(&mut out, &self.registry),
        };
        written.expect(
            "invariant: writing to a String does not fail, and every metric here can be encoded",
        );
        out
    }
}

fn peer_meters(r: &mut Registry) -> PeerMeters {
    PeerMeters {
        connected: register(r, PEER_CONNECTED, Family::default()),
        clock_offset: register(r, PEER_CLOCK_OFFSET, Family::default()),
        rtt: register(r, PEER_RTT, Family::default()),
        last_frame_age: register(r, PEER_LAST_FRAME_AGE, Family::default()),
        bytes: register(r, PEER_BYTES, Family::default()),
        dropped: register(r, PEER_DROPPED, Family::default()),
        breaker_open: register(r, PEER_BREAKER_OPEN, Family::default()),
        refused: register(r, PEER_REFUSED, Family::default()),
        shown: Mutex::default(),
        known: Mutex::default(),
    }
}

fn usage_meters(r: &mut Registry) -> UsageMeters {
    UsageMeters {
        lag: register(r, USAGE_LAG, Family::default()),
        backlog: register(r, USAGE_BACKLOG, Family::default()),
        frames: register(r, USAGE_FRAMES, Family::default()),
        caught_up: register(r, USAGE_CAUGHT_UP, Family::default()),
        told: register(r, USAGE_TOLD, Counter::default()),
        repaired: register(r, USAGE_REPAIRED, Counter::default()),
        refused: register(r, USAGE_REFUSED, Counter::default()),
        overshoot_units: register(r, OVERSHOOT_UNITS, Counter::default()),
        ended_units: register(r, ENDED_UNITS, Counter::default()),
        ..UsageMeters::default()
    }
}

fn cluster_meters(r: &mut Registry) -> ClusterMeters {
    let indexes: Family<KindLabels, Gauge> = register(r, LOG_INDEX, Family::default());
    ClusterMeters {
        leader: register(r, LEADER, Gauge::default()),
        term: register(r, TERM, Gauge::default()),
        log_index: ["last", "committed", "applied"]
            .map(|kind| indexes.get_or_create_owned(&KindLabels { kind })),
        reservations: register(r, RESERVATIONS_OPEN, Gauge::default()),
        outbox_dropped: register(r, OUTBOX_DROPPED, Counter::default()),
    }
}

fn strict_decided(r: &mut Registry) -> [Counter; 3] {
    let decided: Family<ByLabels, Counter> = register(r, STRICT_DECIDED, Family::default());
    ["reservation", "leader", "fallback"].map(|by| decided.get_or_create_owned(&ByLabels { by }))
}

fn register<M: Metric + Clone>(registry: &mut Registry, name: Name, metric: M) -> M {
    registry.register(name.0, name.1, metric.clone());
    metric
}

const POLICIES: [OnUnavailable; 3] = [
    OnUnavailable::Open,
    OnUnavailable::Closed,
    OnUnavailable::Local,
];

const fn policy_index(policy: OnUnavailable) -> usize {
    match policy {
        OnUnavailable::Open => 0,
        OnUnavailable::Closed => 1,
        OnUnavailable::Local => 2,
    }
}

const fn policy_label(policy: OnUnavailable) -> &'static str {
    match policy {
        OnUnavailable::Open => "open",
        OnUnavailable::Closed => "closed",
        OnUnavailable::Local => "local",
    }
}
