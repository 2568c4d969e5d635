//! What is acknowledged is there after a kill, and what is kept is there after a power cut.
//!
//! The files are copied while the store works, without closing it, and the copy is opened: that is what a
//! killed process leaves. Leaving out the counter file's write-ahead log as well is the worst that a power
//! cut can do to it, because that log is not synced at a commit.

use std::collections::BTreeMap;

use tokio::task::JoinSet;

use super::*;

#[tokio::test]
async fn every_acknowledged_flush_survives_a_kill() {
    let dir = directory();
    let opened = open(dir.path());
    let own = opened.actors.own();
    for p in 1..=20 {
        opened
            .store
            .flush(batch(vec![record(7, own, p)]))
            .await
            .expect("a flush");
        let image = crash_image(dir.path(), &KILLED);
        let (collected, _) = collect(&open(image.path()).store, Some(noon()));
        assert_eq!(collected.charged(7, own), p);
    }
}

#[tokio::test]
async fn every_kept_charge_survives_a_power_cut() {
    let dir = directory();
    let opened = open(dir.path());
    let own = opened.actors.own();
    for p in 1..=20 {
        let kept = Kept {
            holds: vec![hold(1, p)],
            answers: vec![answer(p)],
            ..kept(vec![record(7, own, p)])
        };
        opened.store.keep(kept).await.expect("a keep");
        let image = crash_image(dir.path(), &POWER_CUT);
        let (collected, restored) = collect(&open(image.path()).store, Some(noon()));
        assert_eq!(collected.charged(7, own), p);
        assert_eq!(collected.holds[&HoldKey(1)].version, p);
        assert_eq!(collected.answers.len(), usize::try_from(p).expect("small"));
        assert_eq!(restored.sync, p);
    }
}

/// Flushes, keeps, housekeeping and crash images all at once: at no moment may an acknowledged charge be
/// missing, wherever it is on its way from a sync record to a row.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trimming_never_loses_a_kept_charge() {
    const KEYS: u64 = 5;
    let dir = directory();
    let opened = open(dir.path());
    let (store, own) = (opened.store.clone(), opened.actors.own());
    let mut trims_seen = 0;
    for round in 1..=60_u64 {
        for key in 0..KEYS {
            store
                .keep(kept(vec![record(key, own, round)]))
                .await
                .expect("a keep");
        }
        if round % 3 == 0 {
            let covers = Some(store.sync_mark());
            let records = (0..KEYS).map(|key| record(key, own, round)).collect();
            store
                .flush(Batch {
                    covers,
                    ..batch(records)
                })
                .await
                .expect("a flush");
        }
        if round % 4 == 0 {
            store.tend(noon()).await.expect("a step");
        }
        trims_seen += u64::from(count(dir.path(), "log.db", "sync") == 0);
        let image = crash_image(dir.path(), &POWER_CUT);
        let (collected, _) = collect(&open(image.path()).store, Some(noon()));
        for key in 0..KEYS {
            assert_eq!(
                collected.charged(key, own),
                round,
                "key {key} in round {round}"
            );
        }
    }
    assert!(trims_seen > 0, "sync records were trimmed on the way");
}

#[tokio::test]
async fn a_flush_that_covers_nothing_trims_nothing() {
    let dir = directory();
    let opened = open(dir.path());
    let own = opened.actors.own();
    let mark = opened.store.sync_mark();
    opened
        .store
        .keep(kept(vec![record(7, own, 1)]))
        .await
        .expect("a keep");
    // The mark was taken before the charge was kept, so the flush says nothing about it.
    opened
        .store
        .flush(Batch {
            covers: Some(mark),
            ..batch(vec![])
        })
        .await
        .expect("a flush");
    tend_all(&opened.store, noon()).await;
    assert_eq!(count(dir.path(), "log.db", "sync"), 1);
}

