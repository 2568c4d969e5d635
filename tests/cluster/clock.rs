//! CLK-1 for strict limits: clocks that step back, step forward and jitter, in every region.

use serde_json::json;

use crate::counter::Counter;
use crate::group::Cluster;
use crate::group::Setup;
use crate::load::decided;
use crate::load::wait_used;
use crate::server::T0;

fn cluster() -> Cluster {
    Cluster::set_up(&Setup::of(3).with_manual_clocks())
}

/// How many of `calls` pass at the regions in turn.
fn passes(cluster: &Cluster, limit: &str, calls: usize) -> usize {
    let body = json!({ "tenant": "t", "limit": limit });
    (0..calls)
        .filter(|call| decided(&cluster[call % cluster.len()], &body).allowed())
        .count()
}

/// (a): log time never goes back, so at 89 it stands at 100.
#[test]
fn a_step_back_earns_nothing_and_the_way_forward_gives_no_free_refill() {
    let cluster = cluster();
    cluster.limits(&json!({ "bucket": {
        "algorithm": "token_bucket", "capacity": 10, "refill": 1, "per": "1s", "mode": "strict",
    } }));
    cluster.at(100_000);
    assert_eq!(passes(&cluster, "bucket", 4), 4);
    wait_used(&cluster, "t", "bucket", 4);
    cluster.at(89_000);
    assert_eq!(passes(&cluster, "bucket", 7), 6);
    wait_used(&cluster, "t", "bucket", 10);
    cluster.at(101_000);
    assert_eq!(
        passes(&cluster, "bucket", 2),
        1,
        "one second earned since 100, not twelve since 89"
    );
}

/// (b): of six calls while the clocks run back and forth by milliseconds.
#[test]
fn clocks_that_run_back_and_forth_by_milliseconds_refuse_nobody() {
    let cluster = cluster();
    cluster.limits(&json!({ "bucket": {
        "algorithm": "token_bucket", "capacity": 5, "refill": 1, "per": "10s", "mode": "strict",
    } }));
    let allowed = [100_000, 99_997, 100_001, 99_998, 100_002, 99_999].map(|at| {
        cluster.at(at);
        passes(&cluster, "bucket", 1)
    });
    assert_eq!(allowed, [1, 1, 1, 1, 1, 0]);
}

/// Windows of every kind: going back does not open a closed one again.
#[test]
fn a_step_back_does_not_open_a_closed_window_again() {
    let cluster = cluster();
    let limit = |algorithm: &str| json!({ "algorithm": algorithm, "quota": 5, "window": "60s", "mode": "strict" });
    cluster.limits(&json!({
        "fixed": limit("fixed_window"), "sliding": limit("sliding_window"), "log": limit("sliding_log"),
    }));
    let all =
        |calls: usize| ["fixed", "sliding", "log"].map(|limit| passes(&cluster, limit, calls));
    cluster.at(59_000);
    assert_eq!(all(6), [5; 3]);
    cluster.at(61_000);
    assert_eq!(all(1), [1, 0, 0]);
    cluster.at(59_000);
    for region in 0..3 {
        let look = Counter::new(&cluster[region], "t", "fixed").look();
        let start = look.only()["window_start_ms"].as_i64();
        assert_eq!(start, Some(T0 + 60_000), "time stands at 61: {look:?}");
    }
    assert_eq!(all(6), [4, 0, 0]);
}

/// One region's clock alone, in both directions: windows are a matter of the log's time.
#[test]
fn one_regions_clock_opens_no_window_by_itself() {
    let cluster = cluster();
    cluster.limits(&json!({ "fixed": { "algorithm": "fixed_window", "quota": 5, "window": "60s", "mode": "strict" } }));
    cluster.at(59_000);
    assert_eq!(passes(&cluster, "fixed", 9), 5);
    wait_used(&cluster, "t", "fixed", 5);
    let odd = cluster.follower();
    for ms in [59_900, 58_100, 59_000] {
        cluster[odd].at(ms);
        assert_eq!(passes(&cluster, "fixed", 9), 0, "its clock shows {ms}");
    }
    cluster.at(60_000);
    assert_eq!(passes(&cluster, "fixed", 9), 5);
}
