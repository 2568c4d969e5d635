//! One file with everything in it, and a fresh directory from such a file.
//!
//! A backup is an SQLite file with the tables of both files and one row that says what it is. It is copied
//! from one view of each file while the region works on. Both views are taken while the writer of the log
//! file holds still: no charge can then be in the copy that rests on a change which is not.
//!
//! A restored directory keeps the actors and the count of starts, so that the next start is a new actor.

use std::fs;
use std::fs::OpenOptions;
use std::path::Path;
use std::path::PathBuf;
use std::sync::mpsc;

use rusqlite::Connection;
use rusqlite::OpenFlags;
use thiserror::Error;

use crate::domain::name::RegionName;
use crate::store::Inner;
use crate::store::directory;
use crate::store::directory::Owner;
use crate::store::error::OpenError;
use crate::store::error::StoreError;
use crate::store::format::decode_header;
use crate::store::schema;
use crate::store::schema::COUNTERS;
use crate::store::schema::LOG;
use crate::store::schema::Schema;
use crate::store::writer::Control;
use crate::store::writer::Message;

/// `PRAGMA application_id` of a backup.
const APPLICATION_ID: u32 = 0x4857_424b;
/// Version of the layout of a backup itself; its tables have the versions of their files.
const FORMAT: u32 = 1;

const LAYOUT: &str = "CREATE TABLE highwater_backup (
    one             INTEGER PRIMARY KEY CHECK (one = 1),
    format          INTEGER NOT NULL,
    region          TEXT    NOT NULL,
    log_schema      INTEGER NOT NULL,
    counters_schema INTEGER NOT NULL
) STRICT;";

/// Why a backup was not made or not restored.
#[derive(Debug, Error)]
pub enum BackupError {
    /// The file to be written is there already.
    #[error("{} exists already", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The file to be read is not a backup that this program knows.
    #[error("{} cannot be restored: {reason}", path.display())]
    NotABackup {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The backup file cannot be read or written.
    #[error("{}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the operating system or SQLite said.
        reason: String,
    },
    /// The directory to restore into cannot be used.
    #[error(transparent)]
    Directory(#[from] OpenError),
    /// The store cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl BackupError {
    fn file(path: &Path, reason: &(impl ToString + ?Sized)) -> Self {
        Self::File {
            path: path.to_owned(),
            reason: reason.to_string(),
        }
    }
}

/// Copies the store into a new file at `to`; see [`crate::store::Store::backup`].
pub(super) fn backup(store: &Inner, to: &Path) -> Result<u64, BackupError> {
    if to
        .try_exists()
        .map_err(|error| BackupError::file(to, &error))?
    {
        return Err(BackupError::Exists {
            path: to.to_owned(),
        });
    }
    let mut partial = to.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let copied = copy(store, &partial).and_then(|()| {
        directory::sync_file(&partial)?;
        let bytes = fs::metadata(&partial)
            .map_err(|error| BackupError::file(&partial, &error))?
            .len();
        fs::rename(&partial, to).map_err(|error| BackupError::file(to, &error))?;
        if let Some(parent) = to.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            directory::sync_directory(parent)?;
        }
        Ok(bytes)
    });
    if copied.is_err() {
        // What is left of a copy that failed is of no use; the failure is what is reported.
        fs::remove_file(&partial).ok();
    }
    copied
}

fn copy(store: &Inner, to: &Path) -> Result<(), BackupError> {
    let failed = |error: rusqlite::Error| BackupError::file(to, &error);
    // Made here and not by SQLite, which would let others read it.
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
        .open(to)
        .map_err(|error| BackupError::file(to, &error))?;

    let mut connection = open_with(to, OpenFlags::SQLITE_OPEN_READ_WRITE).map_err(failed)?;
    // Until it is whole and synced the copy has another name, so nothing is lost with a power cut.
    connection
        .execute_batch(
            "PRAGMA journal_mode = MEMORY; PRAGMA synchronous = OFF; PRAGMA page_size = 4096;",
        )
        .map_err(failed)?;
    connection
        .pragma_update(None, "application_id", APPLICATION_ID)
        .map_err(failed)?;
    for (name, path) in [("log", &store.log_path), ("counters", &store.counter_path)] {
        let path = path
            .to_str()
            .ok_or_else(|| BackupError::file(path, "the path is not UTF-8"))?;
        connection
            .execute(&format!("ATTACH ?1 AS {name}"), [path])
            .map_err(failed)?;
    }
    let tx = connection.transaction().map_err(failed)?;
    take_views(store, &tx)?;
    for (name, schema) in [("log", &LOG), ("counters", &COUNTERS)] {
        for sql in schema.migrations {
            tx.execute_batch(sql).map_err(failed)?;
        }
        copy_tables(&tx, name, "main", schema).map_err(failed)?;
    }
    tx.execute_batch(LAYOUT).map_err(failed)?;
    let row = "INSERT INTO highwater_backup (one, format, region, log_schema, counters_schema) \
               VALUES (1, ?1, ?2, ?3, ?4)";
    let versions = [LOG.migrations, COUNTERS.migrations].map(schema::version_of);
    tx.execute(
        row,
        (FORMAT, store.region.as_str(), versions[0], versions[1]),
    )
    .map_err(failed)?;
    tx.commit().map_err(failed)
}

