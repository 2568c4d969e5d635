//! What can go wrong with a store, and what follows from it.
//!
//! A busy or locked file is tried again a bounded number of times. Everything else that SQLite reports
//! (full disk, I/O, damage, a vanished or read-only file) is fatal for the file: the store refuses work
//! with that reason until a probe has written successfully. Nothing here is ever turned into a default
//! value: a store that cannot read never answers with an empty state.

use std::path::PathBuf;

use rusqlite::ErrorCode;
use thiserror::Error;

/// Bytes that are not what they should be.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{what} cannot be read: {reason}")]
pub struct Garbled {
    /// What the bytes should have been.
    pub what: &'static str,
    /// Why they are not.
    pub reason: String,
}

impl Garbled {
    pub(super) fn new(what: &'static str, reason: &(impl ToString + ?Sized)) -> Self {
        Self {
            what,
            reason: reason.to_string(),
        }
    }
}

/// Why a store did not do what it was asked for.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum StoreError {
    /// The store has failed; a probe opens it again.
    #[error("the store has failed: {reason}")]
    Failed {
        /// The first failure.
        reason: String,
    },
    /// Reading failed; writing may still work.
    #[error("reading from the store failed: {reason}")]
    Read {
        /// What SQLite or the decoder said.
        reason: String,
    },
    /// The request itself cannot be carried out; nothing was stored.
    #[error("{reason}")]
    Refused {
        /// Why.
        reason: String,
    },
    /// The store is closed.
    #[error("the store is closed")]
    Closed,
}

impl StoreError {
    pub(super) fn read(error: &(impl ToString + ?Sized)) -> Self {
        Self::Read {
            reason: error.to_string(),
        }
    }

    /// The same, said of one of the files, so that whoever reads it knows which one is damaged.
    pub(super) fn in_file(self, file: &str) -> Self {
        match self {
            Self::Read { reason } => Self::Read {
                reason: format!("{file}: {reason}"),
            },
            other => other,
        }
    }
}

impl From<Garbled> for StoreError {
    fn from(garbled: Garbled) -> Self {
        Self::read(&garbled)
    }
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        Self::read(&error)
    }
}

/// Why a directory was not opened. In every case no byte of it was changed.
#[derive(Debug, Error)]
pub enum OpenError {
    /// Another process has the directory open.
    #[error("{} is in use by another process", dir.display())]
    InUse {
        /// The directory.
        dir: PathBuf,
    },
    /// The directory holds a region's data, and a backup is to go into it.
    #[error(
        "{} holds a region's data; a backup goes into an empty directory: end the region if it runs, move the directory \
         away, and restore again",
        dir.display()
    )]
    Occupied {
        /// The directory.
        dir: PathBuf,
    },
    /// The directory holds something else.
    #[error(
        "{} holds {found:?} and no Highwater data; give an empty directory or the right one",
        dir.display()
    )]
    Foreign {
        /// The directory.
        dir: PathBuf,
        /// One of the names found there.
        found: String,
    },
    /// The directory or a file in it cannot be read or written.
    #[error("{} cannot be used for reading and writing: {reason}", path.display())]
    Unusable {
        /// The directory or file.
        path: PathBuf,
        /// What the operating system or SQLite said.
        reason: String,
    },
    /// A file is not a database of this kind.
    #[error("{} is not a Highwater {kind} file: {reason}", path.display())]
    NotOurs {
        /// The file.
        path: PathBuf,
        /// What it should be.
        kind: &'static str,
        /// What was found instead.
        reason: String,
    },
    /// A newer program wrote the file.
    #[error(
        "{} has schema version {found}, this program knows versions up to {known}; \
         start a newer program or restore a backup",
        path.display()
    )]
    NewerSchema {
        /// The file.
        path: PathBuf,
        /// The file's version.
        found: u32,
        /// The newest version that this program knows.
        known: u32,
    },
    /// The directory belongs to another region.
    #[error("{} belongs to region {found}, not to {asked}", dir.display())]
    OtherRegion {
        /// The directory.
        dir: PathBuf,
        /// Whose it is.
        found: String,
        /// Who wanted to open it.
        asked: String,
    },
    /// The directory's files do not make one store.
    #[error("{} is not complete: {reason}; restore a backup into an empty directory", dir.display())]
    Incomplete {
        /// The directory.
        dir: PathBuf,
        /// What is missing or does not fit.
        reason: String,
    },
    /// A process of the same incarnation was here before.
    #[error("incarnation {incarnation:016x} has been used before in {}", dir.display())]
    IncarnationUsed {
        /// The directory.
        dir: PathBuf,
        /// The incarnation.
        incarnation: u64,
    },
}

impl OpenError {
    pub(super) fn unusable(path: impl Into<PathBuf>, reason: &(impl ToString + ?Sized)) -> Self {
        Self::Unusable {
            path: path.into(),
            reason: reason.to_string(),
        }
    }
}

/// Why a transaction was rolled back.
#[derive(Debug, Error)]
pub(super) enum WriteError {
    #[error("{0}")]
    Sqlite(#[from] rusqlite::Error),
    #[error("{0}")]
    Garbled(#[from] Garbled),
    #[error("store_errors fault is injected")]
    Injected,
    #[error("the file could not be opened again")]
    NotOpen,
}

impl WriteError {
    /// Whether the same transaction may succeed a moment later.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            Self::Sqlite(error) => {
                matches!(
                    error.sqlite_error_code(),
                    Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
                )
            }
            Self::Garbled(_) | Self::Injected | Self::NotOpen => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::ffi;

    use super::WriteError;

    fn from_code(code: i32) -> WriteError {
        WriteError::Sqlite(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None))
    }

    #[test]
    fn only_a_busy_or_locked_file_is_tried_again() {
        for code in [
            ffi::SQLITE_BUSY,
            ffi::SQLITE_LOCKED,
            ffi::SQLITE_BUSY_SNAPSHOT,
        ] {
            assert!(from_code(code).is_transient(), "{code}");
        }
        for code in [
            ffi::SQLITE_FULL,
            ffi::SQLITE_IOERR,
            ffi::SQLITE_IOERR_FSYNC,
            ffi::SQLITE_CORRUPT,
            ffi::SQLITE_NOTADB,
            ffi::SQLITE_READONLY,
            ffi::SQLITE_CANTOPEN,
            ffi::SQLITE_PERM,
            ffi::SQLITE_NOMEM,
            ffi::SQLITE_CONSTRAINT,
        ] {
            assert!(!from_code(code).is_transient(), "{code}");
        }
        assert!(!WriteError::Injected.is_transient());
    }
}
