//! The data directory: whose it is, who has it open, and whether its files are sound enough to open.
//!
//! Everything that can refuse a directory runs before anything writes to it. The first bytes of both files
//! are read without SQLite, which would roll back or checkpoint a file that is not ours; then the schema
//! version and the owner are read through a connection that leaves file and write-ahead log as they are.
//!
//! Files are made under a draft name and renamed when they are whole, counters first, so that a start that
//! was interrupted at any point either begins again or is finished by the next one. An existing file that
//! is empty is therefore damage, never a fresh start.

use std::fs;
use std::fs::File;
use std::fs::OpenOptions;
use std::fs::TryLockError;
use std::io::Read;
use std::path::Path;
use std::path::PathBuf;

use rusqlite::Connection;
use rusqlite::ErrorCode;
use rusqlite::OpenFlags;
use rusqlite::config::DbConfig;

use crate::domain::name::RegionName;
use crate::store::error::OpenError;
use crate::store::format::HEADER_BYTES;
use crate::store::format::decode_header;
use crate::store::schema;
use crate::store::schema::COUNTERS;
use crate::store::schema::LOG;
use crate::store::schema::Schema;

const LOCK: &str = "lock";
/// What SQLite puts beside a database.
const SIDE_FILES: [&str; 3] = ["-wal", "-shm", "-journal"];
/// The root of a fresh file system is as good as empty.
const IGNORED: [&str; 1] = ["lost+found"];

/// A directory that is locked, vetted, and holds both files.
pub(super) struct Directory {
    pub log: PathBuf,
    pub counters: PathBuf,
    pub lock: File,
}

/// Whose files these are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    pub region: String,
    /// Incarnation of the first start, as the two files share it.
    pub founder: i64,
}

/// Locks and vets `dir`, and lays it out when it is new.
pub(super) fn open(
    dir: &Path,
    region: &RegionName,
    incarnation: u64,
) -> Result<Directory, OpenError> {
    make_directory(dir)?;
    refuse_foreign(dir)?;
    let lock = take_lock(dir)?;
    // Another process may have laid it out between the look and the lock.
    refuse_foreign(dir)?;
    let (log, counters) = (dir.join(LOG.file), dir.join(COUNTERS.file));
    if !exists(&log)? && exists(&counters)? && exists(&dir.join(LOG.draft))? {
        // The last start was interrupted between its two renames.
        rename(&dir.join(LOG.draft), &log)?;
    }
    match (exists(&log)?, exists(&counters)?) {
        (true, true) => vet(dir, region)?,
        (false, false) => {
            let owner = Owner {
                region: region.to_string(),
                founder: incarnation.cast_signed(),
            };
            lay_out(dir, &owner, LOG.migrations, COUNTERS.migrations, |_, _| {
                Ok(())
            })?;
        }
        (true, false) => return Err(incomplete(dir, "counters.db is missing")),
        (false, true) => return Err(incomplete(dir, "log.db is missing")),
    }
    Ok(Directory {
        log,
        counters,
        lock,
    })
}

fn incomplete(dir: &Path, reason: &str) -> OpenError {
    OpenError::Incomplete {
        dir: dir.to_owned(),
        reason: reason.to_owned(),
    }
}

fn exists(path: &Path) -> Result<bool, OpenError> {
    path.try_exists()
        .map_err(|error| OpenError::unusable(path, &error))
}

fn rename(from: &Path, to: &Path) -> Result<(), OpenError> {
    fs::rename(from, to).map_err(|error| OpenError::unusable(to, &error))
}

/// Makes `dir` when it is not there, readable by its owner only: it will hold tenants and keys.
pub(super) fn make_directory(dir: &Path) -> Result<(), OpenError> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder
        .create(dir)
        .map_err(|error| OpenError::unusable(dir, &error))
}

/// A directory is ours when it has one of our files, and free when it has nothing at all.
fn refuse_foreign(dir: &Path) -> Result<(), OpenError> {
    match first_foreign_name(dir)? {
        Some(found) if !exists(&dir.join(LOG.file))? && !exists(&dir.join(COUNTERS.file))? => {
            Err(OpenError::Foreign {
                dir: dir.to_owned(),
                found,
            })
        }
        Some(_) | None => Ok(()),
    }
}

