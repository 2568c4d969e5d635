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

use crate::domain::limit::Mode;
use crate::domain::limit::OnUnavailable;
use crate::telemetry::histogram::Histogram;
use crate::telemetry::meters::LimitTable;
use crate::telemetry::meters::MODES;
use crate::telemetry::meters::mode_index;
use crate::telemetry::meters::mode_label;
use crate::telemetry::peers::PeerMeters;

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

/// All metrics of a region.
pub struct Metrics {
    registry: Registry,
    /// The counters of every limit.
    pub limits: LimitTable,
    check_durations: [Histogram; 3],
    errors: Family<StageLabels, Counter>,
    degraded: [Counter; 3],
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
            peers: peer_meters(r),
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

    /// Tells how often region time has followed a step back; the clock keeps the count.
    pub fn set_clock_steps_back(&self, steps: u64) {
        self.clock_steps_back
            .inner()
            .store(steps, Ordering::Relaxed);
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

#[cfg(test)]
mod tests {
    use crate::domain::decision::Reason;
    use crate::domain::time::Span;
    use crate::telemetry::meters::Endpoint;
    use crate::telemetry::meters::LABEL_SETS_MAX;
    use crate::telemetry::peers::PeerReading;

    use super::*;

    fn metrics() -> Metrics {
        let metrics = Metrics::new(&["POST /v1/sms".to_owned()]);
        metrics.limits.limit("exports", None, Mode::Regional);
        metrics
    }

    #[test]
    fn checks_are_counted_by_limit_plan_mode_and_endpoint() {
        let metrics = metrics();
        let meters = metrics.limits.limit("api", Some("pro"), Mode::Regional);
        meters
            .allowed(metrics.limits.endpoint(Some("POST /v1/sms")))
            .inc();
        meters
            .allowed(metrics.limits.endpoint(Some("GET /unheard-of")))
            .inc();
        meters
            .rejected(metrics.limits.endpoint(None), Reason::QuotaExceeded)
            .inc();
        metrics
            .limits
            .limit("api", Some("pro"), Mode::Regional)
            .allowed(Endpoint::NONE)
            .inc();
        let text = metrics.render(Format::Prometheus);
        let labels = |endpoint: &str| {
            format!("limit=\"api\",tier=\"pro\",mode=\"regional\",endpoint=\"{endpoint}\"")
        };
        for line in [
            format!("rate_limit_allowed_total{{{}}} 1", labels("POST /v1/sms")),
            format!("rate_limit_allowed_total{{{}}} 1", labels("other")),
            format!("rate_limit_allowed_total{{{}}} 1", labels("none")),
            format!(
                "rate_limit_rejected_total{{{},reason=\"quota_exceeded\"}} 1",
                labels("none")
            ),
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }

    #[test]
    fn prometheus_text_names_counters_with_total_and_has_no_end_mark() {
        let metrics = metrics();
        metrics
            .check_duration(Mode::Regional)
            .observe(Span::from_nanos(60_000));
        let text = metrics.render(Format::Prometheus);
        assert!(
            text.contains("# TYPE rate_limit_allowed_total counter\n"),
            "{text}"
        );
        assert!(text.contains("# TYPE rate_limit_check_duration_seconds histogram\n"));
        let bucket =
            "rate_limit_check_duration_seconds_bucket{mode=\"regional\",le=\"0.0001\"} 1\n";
        assert!(text.contains(bucket), "{text}");
        assert!(text.contains("rate_limit_degraded_total{policy=\"open\"} 0\n"));
        assert!(text.contains("rate_limit_errors_total{stage=\"store\"} 0\n"));
        assert!(text.contains("highwater_store_commit_duration_seconds_count{file=\"log\"} 0\n"));
        assert!(!text.contains("# EOF") && !text.contains("# UNIT"));
    }

    #[test]
    fn peers_are_shown_while_they_are_peers() {
        let metrics = metrics();
        let reading = |peer| PeerReading {
            peer,
            is_connected: true,
            clock_offset_ns: Some(-2_500_000_000),
            rtt: Some(Span::from_ms(80)),
            last_frame_age: None,
            bytes_in: 7,
            bytes_out: 8,
            dropped: 0,
            is_breaker_open: false,
            refusals: &[("own_region", 3)],
        };
        metrics
            .peers
            .show(&[reading("eu"), reading("us")], &[("wrong_secret", 2)]);
        let text = metrics.render(Format::Prometheus);
        for line in [
            "highwater_peer_connected{peer=\"eu\"} 1",
            "highwater_peer_clock_offset_seconds{peer=\"us\"} -2.5",
            "highwater_peer_rtt_seconds{peer=\"eu\"} 0.08",
            "highwater_peer_bytes_total{peer=\"eu\",direction=\"out\"} 8",
            "highwater_peer_breaker_open{peer=\"us\"} 0",
            "highwater_peer_refused_total{peer=\"eu\",reason=\"own_region\"} 3",
            "highwater_peer_refused_total{peer=\"other\",reason=\"wrong_secret\"} 2",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(!text.contains("highwater_peer_last_frame_age_seconds{"));
        metrics.peers.show(&[reading("us")], &[]);
        let text = metrics.render(Format::Prometheus);
        assert!(!text.contains("peer=\"eu\""), "{text}");
        assert!(text.contains("peer=\"us\"") && text.contains("peer=\"other\""));
    }

    #[test]
    fn open_metrics_ends_with_its_mark() {
        let text = metrics().render(Format::OpenMetrics);
        assert!(
            text.contains("# TYPE rate_limit_allowed counter\n"),
            "{text}"
        );
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn the_format_follows_the_accept_header() {
        for accept in [None, Some("*/*"), Some("text/plain;version=0.0.4")] {
            assert_eq!(Format::accepted(accept), Format::Prometheus);
        }
        let scraper = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1";
        assert_eq!(Format::accepted(Some(scraper)), Format::OpenMetrics);
    }

    #[test]
    fn a_full_family_counts_under_other() {
        let metrics = metrics();
        for plan in 0..LABEL_SETS_MAX + 50 {
            metrics
                .limits
                .limit("api", Some(&format!("plan-{plan}")), Mode::Regional)
                .allowed(Endpoint::OTHER)
                .inc();
        }
        let text = metrics.render(Format::Prometheus);
        let sets: Vec<&str> = text
            .lines()
            .filter(|line| line.starts_with("rate_limit_allowed_total{"))
            .collect();
        // One more than the bound: `other` itself.
        assert_eq!(sets.len(), LABEL_SETS_MAX + 1);
        let total: u64 = sets
            .iter()
            .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
            .sum();
        assert_eq!(total, u64::try_from(LABEL_SETS_MAX + 50).expect("small"));
    }

    #[test]
    fn every_metric_of_the_table_is_shown() {
        let text = metrics().render(Format::OpenMetrics);
        for name in [
            ALLOWED,
            REJECTED,
            CHECK_DURATION,
            ERRORS,
            DEGRADED,
            COMMIT_DURATION,
            PENDING_COMMITS,
            STORE_FAILED,
            LIVE_COUNTERS,
            REFUSED_NEW_KEYS,
            OPEN_HOLDS,
            IDEMPOTENCY_KEYS,
            CATALOGUE_VERSION,
            CLOCK_STEPS_BACK,
            UNLOGGED_REFUSALS,
            COLLAPSED_LABEL_SETS,
            BUILD,
        ] {
            assert!(text.contains(&format!("# HELP {} ", name.0)), "{}", name.0);
        }
    }
}
