//! Directories that must not be opened, and that are as they were afterwards.
//!
//! "As they were" is byte for byte and name for name. A store that was killed is the hard case: it has a
//! write-ahead log that a careless look would check in and delete.

#[cfg(target_os = "linux")]
use std::os::unix::fs::PermissionsExt;

use rusqlite::Connection;

use super::*;
use crate::store::directory;
use crate::store::schema::COUNTERS;
use crate::store::schema::LOG;

/// A directory as a killed process leaves it, with a flush and a keep that only the write-ahead logs have.
async fn killed_store() -> TempDir {
    let dir = directory();
    let opened = open(dir.path());
    let own = opened.actors.own();
    opened
        .store
        .flush(batch(vec![record(1, own, 11)]))
        .await
        .expect("a flush");
    opened
        .store
        .keep(kept(vec![record(2, own, 22)]))
        .await
        .expect("a keep");
    let image = crash_image(dir.path(), &KILLED);
    fs::write(image.path().join("lock"), b"").expect("a lock file");
    image
}

fn has_all(dir: &Path) -> bool {
    let opened = open(dir);
    let (collected, _) = collect(&opened.store, Some(noon()));
    (
        collected.charged(1, ActorId(0)),
        collected.charged(2, ActorId(0)),
    ) == (11, 22)
}

/// Opens a directory that must be refused, and compares every byte in it.
fn refused(dir: &Path) -> OpenError {
    let before = contents(dir);
    let error = try_open(dir).expect_err("a refusal");
    let after = contents(dir);
    let names = |files: &BTreeMap<String, Vec<u8>>| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&before), names(&after), "{error}");
    assert!(before == after, "a file has changed: {error}");
    error
}

fn execute(file: &Path, sql: &str) {
    Connection::open(file)
        .expect("a database")
        .execute_batch(sql)
        .expect("a statement");
}

#[tokio::test]
async fn a_second_process_is_refused_until_the_first_is_gone() {
    let dir = directory();
    let opened = open(dir.path());
    let error = try_open(dir.path()).expect_err("a refusal");
    assert!(matches!(error, OpenError::InUse { .. }), "{error}");
    let clone = opened.store.clone();
    opened.store.close().await.expect("a close");
    let again = open(dir.path());
    drop((clone, again));
    assert_eq!(open(dir.path()).start, 3, "a dropped store is closed, too");
}

#[test]
fn a_directory_with_other_files_is_refused() {
    let dir = directory();
    fs::write(dir.path().join("photo.jpg"), b"not ours").expect("a file");
    let error = refused(dir.path());
    assert!(matches!(error, OpenError::Foreign { .. }), "{error}");
    assert!(error.to_string().contains("photo.jpg"), "{error}");
}

#[test]
fn an_empty_directory_a_missing_one_and_a_fresh_file_system_are_laid_out() {
    let dir = directory();
    fs::create_dir(dir.path().join("lost+found")).expect("a directory");
    assert_eq!(open(dir.path()).start, 1);
    assert_eq!(open(&dir.path().join("a/b")).start, 1);
}

#[test]
fn an_interrupted_first_start_is_begun_again_or_finished() {
    let dir = directory();
    fs::write(dir.path().join("log.db.new"), b"half").expect("a draft");
    fs::write(dir.path().join("log.db.new-wal"), b"half").expect("a draft's log");
    assert_eq!(open(dir.path()).start, 1);

    drop(open(dir.path()));
    fs::rename(dir.path().join("log.db"), dir.path().join("log.db.new"))
        .expect("as before the rename");
    assert_eq!(open(dir.path()).start, 3);
}

#[test]
fn a_path_that_cannot_be_a_directory_is_refused() {
    let dir = directory();
    let file = dir.path().join("file");
    fs::write(&file, b"text").expect("a file");
    for path in [file.clone(), file.join("below")] {
        let error = try_open(&path).expect_err("a refusal");
        assert!(matches!(error, OpenError::Unusable { .. }), "{error}");
    }
    assert_eq!(fs::read(&file).expect("the file"), b"text");
}

#[tokio::test]
async fn a_file_that_is_not_a_database_is_refused() {
    for (file, bytes) in [
        (
            "log.db",
            b"once upon a time, at some length, so that it is no header at all".as_slice(),
        ),
        ("log.db", b"SQLite format 3\0"),
        ("log.db", b""),
        ("counters.db", b""),
        ("counters.db", &[0; 8192]),
    ] {
        let image = killed_store().await;
        fs::write(image.path().join(file), bytes).expect("a file");
        let error = refused(image.path());
        assert!(matches!(error, OpenError::NotOurs { .. }), "{error}");
        assert!(error.to_string().contains(file), "{error}");
    }
}

#[tokio::test]
async fn a_database_of_another_program_is_refused() {
    let image = killed_store().await;
    fs::remove_file(image.path().join("log.db-wal")).expect("a file");
    fs::remove_file(image.path().join("log.db")).expect("a file");
    execute(
        &image.path().join("log.db"),
        "CREATE TABLE notes (text); INSERT INTO notes VALUES ('mine')",
    );
    let error = refused(image.path());
    assert!(matches!(error, OpenError::NotOurs { .. }), "{error}");
}

#[tokio::test]
async fn swapped_files_are_refused() {
    let image = killed_store().await;
    let (log, counters) = (
        image.path().join("log.db"),
        image.path().join("counters.db"),
    );
    let bytes = fs::read(&log).expect("a file");
    fs::write(&log, fs::read(&counters).expect("a file")).expect("a copy");
    fs::write(&counters, bytes).expect("a copy");
    let error = refused(image.path());
    assert!(matches!(error, OpenError::NotOurs { .. }), "{error}");
}