/// Fixes what the transaction sees of both files, while nothing is written to the log file.
fn take_views(store: &Inner, tx: &Connection) -> Result<(), BackupError> {
    let (reached, wait_until_reached) = mpsc::sync_channel(1);
    let (release, wait_for_release) = mpsc::channel();
    let pin = Control::Pin {
        reached,
        release: wait_for_release,
    };
    store
        .log
        .blocking_send(Message::Control(pin))
        .map_err(|_| StoreError::Closed)?;
    wait_until_reached.recv().map_err(|_| StoreError::Closed)?;
    for (name, schema) in [("log", &LOG), ("counters", &COUNTERS)] {
        let first_read = format!("SELECT count(*) FROM {name}.{}", schema.meta);
        tx.query_row(&first_read, [], |row| row.get::<_, i64>(0))
            .map_err(StoreError::from)?;
    }
    drop(release);
    Ok(())
}

fn copy_tables(
    connection: &Connection,
    from: &str,
    to: &str,
    schema: &Schema,
) -> rusqlite::Result<()> {
    for table in schema.tables {
        connection.execute(&format!("DELETE FROM {to}.{table}"), [])?;
        // Both sides were made by the same migrations, so the columns are the same in number and order.
        connection.execute(
            &format!("INSERT INTO {to}.{table} SELECT * FROM {from}.{table}"),
            [],
        )?;
    }
    Ok(())
}

fn open_with(path: &Path, flags: OpenFlags) -> rusqlite::Result<Connection> {
    Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)
}

/// What a backup says about itself.
struct Contents {
    region: RegionName,
    founder: i64,
    log_migrations: &'static [&'static str],
    counter_migrations: &'static [&'static str],
}

/// Makes `data_dir`, which must be empty or not there, from a backup; answers whose it is. Blocks.
///
/// # Errors
/// When the file is not a backup, is of a newer program, or when the directory is not free.
pub fn restore_backup(file: &Path, data_dir: &Path) -> Result<RegionName, BackupError> {
    let contents = read_contents(file)?;
    directory::make_directory(data_dir)?;
    directory::refuse_occupied(data_dir)?;
    let _lock = directory::take_lock(data_dir)?;
    directory::refuse_occupied(data_dir)?;
    let path = file
        .to_str()
        .ok_or_else(|| BackupError::file(file, "the path is not UTF-8"))?;
    let owner = Owner {
        region: contents.region.to_string(),
        founder: contents.founder,
    };
    directory::lay_out(
        data_dir,
        &owner,
        contents.log_migrations,
        contents.counter_migrations,
        |log, counters| {
            for (connection, schema) in [(log, &LOG), (counters, &COUNTERS)] {
                connection.execute("ATTACH ?1 AS backup", [path])?;
                let tx = connection.unchecked_transaction()?;
                copy_tables(&tx, "backup", "main", schema)?;
                tx.commit()?;
                connection.execute("DETACH backup", [])?;
            }
            Ok(())
        },
    )?;
    Ok(contents.region)
}

fn read_contents(file: &Path) -> Result<Contents, BackupError> {
    let not_a_backup = |reason: &dyn ToString| BackupError::NotABackup {
        path: file.to_owned(),
        reason: reason.to_string(),
    };
    let bytes = directory::first_bytes(file)?;
    let header = decode_header(&bytes).map_err(|garbled| not_a_backup(&garbled.reason))?;
    if header.application_id != APPLICATION_ID {
        return Err(not_a_backup(
            &"it is a database, but not a Highwater backup",
        ));
    }
    let read = || -> rusqlite::Result<(u32, String, u32, u32, i64)> {
        let connection = open_with(file, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        let damage: String =
            connection.pragma_query_value(None, "quick_check", |row| row.get(0))?;
        if damage != "ok" {
            let error = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT);
            return Err(rusqlite::Error::SqliteFailure(error, Some(damage)));
        }
        connection.query_row(
            "SELECT format, highwater_backup.region, log_schema, counters_schema, founder \
             FROM highwater_backup, log_meta",
            [],
            |row| {
                Ok((
                    row.get(0)?,
                    row.get(1)?,
                    row.get(2)?,
                    row.get(3)?,
                    row.get(4)?,
                ))
            },
        )
    };
    let (format, region, log_schema, counters_schema, founder) =
        read().map_err(|error| not_a_backup(&error))?;
    if format != FORMAT {
        return Err(not_a_backup(&format!(
            "its format is {format}, this program knows {FORMAT}"
        )));
    }
    let known = |schema: &Schema, version: u32| {
        let count = usize::try_from(version).unwrap_or(usize::MAX);
        schema.migrations.get(..count).ok_or_else(|| {
            let newest = schema::version_of(schema.migrations);
            not_a_backup(&format!(
                "its {} schema is {version}, this program knows {newest}",
                schema.kind
            ))
        })
    };
    Ok(Contents {
        region: RegionName::new(&region).map_err(|error| not_a_backup(&error))?,
        founder,
        log_migrations: known(&LOG, log_schema)?,
        counter_migrations: known(&COUNTERS, counters_schema)?,
    })
}
