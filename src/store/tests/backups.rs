//! A backup taken while the store works becomes a directory that holds the same.

use std::path::PathBuf;

use super::*;
use crate::store::BackupError;
use crate::store::restore_backup;

/// A store with something in every table.
async fn full_store(dir: &Path) -> Opened {
    let opened = open(dir);
    let own = opened.actors.own();
    let store = &opened.store;
    store
        .append_change(Change {
            snapshot: Some(vec![1, 2, 3]),
            ..change(1)
        })
        .await
        .expect("a change");
    store.append_change(change(2)).await.expect("a change");
    store
        .flush(batch((0..100).map(|key| record(key, own, 1)).collect()))
        .await
        .expect("a flush");
    store
        .flush(Batch {
            holds: vec![hold(1, 1)],
            ..batch(vec![])
        })
        .await
        .expect("a flush");
    tend_all(store, after_noon(6)).await;
    store
        .flush(batch(vec![record(1, own, 2)]))
        .await
        .expect("a flush");
    let kept = Kept {
        answers: vec![answer(1)],
        holds: vec![hold(2, 1)],
        ..kept(vec![record(2, own, 3)])
    };
    store.keep(kept).await.expect("a keep");
    opened
}

async fn backup_of_full_store() -> (TempDir, PathBuf, Collected) {
    let dir = directory();
    let opened = full_store(&dir.path().join("data")).await;
    let file = dir.path().join("backup.db");
    let bytes = opened.store.backup(&file).await.expect("a backup");
    assert_eq!(bytes, fs::metadata(&file).expect("the file").len());
    let collected = collect(&opened.store, Some(noon())).0;
    (dir, file, collected)
}

#[tokio::test]
async fn a_backup_becomes_a_directory_with_the_same_state_and_a_new_actor() {
    let (dir, file, expected) = backup_of_full_store().await;
    assert_eq!(
        (
            expected.counters.len(),
            expected.holds.len(),
            expected.answers.len()
        ),
        (100, 2, 1)
    );
    let target = dir.path().join("restored");
    assert_eq!(restore_backup(&file, &target).expect("a restore"), region());
    let opened = open(&target);
    assert_eq!(collect(&opened.store, Some(noon())).0, expected);
    assert_eq!((opened.start, opened.actors.own()), (2, ActorId(1)));
    assert_eq!(opened.last_time, Some(noon()));
    assert_eq!(opened.catalogue.expect("a snapshot").body, [1, 2, 3]);
    assert_eq!(opened.changes.len(), 1);
    assert_eq!(opened.store.audit(0, 10).await.expect("the audit").len(), 2);
    let mut names: Vec<String> = contents(dir.path().join("data").as_path())
        .into_keys()
        .collect();
    names.retain(|name| name.contains("partial"));
    assert!(names.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_beside_traffic_has_all_that_was_acknowledged_before() {
    let dir = directory();
    let opened = open(&dir.path().join("data"));
    let (store, own) = (opened.store.clone(), opened.actors.own());
    let traffic = {
        let store = store.clone();
        tokio::spawn(async move {
            for p in 1.. {
                if store.keep(kept(vec![record(1, own, p)])).await.is_err() {
                    return;
                }
                let covers = Some(store.sync_mark());
                let flushed = store
                    .flush(Batch {
                        covers,
                        ..batch(vec![record(1, own, p)])
                    })
                    .await;
                if flushed.is_err() || store.tend(noon()).await.is_err() {
                    return;
                }
            }
        })
    };
    for number in 0..5 {
        let before = collect(&store, Some(noon())).0.charged(1, own);
        let file = dir.path().join(format!("backup-{number}"));
        store.backup(&file).await.expect("a backup");
        let target = dir.path().join(format!("restored-{number}"));
        restore_backup(&file, &target).expect("a restore");
        let restored = collect(&open(&target).store, Some(noon()))
            .0
            .charged(1, own);
        assert!(restored >= before, "{restored} of {before}");
    }
    store.close().await.expect("a close");
    traffic.await.expect("the traffic ends");
}

#[tokio::test]
async fn a_backup_overwrites_nothing() {
    let (dir, file, _) = backup_of_full_store().await;
    let opened = open(&dir.path().join("other"));
    let error = opened.store.backup(&file).await.expect_err("a refusal");
    assert!(matches!(error, BackupError::Exists { .. }), "{error}");
    let error = opened
        .store
        .backup(&dir.path().join("no/such/place"))
        .await
        .expect_err("a refusal");
    assert!(matches!(error, BackupError::File { .. }), "{error}");
}

#[tokio::test]
async fn a_restore_goes_into_a_free_directory_only() {
    let (dir, file, _) = backup_of_full_store().await;
    for (name, said) in [
        ("data", "holds a region's data"),
        ("foreign", "holds \"photo.jpg\" and no Highwater data"),
    ] {
        let target = dir.path().join(name);
        fs::create_dir_all(&target).expect("a directory");
        if name == "foreign" {
            fs::write(target.join("photo.jpg"), b"mine").expect("a file");
        }
        let before = contents(&target);
        let error = restore_backup(&file, &target).expect_err("a refusal");
        assert!(error.to_string().contains(said), "{error}");
        assert!(before == contents(&target));
    }
}

#[tokio::test]
async fn what_is_not_a_backup_is_refused_and_makes_no_directory() {
    let (dir, file, _) = backup_of_full_store().await;
    let text = dir.path().join("text");
    fs::write(&text, b"no backup").expect("a file");
    let newer = dir.path().join("newer");
    fs::copy(&file, &newer).expect("a copy");
    let connection = rusqlite::Connection::open(&newer).expect("a database");
    connection
        .execute("UPDATE highwater_backup SET log_schema = 99", [])
        .expect("a newer schema");
    let data_file = dir.path().join("data/log.db");
    for (file, message) in [
        (&text, "not an SQLite"),
        (&newer, "99"),
        (&data_file, "not a Highwater backup"),
    ] {
        let target = dir.path().join("target");
        let error = restore_backup(file, &target).expect_err("a refusal");
        assert!(matches!(error, BackupError::NotABackup { .. }), "{error}");
        assert!(error.to_string().contains(message), "{error}");
        assert!(!target.exists());
    }
    let error = restore_backup(&dir.path().join("nowhere"), &dir.path().join("target"));
    assert!(error.is_err());
}