#[tokio::test]
async fn files_of_two_directories_are_refused() {
    let (image, other) = (killed_store().await, killed_store().await);
    for name in ["counters.db", "counters.db-wal"] {
        fs::copy(other.path().join(name), image.path().join(name)).expect("a copy");
    }
    let error = refused(image.path());
    assert!(matches!(error, OpenError::Incomplete { .. }), "{error}");
}

#[tokio::test]
async fn a_missing_file_is_not_made_anew() {
    for name in ["log.db", "counters.db"] {
        let image = killed_store().await;
        fs::remove_file(image.path().join(name)).expect("a file");
        let error = refused(image.path());
        assert!(matches!(error, OpenError::Incomplete { .. }), "{error}");
        assert!(error.to_string().contains(name), "{error}");
    }
}

#[tokio::test]
async fn a_newer_schema_is_refused_with_both_versions_even_from_the_write_ahead_log() {
    for (file, known) in [
        ("log.db", LOG.migrations.len()),
        ("counters.db", COUNTERS.migrations.len()),
    ] {
        let image = killed_store().await;
        let copy = directory();
        for (name, bytes) in contents(image.path()) {
            fs::write(copy.path().join(name), bytes).expect("a copy");
        }
        let newer = Connection::open(copy.path().join(file)).expect("a database");
        newer
            .pragma_update(None, "user_version", known + 41)
            .expect("a newer version");
        let killed = crash_image(copy.path(), &KILLED);
        fs::write(killed.path().join("lock"), b"").expect("a lock file");

        let error = refused(killed.path());
        assert!(matches!(error, OpenError::NewerSchema { .. }), "{error}");
        let text = error.to_string();
        assert!(
            text.contains(&(known + 41).to_string()) && text.contains(&known.to_string()),
            "{text}"
        );
    }
}

#[tokio::test]
async fn a_directory_of_another_region_is_refused_by_name() {
    let image = killed_store().await;
    let before = contents(image.path());
    let other = RegionName::new("eu-west-1").expect("a region's name");
    let error = Store::open(image.path(), &other, 1).expect_err("a refusal");
    assert!(matches!(error, OpenError::OtherRegion { .. }), "{error}");
    assert!(
        error.to_string().contains("us-east-1") && error.to_string().contains("eu-west-1"),
        "{error}"
    );
    assert!(before == contents(image.path()));
    assert!(has_all(image.path()));
}

#[test]
fn an_incarnation_is_used_once() {
    let dir = directory();
    drop(Store::open(dir.path(), &region(), 7).expect("a store"));
    let error = Store::open(dir.path(), &region(), 7).expect_err("a refusal");
    assert!(
        matches!(error, OpenError::IncarnationUsed { incarnation: 7, .. }),
        "{error}"
    );
}

/// Runs `work` as a user whom permission bits bind: root, as whom containers test, is another user on a
/// thread of its own meanwhile.
#[cfg(target_os = "linux")]
fn without_privileges<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let bound = scope.spawn(|| {
            if rustix::process::geteuid().is_root() {
                let nobody = rustix::process::Uid::from_raw(65_534);
                rustix::thread::set_thread_res_uid(nobody, nobody, nobody).expect("another user");
            }
            work()
        });
        bound.join().expect("no panic")
    })
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn what_cannot_be_written_is_refused_and_counts_are_intact_afterwards() {
    let set_mode = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("a mode");
    };
    for (directory_mode, file_mode, lock_mode) in [
        (0o555, 0o444, 0o444),
        (0o555, 0o666, 0o666),
        (0o777, 0o444, 0o444),
        (0o777, 0o444, 0o666),
    ] {
        let image = killed_store().await;
        for name in contents(image.path()).into_keys() {
            let mode = if name == "lock" { lock_mode } else { file_mode };
            set_mode(&image.path().join(name), mode);
        }
        set_mode(image.path(), directory_mode);
        let error = without_privileges(|| refused(image.path()));
        assert!(matches!(error, OpenError::Unusable { .. }), "{error}");
        set_mode(image.path(), 0o777);
        for name in contents(image.path()).into_keys() {
            set_mode(&image.path().join(name), 0o666);
        }
        assert!(has_all(image.path()));
    }
    let dir = directory();
    set_mode(dir.path(), 0o555);
    for path in [dir.path().to_owned(), dir.path().join("below")] {
        let error = without_privileges(|| try_open(&path)).expect_err("a refusal");
        assert!(matches!(error, OpenError::Unusable { .. }), "{error}");
    }
    assert!(contents(dir.path()).is_empty());
}

#[tokio::test]
async fn every_earlier_schema_is_brought_up_to_date() {
    for log_version in 1..=LOG.migrations.len() {
        for counter_version in 1..=COUNTERS.migrations.len() {
            let dir = directory();
            let owner = directory::Owner {
                region: region().to_string(),
                founder: 1,
            };
            let (log, counters) = (
                &LOG.migrations[..log_version],
                &COUNTERS.migrations[..counter_version],
            );
            directory::lay_out(dir.path(), &owner, log, counters, |_, _| Ok(()))
                .expect("an old directory");
            let opened = open(dir.path());
            let own = opened.actors.own();
            opened
                .store
                .flush(batch(vec![record(1, own, 11)]))
                .await
                .expect("a flush");
            opened
                .store
                .keep(kept(vec![record(2, own, 22)]))
                .await
                .expect("a keep");
            opened.store.close().await.expect("a close");
            assert!(has_all(dir.path()));
        }
    }
}
