//! The machine as bytes, and back.

use std::collections::VecDeque;

use serde::Deserialize;
use serde::Serialize;
use thiserror::Error;

use crate::catalogue::Catalogue;
use crate::domain::name::RegionName;
use crate::domain::time::Timestamp;
use crate::grants::book::Book;
use crate::ledger::export::Image;
use crate::machine::Machine;
use crate::machine::answers::Remembered;
use crate::machine::closed::Closed;
use crate::machine::command::AuditRow;

/// The first byte of a snapshot.
const FORMAT: u8 = 2;

#[derive(Serialize, Deserialize)]
struct Snapshot {
    log_time: Timestamp,
    term: u64,
    cluster: Option<u64>,
    preference: Option<RegionName>,
    /// JSON: fields of limits may be absent.
    catalogue: Vec<u8>,
    catalogue_index: u64,
    entries: u64,
    audit: VecDeque<AuditRow>,
    book: Book,
    closed: Closed,
    ledger: Image,
    remembered: Remembered,
}

/// Why a snapshot cannot be read.
#[derive(Debug, Error)]
pub enum SnapshotError {
    /// It is of a format that this build does not know.
    #[error(
        "the snapshot has format {0}, this build reads format {FORMAT}: run the build that wrote it, or let the \
         region join anew with an empty directory"
    )]
    Format(u8),
    /// It is damaged.
    #[error("the snapshot is damaged: {0}")]
    Damaged(String),
}

impl Machine {
    /// Everything as bytes.
    ///
    /// # Errors
    /// When the catalogue cannot be written, which no catalogue that was applied does.
    pub fn snapshot(&self) -> Result<Vec<u8>, SnapshotError> {
        let damaged = |error: &dyn std::fmt::Display| SnapshotError::Damaged(error.to_string());
        let snapshot = Snapshot {
            log_time: self.log_time,
            term: self.term,
            cluster: self.cluster,
            preference: self.preference.clone(),
            catalogue: serde_json::to_vec(&self.catalogue).map_err(|error| damaged(&error))?,
            catalogue_index: self.catalogue_index,
            entries: self.entries,
            audit: self.audit.clone(),
            book: self.book.clone(),
            closed: self.closed.clone(),
            ledger: self.ledger.export(),
            remembered: self.remembered.clone(),
        };
        postcard::to_extend(&snapshot, vec![FORMAT]).map_err(|error| damaged(&error))
    }

    /// The machine that was written.
    ///
    /// # Errors
    /// When the bytes are not a snapshot that this build can read.
    pub fn from_snapshot(bytes: &[u8]) -> Result<Self, SnapshotError> {
        let damaged = |error: &dyn std::fmt::Display| SnapshotError::Damaged(error.to_string());
        let (format, body) = bytes.split_first().ok_or_else(|| damaged(&"it is empty"))?;
        if *format != FORMAT {
            return Err(SnapshotError::Format(*format));
        }
        let snapshot: Snapshot = postcard::from_bytes(body).map_err(|error| damaged(&error))?;
        let catalogue: Catalogue =
            serde_json::from_slice(&snapshot.catalogue).map_err(|error| damaged(&error))?;
        let machine = Self {
            log_time: snapshot.log_time,
            term: snapshot.term,
            cluster: snapshot.cluster,
            preference: snapshot.preference,
            catalogue,
            catalogue_index: snapshot.catalogue_index,
            entries: snapshot.entries,
            audit: snapshot.audit,
            book: snapshot.book,
            closed: snapshot.closed,
            ledger: super::empty_ledger(),
            remembered: snapshot.remembered,
        };
        machine.ledger.import(snapshot.ledger);
        Ok(machine)
    }
}
