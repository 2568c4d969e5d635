//! Windows of strict limits, by clocks that the test sets.

use serde_json::json;

use crate::answer::Answer;
use crate::group::Cluster;
use crate::group::Setup;
use crate::load::Tally;
use crate::load::decided;
use crate::server::T0;

/// REP-8.
#[test]
fn every_region_refuses_with_one_reset_time_and_a_new_window_is_a_full_one() {
    let cluster = Cluster::set_up(&Setup::of(3).with_manual_clocks());
    cluster.limits(&json!({ "shared": { "algorithm": "fixed_window", "quota": 10, "window": "30s", "mode": "strict" } }));
    let body = json!({ "tenant": "t", "limit": "shared" });
    let resets_at = |answer: &Answer, window_end_ms: i64| {
        let end = (T0 + window_end_ms) / 1000;
        assert_eq!(answer.reset_at(), end, "{answer:?}");
    };

    let mut first = Vec::new();
    for call in 0..30 {
        cluster.at(call * 200);
        let region = usize::try_from(call).expect("small") % 3;
        let answer = decided(&cluster[region], &body);
        resets_at(&answer, 30_000);
        first.push(answer);
    }
    let tally = Tally::of(&first);
    assert_eq!((tally.allowed, tally.refused), (10, 20), "{tally:?}");
    assert!(
        first[..10].iter().all(Answer::allowed),
        "the first ten calls are the allowed ones"
    );
    for refused in &first[10..] {
        assert_eq!(refused.reason(), "quota_exceeded", "{refused:?}");
    }

    for start in [31_000, 61_000] {
        cluster.at(start);
        let mut answers = Vec::new();
        for region in 0..3 {
            for _ in 0..10 {
                let answer = decided(&cluster[region], &body);
                resets_at(&answer, (start / 30_000 + 1) * 30_000);
                answers.push(answer);
            }
        }
        let tally = Tally::of(&answers);
        assert_eq!((tally.allowed, tally.refused), (10, 20), "{tally:?}");
    }
}
