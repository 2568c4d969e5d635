//! What the metrics say.

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
    let bucket = "rate_limit_check_duration_seconds_bucket{mode=\"regional\",le=\"0.0001\"} 1\n";
    assert!(text.contains(bucket), "{text}");
    assert!(text.contains("rate_limit_degraded_total{policy=\"open\"} 0\n"));
    assert!(text.contains("rate_limit_errors_total{stage=\"store\"} 0\n"));
    assert!(text.contains("highwater_store_commit_duration_seconds_count{file=\"log\"} 0\n"));
    assert!(!text.contains("# EOF") && !text.contains("# UNIT"));
}

#[test]
fn a_region_says_how_it_stands_in_the_cluster() {
    let metrics = metrics();
    for by in [
        DecidedBy::Reservation,
        DecidedBy::Reservation,
        DecidedBy::Leader,
        DecidedBy::Local,
    ] {
        metrics.count_strict(by);
    }
    metrics.show_cluster(&ClusterReading {
        leads: true,
        term: 3,
        last_index: 9,
        committed_index: 8,
        applied_index: 7,
        reservations: 2,
        outbox_dropped: 5,
    });
    let text = metrics.render(Format::Prometheus);
    for line in [
        "highwater_leader 1",
        "highwater_term 3",
        "highwater_log_index{kind=\"last\"} 9",
        "highwater_log_index{kind=\"committed\"} 8",
        "highwater_log_index{kind=\"applied\"} 7",
        "highwater_reservations_open 2",
        "highwater_outbox_dropped_total 5",
        "highwater_strict_decided_total{by=\"reservation\"} 2",
        "highwater_strict_decided_total{by=\"leader\"} 1",
        "highwater_strict_decided_total{by=\"fallback\"} 0",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
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
    let scraper =
        "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1";
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
        USAGE_TOLD,
        USAGE_REPAIRED,
        USAGE_REFUSED,
        OVERSHOOT_UNITS,
        ENDED_UNITS,
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