#[tokio::test]
async fn a_checkpoint_that_a_reader_holds_up_trims_nothing() {
    let dir = directory();
    let opened = open(dir.path());
    let own = opened.actors.own();
    opened
        .store
        .flush(batch(vec![record(7, own, 1)]))
        .await
        .expect("a flush");
    let reader = rusqlite::Connection::open(dir.path().join("counters.db")).expect("a connection");
    let view = reader.unchecked_transaction().expect("a view");
    view.query_row("SELECT count(*) FROM journal", [], |row| {
        row.get::<_, u64>(0)
    })
    .expect("a read");

    opened
        .store
        .keep(kept(vec![record(7, own, 2)]))
        .await
        .expect("a keep");
    let covers = Some(opened.store.sync_mark());
    opened
        .store
        .flush(Batch {
            covers,
            ..batch(vec![record(7, own, 2)])
        })
        .await
        .expect("a flush");
    tend_all(&opened.store, noon()).await;
    assert_eq!(
        count(dir.path(), "log.db", "sync"),
        1,
        "the flush is not in the synced file yet"
    );
    let image = crash_image(dir.path(), &POWER_CUT);
    assert_eq!(
        collect(&open(image.path()).store, None).0.charged(7, own),
        2
    );

    view.finish().expect("the reader is done");
    tend_all(&opened.store, noon()).await;
    assert_eq!(count(dir.path(), "log.db", "sync"), 0);
    let image = crash_image(dir.path(), &POWER_CUT);
    assert_eq!(
        collect(&open(image.path()).store, None).0.charged(7, own),
        2
    );
}

#[tokio::test]
async fn a_hold_alone_is_kept() {
    let dir = directory();
    let opened = open(dir.path());
    let holds = vec![hold(1, 1)];
    opened
        .store
        .keep(Kept {
            holds,
            ..kept(vec![])
        })
        .await
        .expect("a keep");
    let image = crash_image(dir.path(), &POWER_CUT);
    assert_eq!(collect(&open(image.path()).store, None).0.holds.len(), 1);
}

