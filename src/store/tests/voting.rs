//! The consensus tables: who a directory is, and a log that is there after a kill.

use std::sync::Arc;

use parking_lot::Mutex;

use super::*;
use crate::store::LogPlace;
use crate::store::RaftDone;
use crate::store::RaftMarks;
use crate::store::RaftWrite;
use crate::store::StoreFault;
use crate::store::StoredEntry;
use crate::store::StoredSnapshot;
use crate::store::StoredVote;
use crate::store::restore_backup;
use crate::store::schema;
use crate::store::schema::LOG;

fn place(term: u64, index: u64) -> LogPlace {
    LogPlace { term, index }
}

fn entry(term: u64, index: u64) -> StoredEntry {
    StoredEntry {
        place: place(term, index),
        body: index.to_be_bytes().to_vec(),
    }
}

fn append(term: u64, indexes: std::ops::Range<u64>) -> RaftWrite {
    RaftWrite::Append(indexes.map(|index| entry(term, index)).collect())
}

async fn write(store: &Store, write: RaftWrite) -> Result<(), StoreError> {
    let (to, answer) = tokio::sync::oneshot::channel();
    let done = RaftDone::new(move |outcome| drop(to.send(outcome)));
    store.raft_write(write, done).await;
    answer.await.expect("an answer")
}

async fn indexes(store: &Store, from: u64, to: u64, bytes_max: usize) -> Vec<u64> {
    let entries = store.raft_entries(from, to, bytes_max).await;
    let entries = entries.expect("entries");
    entries.iter().map(|entry| entry.place.index).collect()
}

#[tokio::test]
async fn a_log_is_there_after_a_kill_as_it_was_acknowledged() {
    let dir = directory();
    let opened = open(dir.path());
    let store = &opened.store;
    assert_eq!(store.raft_marks().await, Ok(RaftMarks::default()));
    let vote = StoredVote {
        term: 2,
        voter: u64::MAX - 5,
        is_committed: true,
    };
    write(store, RaftWrite::Vote(vote)).await.expect("a vote");
    write(store, append(1, 0..10)).await.expect("entries");
    let truncate = RaftWrite::Truncate { after: Some(6) };
    write(store, truncate).await.expect("a truncation");
    write(store, append(2, 7..12)).await.expect("entries");
    store.raft_committed(place(2, 9));
    write(store, RaftWrite::Purge(place(1, 3)))
        .await
        .expect("a purge");
    let snapshot = |index: u64| StoredSnapshot {
        index,
        meta: vec![1],
        body: index.to_be_bytes().to_vec(),
    };
    for index in [3, 8, 5] {
        write(store, RaftWrite::Snapshot(snapshot(index)))
            .await
            .expect("a snapshot");
    }
    let image = crash_image(dir.path(), &KILLED);
    let again = open(image.path());
    for store in [store, &again.store] {
        let marks = RaftMarks {
            vote: Some(vote),
            committed: Some(place(2, 9)),
            purged: Some(place(1, 3)),
            last: Some(place(2, 11)),
        };
        assert_eq!(store.raft_marks().await, Ok(marks));
        assert_eq!(
            indexes(store, 0, 100, usize::MAX).await,
            [4, 5, 6, 7, 8, 9, 10, 11]
        );
        assert_eq!(indexes(store, 5, 8, usize::MAX).await, [5, 6, 7]);
        assert_eq!(indexes(store, 5, 100, 16).await, [5, 6]);
        assert_eq!(indexes(store, 5, 100, 0).await, [5], "at least one");
        let newest = store.raft_snapshot().await;
        assert_eq!(
            newest,
            Ok(Some(snapshot(8))),
            "an older one does not replace it"
        );
    }
    write(store, RaftWrite::Purge(place(2, 20)))
        .await
        .expect("a purge ahead of the log");
    let marks = store.raft_marks().await.expect("marks");
    assert_eq!(marks.last, Some(place(2, 20)));
}

#[tokio::test]
async fn the_mark_of_what_is_committed_rides_on_other_writes_only() {
    let dir = directory();
    let opened = open(dir.path());
    let store = &opened.store;
    write(store, append(1, 0..5)).await.expect("entries");
    let commits = store.stats().commits;
    store.raft_committed(place(1, 3));
    store.raft_committed(place(1, 2));
    assert_eq!(store.raft_marks().await.expect("marks").committed, None);
    assert_eq!(store.stats().commits, commits, "it costs no commit");
    store.tend(noon()).await.expect("housekeeping");
    let committed = store.raft_marks().await.expect("marks").committed;
    assert_eq!(committed, Some(place(1, 3)));
}

