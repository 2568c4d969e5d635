//! A store that cannot write says so, stores nothing half, and works again without a restart.

use super::*;
use crate::store::Health;
use crate::store::StoreFault;

const FAULTS: [StoreFault; 2] = [StoreFault::Errors, StoreFault::Full];

#[tokio::test]
async fn a_fault_refuses_everything_at_once_and_a_probe_ends_it() {
    for fault in FAULTS {
        let dir = directory();
        let opened = open(dir.path());
        let (store, own) = (opened.store, opened.actors.own());
        store
            .flush(batch(vec![record(1, own, 1)]))
            .await
            .expect("a flush");
        store
            .keep(kept(vec![record(2, own, 1)]))
            .await
            .expect("a keep");
        assert_eq!(store.health(), Health::Ok);

        store.inject(fault).await.expect("a fault");
        assert!(store.is_failed());
        let refused = store
            .flush(batch(vec![record(1, own, 2)]))
            .await
            .expect_err("a refusal");
        assert_eq!(
            refused.batch.records,
            vec![record(1, own, 2)],
            "the batch comes back"
        );
        store
            .keep(kept(vec![record(2, own, 2)]))
            .await
            .expect_err("a refusal");
        store.append_change(change(1)).await.expect_err("a refusal");
        store.tend(noon()).await.expect_err("a refusal");
        store.probe().await.expect_err("the fault is still there");
        let Health::Failed { reason, since } = store.health() else {
            panic!("it has failed")
        };
        assert_eq!(since, noon());
        let expected = if fault == StoreFault::Full {
            "full"
        } else {
            "fault is injected"
        };
        assert!(reason.contains(expected), "{reason}");

        store.clear_fault().await.expect("no fault");
        assert!(store.is_failed(), "only a successful write ends a failure");
        store.probe().await.expect("a write");
        assert_eq!((store.is_failed(), store.health()), (false, Health::Ok));
        store
            .flush(batch(vec![record(1, own, 3)]))
            .await
            .expect("a flush");
        store
            .keep(kept(vec![record(2, own, 3)]))
            .await
            .expect("a keep");
        store.append_change(change(1)).await.expect("a change");
        let image = crash_image(dir.path(), &KILLED);
        let (collected, _) = collect(&open(image.path()).store, Some(noon()));
        assert_eq!(
            (collected.charged(1, own), collected.charged(2, own)),
            (3, 3)
        );
    }
}

#[tokio::test]
async fn what_a_full_disk_refused_is_not_there_after_a_kill() {
    let dir = directory();
    let opened = open(dir.path());
    let (store, own) = (opened.store, opened.actors.own());
    store
        .keep(kept(vec![record(2, own, 1)]))
        .await
        .expect("a keep");
    store.inject(StoreFault::Full).await.expect("a fault");
    store
        .keep(kept(vec![record(2, own, 50)]))
        .await
        .expect_err("a refusal");
    store.append_change(change(1)).await.expect_err("a refusal");
    let image = crash_image(dir.path(), &KILLED);
    let again = open(image.path());
    assert_eq!(collect(&again.store, None).0.charged(2, own), 1);
    assert!(again.changes.is_empty());
}

#[tokio::test]
async fn free_pages_do_not_hide_a_full_disk() {
    let dir = directory();
    let opened = open(dir.path());
    let (store, own) = (opened.store, opened.actors.own());
    store
        .flush(batch((0..5_000).map(|key| record(key, own, 1)).collect()))
        .await
        .expect("a flush");
    // Folded and ended: what the journal took is free inside the file.
    tend_all(&store, after_noon(1_000)).await;
    store.inject(StoreFault::Full).await.expect("a fault");
    let refused = store
        .flush(batch(vec![record(1, own, 2)]))
        .await
        .expect_err("a refusal");
    assert!(
        refused
            .to_string()
            .contains("counters.db: database or disk is full"),
        "{refused}"
    );
}

#[tokio::test]
async fn a_damaged_file_fails_the_store_and_nothing_is_invented() {
    let dir = directory();
    let opened = open(dir.path());
    let (store, own) = (opened.store, opened.actors.own());
    store
        .flush(batch(vec![record(1, own, 1)]))
        .await
        .expect("a flush");
    let vandal = rusqlite::Connection::open(dir.path().join("counters.db")).expect("a connection");
    vandal
        .execute("UPDATE journal SET body = x'01ffffff'", [])
        .expect("damage");
    let error = store
        .restore(None, &mut Collected::default())
        .expect_err("damage is not skipped");
    assert!(error.to_string().contains("a group of changes"), "{error}");

    let error = store
        .tend(after_noon(10))
        .await
        .expect_err("a fold that cannot read");
    assert!(store.is_failed(), "{error}");
    store.probe().await.expect_err("the damage is still there");
    vandal.execute("DELETE FROM journal", []).expect("mended");
    store.probe().await.expect("a store that works");
    assert!(!store.is_failed());
}

#[tokio::test]
async fn a_file_that_is_locked_for_a_moment_is_waited_for() {
    let dir = directory();
    let opened = open(dir.path());
    let (store, own) = (opened.store, opened.actors.own());
    let mut other =
        rusqlite::Connection::open(dir.path().join("counters.db")).expect("a connection");
    let held = other
        .transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)
        .expect("a lock");
    let mut flush = std::pin::pin!(store.flush(batch(vec![record(1, own, 1)])));
    let early = tokio::time::timeout(std::time::Duration::from_millis(50), &mut flush).await;
    assert!(early.is_err(), "it waits for the lock");
    held.commit().expect("the lock is released");
    flush.await.expect("a flush");
    assert!(!store.is_failed());
}

#[tokio::test]
async fn a_file_that_has_vanished_is_not_made_anew() {
    let dir = directory();
    let opened = open(dir.path());
    let store = opened.store;
    store.inject(StoreFault::Errors).await.expect("a fault");
    store.clear_fault().await.expect("no fault");
    fs::remove_file(dir.path().join("log.db")).expect("a file");
    store
        .probe()
        .await
        .expect_err("there is nothing to write to");
    assert!(store.is_failed());
    assert!(!dir.path().join("log.db").exists());
}
