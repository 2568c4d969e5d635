//! The two database files: names, marks, migrations and connection settings.
//!
//! Migrations are numbered and go forward only; `PRAGMA user_version` is the number of the last one that
//! ran, and each runs in one transaction with the rise of that number, so an interrupted migration has
//! not happened. A published migration is never edited: a change is a new file.

use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;
use rusqlite::OpenFlags;
use rusqlite::TransactionBehavior;

/// Everything that tells one of the two files from the other.
#[derive(Debug)]
pub(super) struct Schema {
    /// Name in the data directory.
    pub file: &'static str,
    /// Name while the file is being made; a file that is complete is renamed.
    pub draft: &'static str,
    /// What the file is, in messages.
    pub kind: &'static str,
    /// `PRAGMA application_id`: bytes 68 to 71 of the file.
    pub application_id: u32,
    /// All migrations, the first one first.
    pub migrations: &'static [&'static str],
    /// Tables that a backup carries.
    pub tables: &'static [&'static str],
    /// Table of one row that says whose file this is.
    pub meta: &'static str,
    /// Writes `?1` bytes of scratch.
    pub probe_fill: &'static str,
    /// Removes the scratch.
    pub probe_clear: &'static str,
    settings: &'static str,
}

/// The log file: catalogue, answers, sync records, consensus. Acknowledged means on disk.
pub(super) static LOG: Schema = Schema {
    file: "log.db",
    draft: "log.db.new",
    kind: "log",
    application_id: 0x4857_4c47,
    migrations: &[
        include_str!("../../migrations/log/0001_initial.sql"),
        include_str!("../../migrations/log/0002_consensus.sql"),
    ],
    // Not the tables of consensus and not the identity: who restores a backup is a new voter.
    tables: &[
        "log_meta", "actors", "snapshot", "changes", "answers", "sync",
    ],
    meta: "log_meta",
    probe_fill: "INSERT OR REPLACE INTO log_probe (id, fill) VALUES (1, zeroblob(?1))",
    probe_clear: "DELETE FROM log_probe",
    settings: "PRAGMA synchronous = FULL; PRAGMA cache_size = -4096;",
};

/// The counter file. A power cut may lose its last commits, a kill of the process may not.
pub(super) static COUNTERS: Schema = Schema {
    file: "counters.db",
    draft: "counters.db.new",
    kind: "counter",
    application_id: 0x4857_4354,
    migrations: &[include_str!("../../migrations/counters/0001_initial.sql")],
    tables: &["counter_meta", "journal", "counters", "holds"],
    meta: "counter_meta",
    probe_fill: "INSERT OR REPLACE INTO counter_probe (id, fill) VALUES (1, zeroblob(?1))",
    probe_clear: "DELETE FROM counter_probe",
    // The fold writes rows in key order, so a small cache does; 64 MiB would show in memory per key.
    settings: "PRAGMA synchronous = NORMAL; PRAGMA cache_size = -16384;",
};

/// Settings of every connection. The busy timeout only matters when something outside reads or writes:
/// one process has the directory, and one thread writes each file.
///
/// That thread checkpoints by itself at 16 MiB. A thread of its own for that was tried: under steady commits
/// it never catches up, so the write-ahead log grows instead of being written over, and growing files
/// nearly double the time of a synced commit.
const COMMON_SETTINGS: &str = "PRAGMA mmap_size = 0; PRAGMA temp_store = MEMORY; PRAGMA foreign_keys = ON; \
     PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON; PRAGMA wal_autocheckpoint = 4000; \
     PRAGMA journal_size_limit = 67108864;";
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
const STATEMENTS_CACHED_MAX: usize = 32;

/// The version of a list of migrations: how many there are.
pub(super) fn version_of(migrations: &[&str]) -> u32 {
    u32::try_from(migrations.len()).unwrap_or(u32::MAX)
}

