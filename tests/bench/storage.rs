//! Memory per key and the time of a restart, at a million keys.

use std::time::Instant;

use highwater::domain::time::Span;
use highwater::domain::time::Timestamp;
use highwater::store::Batch;

use crate::Row;
use crate::http;
use crate::ledger;

const KEYS: f64 = 1_000_000.0;

/// Resident memory of this process in bytes.
pub fn resident() -> f64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: f64 = text
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse().ok())
        .unwrap_or(f64::NAN);
    pages * 4096.0
}

/// Bytes per live key, and the time to ready of a region with a million counters.
pub fn memory_and_restart() -> Vec<Row> {
    let (own_ledger, limit, keys) = (ledger::ledger(), ledger::limit(), ledger::keys());
    let before = resident();
    let now = Timestamp::from_nanos(1_800_000_000_000_000_000);
    for key in &keys {
        assert!(ledger::check(&own_ledger, &limit, key, now), "a fresh key");
    }
    let per_key = (resident() - before) / KEYS;
    drop(own_ledger);

    let dir = tempfile::tempdir().expect("a directory");
    let config = http::config(dir.path(), "100ms");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let region = http::alone(&config, &stopped).await;
        // A long refill keeps the counters live over the restart.
        let tree = serde_json::from_str(
            r#"{"limits":{"slow":{"algorithm":"fixed_window","quota":1000,"window":"30d","key":"user"}}}"#,
        );
        let entry = highwater::catalogue::change::Entry {
            author: highwater::catalogue::change::Author::Operator { token: "bench".to_owned() },
            expected_version: None,
            change: highwater::catalogue::change::Change::Patch { tree: tree.expect("a catalogue") },
        };
        region.change(&entry).await.expect("a change");
        {
            let view = region.view_full();
            let slow = view.tenant("acme").and_then(|tenant| tenant.limit("slow")).expect("the limit");
            for key in &keys {
                let (limit, epoch) = slow.at(key, region.clock.now());
                let items = [highwater::ledger::check::Item { limit, id: slow.id, epoch, key, cost: 1 }];
                let request = highwater::ledger::check::Request {
                    now: region.clock.now(),
                    tenant: "acme",
                    items: &items,
                    hold: None,
                    keep: false,
                    store_failed: false,
                    judge_only: false,
                    boot: Span::ZERO,
                    words: &[],
                };
                assert!(region.ledger.check(&request).allowed, "a fresh key");
            }
        }
        for shard in 0..region.ledger.shards() {
            let mut batch = Batch { now: region.clock.now(), ..Batch::default() };
            region.drain(shard, &mut batch.records);
            region.store.flush(batch).await.expect("a flush");
        }
        while region.store.tend(region.clock.now()).await.expect("housekeeping") {}
        stop.send_replace(true);
        if let Some(consensus) = region.consensus() {
            consensus.shutdown().await;
        }
        if let Some(peers) = region.peers() {
            peers.stop();
        }
        region.store.close().await.expect("the store");
    });
    let began = Instant::now();
    let (_stop, stopped) = tokio::sync::watch::channel(false);
    let region = runtime.block_on(http::alone(&config, &stopped));
    let restart = began.elapsed();
    assert_eq!(region.ledger.keys(), keys.len(), "every counter is back");
    vec![
        Row {
            what: "memory per live key at 1 M keys, one region",
            measured: format!("{per_key:.0} bytes"),
            wanted: "≤ 300 bytes",
        },
        Row {
            what: "restart with 1 M live counters, to ready",
            measured: format!("{:.1} s", restart.as_secs_f64()),
            wanted: "≤ 3 s",
        },
    ]
}