fn first_foreign_name(dir: &Path) -> Result<Option<String>, OpenError> {
    let unusable = |error| OpenError::unusable(dir, &error);
    for entry in fs::read_dir(dir).map_err(unusable)? {
        let name = entry
            .map_err(unusable)?
            .file_name()
            .to_string_lossy()
            .into_owned();
        if !(is_own_name(&name) || IGNORED.contains(&name.as_str())) {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

fn is_own_name(name: &str) -> bool {
    let is_database =
        |name: &str| [LOG.file, LOG.draft, COUNTERS.file, COUNTERS.draft].contains(&name);
    name == LOCK
        || is_database(name)
        || SIDE_FILES
            .iter()
            .any(|side| name.strip_suffix(side).is_some_and(is_database))
}

/// Refuses a directory that a restored backup could mix with.
pub(super) fn refuse_occupied(dir: &Path) -> Result<(), OpenError> {
    refuse_foreign(dir)?;
    for schema in [&LOG, &COUNTERS] {
        if exists(&dir.join(schema.file))? {
            return Err(OpenError::Occupied {
                dir: dir.to_owned(),
            });
        }
    }
    Ok(())
}

/// Takes the directory for this process; the lock ends with the last handle, so also with a kill.
pub(super) fn take_lock(dir: &Path) -> Result<File, OpenError> {
    let path = dir.join(LOCK);
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path);
    let file = opened.map_err(|error| OpenError::unusable(&path, &error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse {
            dir: dir.to_owned(),
        }),
        Err(TryLockError::Error(error)) => Err(OpenError::unusable(&path, &error)),
    }
}

/// Makes both files with the given migrations and lets `fill` write into them before they get their names.
pub(super) fn lay_out(
    dir: &Path,
    owner: &Owner,
    log_migrations: &[&str],
    counter_migrations: &[&str],
    fill: impl FnOnce(&Connection, &Connection) -> rusqlite::Result<()>,
) -> Result<(), OpenError> {
    let (log, counters) = (dir.join(LOG.draft), dir.join(COUNTERS.draft));
    remove_draft(&log)?;
    remove_draft(&counters)?;
    let made = || -> rusqlite::Result<()> {
        let log_file = schema::create(&log, &LOG, log_migrations)?;
        let counter_file = schema::create(&counters, &COUNTERS, counter_migrations)?;
        let own = "INSERT INTO log_meta (one, region, founder, starts) VALUES (1, ?1, ?2, 0)";
        log_file.execute(own, (&owner.region, owner.founder))?;
        let own = "INSERT INTO counter_meta (one, region, founder) VALUES (1, ?1, ?2)";
        counter_file.execute(own, (&owner.region, owner.founder))?;
        fill(&log_file, &counter_file)?;
        // Closing checkpoints, so that a file under its final name needs nothing beside it.
        log_file.close().map_err(|(_, error)| error)?;
        counter_file.close().map_err(|(_, error)| error)
    };
    made().map_err(|error| OpenError::unusable(dir, &error))?;
    for draft in [&counters, &log] {
        sync_file(draft)?;
    }
    rename(&counters, &dir.join(COUNTERS.file))?;
    rename(&log, &dir.join(LOG.file))?;
    sync_directory(dir)
}

fn remove_draft(draft: &Path) -> Result<(), OpenError> {
    let sides = SIDE_FILES.iter().map(|side| {
        let mut name = draft.as_os_str().to_owned();
        name.push(side);
        PathBuf::from(name)
    });
    for path in std::iter::once(draft.to_owned()).chain(sides) {
        match fs::remove_file(&path) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(OpenError::unusable(path, &error)),
        }
    }
    Ok(())
}

pub(super) fn sync_file(path: &Path) -> Result<(), OpenError> {
    let synced = OpenOptions::new()
        .write(true)
        .open(path)
        .and_then(|file| file.sync_all());
    synced.map_err(|error| OpenError::unusable(path, &error))
}

/// Makes the names in `dir` as durable as the files, where the system lets a directory be opened.
pub(super) fn sync_directory(dir: &Path) -> Result<(), OpenError> {
    if cfg!(unix) {
        File::open(dir)
            .and_then(|file| file.sync_all())
            .map_err(|error| OpenError::unusable(dir, &error))?;
    }
    Ok(())
}

fn vet(dir: &Path, region: &RegionName) -> Result<(), OpenError> {
    let log = inspect(&dir.join(LOG.file), &LOG)?;
    let counters = inspect(&dir.join(COUNTERS.file), &COUNTERS)?;
    if log.region != region.as_str() {
        let asked = region.to_string();
        return Err(OpenError::OtherRegion {
            dir: dir.to_owned(),
            found: log.region,
            asked,
        });
    }
    if log != counters {
        return Err(incomplete(
            dir,
            "log.db and counters.db do not belong together",
        ));
    }
    Ok(())
}

/// Whose file this is, if it is a sound file of this kind that this program can read and write.
fn inspect(path: &Path, schema: &Schema) -> Result<Owner, OpenError> {
    let not_ours = |reason: String| OpenError::NotOurs {
        path: path.to_owned(),
        kind: schema.kind,
        reason,
    };
    let header = decode_header(&first_bytes(path)?).map_err(|garbled| not_ours(garbled.reason))?;
    if header.application_id != schema.application_id {
        return Err(not_ours(format!(
            "its application id is {:#010x}",
            header.application_id
        )));
    }
    let (connection, found) = look(path).map_err(|error| match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => not_ours(error.to_string()),
        _ => OpenError::unusable(path, &error),
    })?;
    let known = schema::version_of(schema.migrations);
    if found > known {
        return Err(OpenError::NewerSchema {
            path: path.to_owned(),
            found,
            known,
        });
    }
    let owner = format!("SELECT region, founder FROM {}", schema.meta);
    connection
        .query_row(&owner, [], |row| {
            Ok(Owner {
                region: row.get(0)?,
                founder: row.get(1)?,
            })
        })
        .map_err(|error| not_ours(error.to_string()))
}

pub(super) fn first_bytes(path: &Path) -> Result<Vec<u8>, OpenError> {
    let limit = u64::try_from(HEADER_BYTES).unwrap_or(u64::MAX);
    let mut bytes = Vec::with_capacity(HEADER_BYTES);
    File::open(path)
        .and_then(|file| file.take(limit).read_to_end(&mut bytes))
        .map_err(|error| OpenError::unusable(path, &error))?;
    Ok(bytes)
}

/// Opens a file so that neither reading nor closing changes it or anything beside it: an exclusive
/// connection keeps the index of the write-ahead log in memory, and closing does not checkpoint.
fn look(path: &Path) -> rusqlite::Result<(Connection, u32)> {
    let connection = Connection::open_with_flags(
        path,
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX,
    )?;
    if connection.is_readonly(rusqlite::MAIN_DB)? {
        let error = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_READONLY);
        return Err(rusqlite::Error::SqliteFailure(
            error,
            Some("the file is read-only".to_owned()),
        ));
    }
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    connection.pragma_update_and_check(None, "locking_mode", "EXCLUSIVE", |row| {
        row.get::<_, String>(0)
    })?;
    let version = schema::version(&connection)?;
    Ok((connection, version))
}