/// Opens an existing file for its writer. Never creates one: a vanished file is an error.
pub(super) fn open_writer(path: &Path, schema: &Schema) -> rusqlite::Result<Connection> {
    let connection = Connection::open_with_flags(
        path,
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX,
    )?;
    settle(&connection)?;
    connection.execute_batch(schema.settings)?;
    Ok(connection)
}

/// Opens an existing file for reading beside its writer.
pub(super) fn open_reader(path: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open_with_flags(
        path,
        OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX,
    )?;
    settle(&connection)?;
    Ok(connection)
}

/// Makes a new, empty file with the first `version` migrations. `path` must not exist.
pub(super) fn create(
    path: &Path,
    schema: &Schema,
    migrations: &[&str],
) -> rusqlite::Result<Connection> {
    let mut connection = Connection::open_with_flags(
        path,
        OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX,
    )?;
    settle(&connection)?;
    connection.pragma_update(None, "page_size", 4096)?;
    connection.pragma_update(None, "application_id", schema.application_id)?;
    connection
        .pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get::<_, String>(0))?;
    connection.execute_batch(schema.settings)?;
    migrate(&mut connection, migrations)?;
    Ok(connection)
}

fn settle(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS_CACHED_MAX);
    connection.execute_batch(COMMON_SETTINGS)
}

/// The number of the last migration that ran in a file.
pub(super) fn version(connection: &Connection) -> rusqlite::Result<u32> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}

/// Runs the migrations that have not run yet. The caller has refused a newer file before.
pub(super) fn migrate(connection: &mut Connection, migrations: &[&str]) -> rusqlite::Result<()> {
    let done = version(connection)?;
    for (number, sql) in (1_u32..)
        .zip(migrations)
        .filter(|(number, _)| *number > done)
    {
        let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        tx.execute_batch(sql)?;
        tx.pragma_update(None, "user_version", number)?;
        tx.commit()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::migrate;
    use super::version;

    /// A made-up history, because the real ones are short.
    const HISTORY: [&str; 3] = [
        "CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT NOT NULL) STRICT;",
        "ALTER TABLE notes ADD COLUMN author TEXT NOT NULL DEFAULT 'nobody';",
        "CREATE TABLE authors (name TEXT PRIMARY KEY) STRICT, WITHOUT ROWID; \
         INSERT INTO authors SELECT DISTINCT author FROM notes;",
    ];

    fn schema_text(connection: &Connection) -> Vec<String> {
        let mut select = connection
            .prepare("SELECT sql FROM sqlite_schema ORDER BY name")
            .unwrap();
        select
            .query_map([], |row| row.get(0))
            .unwrap()
            .collect::<rusqlite::Result<_>>()
            .unwrap()
    }

    #[test]
    fn every_earlier_version_ends_in_the_same_schema_and_keeps_its_rows() {
        let mut fresh = Connection::open_in_memory().unwrap();
        migrate(&mut fresh, &HISTORY).unwrap();
        for earlier in 1..=HISTORY.len() {
            let mut old = Connection::open_in_memory().unwrap();
            migrate(&mut old, &HISTORY[..earlier]).unwrap();
            old.execute("INSERT INTO notes (text) VALUES ('kept')", [])
                .unwrap();
            migrate(&mut old, &HISTORY).unwrap();
            assert_eq!(version(&old).unwrap(), 3);
            assert_eq!(schema_text(&old), schema_text(&fresh));
            let text: String = old
                .query_row("SELECT text FROM notes", [], |row| row.get(0))
                .unwrap();
            assert_eq!(text, "kept");
        }
    }

    #[test]
    fn a_migration_that_fails_has_not_happened() {
        let mut connection = Connection::open_in_memory().unwrap();
        let broken = [
            HISTORY[0],
            "CREATE TABLE half (id); INSERT INTO nowhere VALUES (1);",
        ];
        migrate(&mut connection, &broken).expect_err("a broken migration");
        assert_eq!(version(&connection).unwrap(), 1);
        assert_eq!(schema_text(&connection).len(), 1);
        migrate(&mut connection, &HISTORY).unwrap();
        assert_eq!(version(&connection).unwrap(), 3);
    }
}