#[tokio::test]
async fn answers_come_in_order_and_a_failed_file_refuses() {
    let dir = directory();
    let opened = open(dir.path());
    let store = &opened.store;
    let order: Arc<Mutex<Vec<u64>>> = Arc::default();
    for index in 0..300 {
        let order = Arc::clone(&order);
        let done = RaftDone::new(move |outcome| {
            outcome.expect("a write");
            order.lock().push(index);
        });
        store.raft_write(append(1, index..index + 1), done).await;
    }
    write(store, RaftWrite::Barrier).await.expect("a barrier");
    assert_eq!(*order.lock(), (0..300).collect::<Vec<u64>>());
    assert!(store.stats().commits < 300, "they share commits");

    assert_eq!(store.raft_refusal(), None);
    store.inject(StoreFault::Errors).await.expect("a fault");
    assert!(store.raft_refusal().is_some());
    write(store, append(1, 300..301))
        .await
        .expect_err("a refusal");
    store.set_cluster(1).await.expect_err("a refusal");
    store.clear_fault().await.expect("no fault");
    store.probe().await.expect("a probe");
    assert_eq!(store.raft_refusal(), None);
    write(store, append(1, 300..301)).await.expect("a write");
    assert_eq!(store.identity().cluster, None);

    let hole = write(store, append(1, 302..303)).await;
    assert!(matches!(hole, Err(StoreError::Refused { .. })), "{hole:?}");
    write(store, append(1, 301..303))
        .await
        .expect("what was missing");

    let store = opened.store.clone();
    store.close().await.expect("an end");
    let closed = write(&store, append(1, 303..304)).await;
    assert_eq!(closed, Err(StoreError::Closed));
}

#[tokio::test]
async fn a_directory_is_one_voter_of_one_cluster_for_life() {
    let dir = directory();
    let opened = open(dir.path());
    let voter = opened.store.identity().voter;
    assert_eq!(opened.store.identity().cluster, None);
    let cluster = u64::MAX - 1;
    opened.store.set_cluster(cluster).await.expect("a cluster");
    opened.store.set_cluster(cluster).await.expect("the same");
    let other = opened.store.set_cluster(7).await;
    assert!(
        matches!(other, Err(StoreError::Refused { .. })),
        "{other:?}"
    );
    opened.store.close().await.expect("an end");
    drop(opened);
    let again = open(dir.path()).store.identity();
    assert_eq!((again.voter, again.cluster), (voter, Some(cluster)));
    let elsewhere = directory();
    assert_ne!(open(elsewhere.path()).store.identity().voter, voter);
}

#[tokio::test]
async fn a_directory_of_the_first_schema_becomes_a_voter() {
    let dir = directory();
    open(dir.path()).store.close().await.expect("an end");
    let file = dir.path().join(LOG.file);
    // As the first schema left it: without anything that the second one made.
    let connection = rusqlite::Connection::open(&file).expect("a file");
    for table in [
        "identity",
        "raft_vote",
        "raft_marks",
        "raft_log",
        "raft_snapshot",
    ] {
        let drop = format!("DROP TABLE {table}");
        connection.execute(&drop, []).expect("a table");
    }
    connection
        .pragma_update(None, "user_version", 1)
        .expect("an older version");
    drop(connection);
    let opened = open(dir.path());
    assert_ne!(opened.store.identity().voter, 0);
    write(&opened.store, append(1, 0..1))
        .await
        .expect("entries");
    let connection = rusqlite::Connection::open(&file).expect("a file");
    let version = schema::version(&connection).expect("a version");
    assert_eq!(version, schema::version_of(LOG.migrations));
}

#[tokio::test]
async fn a_backup_carries_no_vote_no_log_and_no_identity() {
    let dir = directory();
    let opened = open(&dir.path().join("data"));
    let store = &opened.store;
    store.set_cluster(9).await.expect("a cluster");
    let vote = StoredVote {
        term: 2,
        voter: 1,
        is_committed: false,
    };
    write(store, RaftWrite::Vote(vote)).await.expect("a vote");
    write(store, append(1, 0..3)).await.expect("entries");
    let snapshot = StoredSnapshot {
        index: 1,
        meta: vec![1],
        body: vec![2],
    };
    write(store, RaftWrite::Snapshot(snapshot))
        .await
        .expect("a snapshot");
    store.raft_committed(place(1, 2));
    write(store, RaftWrite::Purge(place(1, 1)))
        .await
        .expect("a purge");
    let file = dir.path().join("backup.db");
    store.backup(&file).await.expect("a backup");
    for table in [
        "identity",
        "raft_vote",
        "raft_marks",
        "raft_log",
        "raft_snapshot",
    ] {
        assert!(
            count(&dir.path().join("data"), LOG.file, table) > 0,
            "{table}"
        );
        assert_eq!(count(dir.path(), "backup.db", table), 0, "{table}");
    }
    let target = dir.path().join("restored");
    restore_backup(&file, &target).expect("a restore");
    let restored = open(&target).store;
    assert_ne!(restored.identity().voter, store.identity().voter);
    assert_eq!(restored.identity().cluster, None);
    assert_eq!(restored.raft_marks().await, Ok(RaftMarks::default()));
    assert_eq!(restored.raft_snapshot().await, Ok(None));
}