#[tokio::test]
async fn a_restart_takes_over_sync_records_and_lets_go_of_them() {
    let dir = directory();
    let own = {
        let opened = open(dir.path());
        let own = opened.actors.own();
        opened
            .store
            .keep(kept(vec![record(7, own, 5)]))
            .await
            .expect("a keep");
        opened.store.close().await.expect("a close");
        own
    };
    let opened = open(dir.path());
    let (collected, restored) = collect(&opened.store, Some(noon()));
    assert_eq!((collected.charged(7, own), restored.sync), (5, 1));
    assert_eq!(count(dir.path(), "log.db", "sync"), 0);
    let image = crash_image(dir.path(), &POWER_CUT);
    assert_eq!(
        collect(&open(image.path()).store, Some(noon()))
            .0
            .charged(7, own),
        5
    );
    // Sync records are numbered anew; the marks of the last process cover none of the new ones.
    opened
        .store
        .keep(kept(vec![record(7, own, 6)]))
        .await
        .expect("a keep");
    tend_all(&opened.store, noon()).await;
    assert_eq!(count(dir.path(), "log.db", "sync"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_keeps_share_few_commits() {
    const CALLERS: u64 = 400;
    let dir = directory();
    let opened = open(dir.path());
    let own = opened.actors.own();
    let mut callers = JoinSet::new();
    for key in 0..CALLERS {
        let store = opened.store.clone();
        callers.spawn(async move { store.keep(kept(vec![record(key, own, 1)])).await });
    }
    while let Some(kept) = callers.join_next().await {
        kept.expect("a caller").expect("a keep");
    }
    let commits = opened.stats_commits();
    assert!(
        commits <= CALLERS / 4,
        "{CALLERS} keeps took {commits} commits"
    );
    assert_eq!(count(dir.path(), "log.db", "sync"), commits);
    let image = crash_image(dir.path(), &POWER_CUT);
    assert_eq!(
        collect(&open(image.path()).store, None).0.counters.len(),
        400
    );
}

impl Opened {
    fn stats_commits(&self) -> u64 {
        self.store.stats().commits
    }
}

#[tokio::test]
async fn changes_come_back_after_the_newest_snapshot() {
    let dir = directory();
    let opened = open(dir.path());
    for index in 1..=3 {
        opened
            .store
            .append_change(change(index))
            .await
            .expect("a change");
    }
    let with_snapshot = Change {
        snapshot: Some(b"all of it".to_vec()),
        ..change(4)
    };
    opened
        .store
        .append_change(with_snapshot)
        .await
        .expect("a change");
    opened
        .store
        .append_change(change(7))
        .await
        .expect("a change");
    let image = crash_image(dir.path(), &POWER_CUT);
    let again = open(image.path());
    let catalogue = again.catalogue.expect("a snapshot");
    assert_eq!(
        (catalogue.index, catalogue.body.as_slice()),
        (4, b"all of it".as_slice())
    );
    let indexes: Vec<u64> = again.changes.iter().map(|change| change.index).collect();
    assert_eq!(indexes, [7]);
    assert_eq!(again.changes[0].at, after_noon(7));

    let rows = again.store.audit(2, 2).await.expect("the audit");
    let summaries: Vec<&str> = rows.iter().map(|row| row.summary.as_str()).collect();
    assert_eq!(summaries, ["change 3", "change 4"]);
}

#[tokio::test]
async fn a_change_that_is_not_newer_is_refused_and_changes_nothing() {
    let dir = directory();
    let opened = open(dir.path());
    opened
        .store
        .append_change(change(5))
        .await
        .expect("a change");
    for index in [5, 4] {
        let forged = Change {
            summary: "forged".to_owned(),
            ..change(index)
        };
        let refused = opened.store.append_change(forged).await;
        assert!(
            matches!(refused, Err(StoreError::Refused { .. })),
            "{refused:?}"
        );
    }
    assert!(!opened.store.is_failed());
    let rows = opened.store.audit(0, 10).await.expect("the audit");
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0].summary, "change 5");
}

#[tokio::test]
async fn every_start_is_a_new_actor_with_a_higher_start() {
    let dir = directory();
    let mut known = BTreeMap::new();
    for start in 1..=4 {
        let opened = open(dir.path());
        assert_eq!(opened.start, start);
        let own = opened.actors.own();
        assert!(
            known
                .insert(own, opened.actors.own_actor().clone())
                .is_none()
        );
        for (id, actor) in &known {
            assert_eq!(opened.actors.get(*id), Some(actor));
            let actor = opened.actors.get(*id).expect("a known process");
            assert_eq!(actor.region, opened.actors.own_actor().region);
        }
        if start % 2 == 0 {
            opened.store.close().await.expect("a close");
        }
    }
}

#[tokio::test]
async fn the_newest_region_time_is_remembered() {
    let dir = directory();
    let opened = open(dir.path());
    assert_eq!(opened.last_time, None);
    let now = after_noon(3);
    opened
        .store
        .flush(Batch {
            now,
            ..batch(vec![])
        })
        .await
        .expect("a flush");
    opened.store.close().await.expect("a close");
    assert_eq!(open(dir.path()).last_time, Some(now));
}

#[tokio::test]
async fn a_closed_store_has_carried_out_what_was_queued_and_refuses_the_rest() {
    let dir = directory();
    let opened = open(dir.path());
    let (store, own) = (opened.store.clone(), opened.actors.own());
    let queued = store.flush(batch(vec![record(1, own, 9)]));
    let closed = store.close();
    let (queued, closed) = tokio::join!(queued, closed);
    queued.expect("a flush before the close");
    closed.expect("a close");
    let refused = store
        .flush(batch(vec![record(1, own, 10)]))
        .await
        .expect_err("it is closed");
    assert_eq!(
        (refused.error, refused.batch.records.len()),
        (StoreError::Closed, 1)
    );
    assert_eq!(store.keep(kept(vec![])).await, Err(StoreError::Closed));
    assert!(
        !dir.path().join("counters.db-wal").exists(),
        "the last checkpoint leaves one file"
    );
    assert_eq!(collect(&open(dir.path()).store, None).0.charged(1, own), 9);
}
