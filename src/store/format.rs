//! How state is written into blobs, and how it is read back.
//!
//! | blob | written form |
//! |---|---|
//! | `journal.body`, `sync.body` | format byte, records, holds (postcard) |
//! | `counters.id` | counter's name (postcard); also the order of the rows |
//! | `counters.body` | format byte, the record without its name and its death (postcard) |
//! | `holds.body`, `answers.body` | format byte, hold or answer (postcard) |
//! | `answers.request` | request's name (postcard) |
//!
//! A reader accepts exactly one whole value: another format byte, a value cut short and bytes left over
//! are errors. Any bytes at all may be given to the `decode_*` functions; none of them panics.

use std::collections::BTreeMap;

use crdts::PNCounter;
use litemap::LiteMap;
use serde::Deserialize;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::domain::time::Timestamp;
use crate::domain::time::WindowId;
use crate::ledger::hold::HoldRecord;
use crate::ledger::idempotency::KeptAnswer;
use crate::ledger::idempotency::RequestId;
use crate::store::error::Garbled;
use crate::usage::actor::ActorId;
use crate::usage::record::BucketLevel;
use crate::usage::record::CounterId;
use crate::usage::record::CounterRecord;
use crate::usage::record::LogEntry;
use crate::usage::record::Stamp;

/// First byte of every blob but names.
const FORMAT: u8 = 1;

/// What one flush or one group of sync charges wrote.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Group {
    /// Counters.
    pub records: Vec<CounterRecord>,
    /// Holds.
    pub holds: Vec<HoldRecord>,
}

/// A row's body: a record without what the row's other columns say.
#[derive(Serialize, Deserialize)]
struct Body {
    epoch: u64,
    #[serde(deserialize_with = "crate::usage::record::windows")]
    windows: LiteMap<WindowId, PNCounter<ActorId>>,
    bucket: Option<BucketLevel>,
    log: BTreeMap<Stamp, LogEntry>,
    windows_from: Option<WindowId>,
    log_from: Option<Timestamp>,
}

/// A counter as a row.
pub(super) struct Row {
    pub dead_at: i64,
    pub body: Vec<u8>,
}

fn write<T: Serialize>(value: &T, mut into: Vec<u8>) -> Vec<u8> {
    // Writing to memory fails only for types that do not know their length beforehand; all of ours do.
    into =
        postcard::to_extend(value, into).expect("invariant: plain data can be written to memory");
    into
}

fn write_formatted<T: Serialize>(value: &T, bytes_expected: usize) -> Vec<u8> {
    let mut into = Vec::with_capacity(bytes_expected);
    into.push(FORMAT);
    write(value, into)
}

fn read<T: DeserializeOwned>(what: &'static str, bytes: &[u8]) -> Result<T, Garbled> {
    let (value, rest) =
        postcard::take_from_bytes(bytes).map_err(|error| Garbled::new(what, &error))?;
    if rest.is_empty() {
        Ok(value)
    } else {
        Err(Garbled::new(what, "bytes are left over"))
    }
}

fn read_formatted<T: DeserializeOwned>(what: &'static str, bytes: &[u8]) -> Result<T, Garbled> {
    match bytes.split_first() {
        Some((&FORMAT, rest)) => read(what, rest),
        Some((format, _)) => Err(Garbled::new(what, &format!("format {format} is not known"))),
        None => Err(Garbled::new(what, "it is empty")),
    }
}

/// Writes a group; both parts may be values or references.
pub(super) fn encode_group<R: Serialize, H: Serialize>(records: &[R], holds: &[H]) -> Vec<u8> {
    // A record of one window is about 60 bytes.
    write_formatted(
        &(records, holds),
        16 + 64 * records.len() + 128 * holds.len(),
    )
}

/// Reads a row of the journal or of the sync records.
///
/// # Errors
/// When the bytes are not exactly one group.
pub fn decode_group(bytes: &[u8]) -> Result<Group, Garbled> {
    let (records, holds) = read_formatted("a group of changes", bytes)?;
    Ok(Group { records, holds })
}

pub(super) fn encode_id(id: &CounterId) -> Vec<u8> {
    write(
        id,
        Vec::with_capacity(3 + id.limit.as_str().len() + id.tenant.len() + id.key.len()),
    )
}

pub(super) fn encode_row(record: CounterRecord) -> Row {
    let CounterRecord {
        id: _,
        epoch,
        windows,
        bucket,
        log,
        windows_from,
        log_from,
        dead_at,
    } = record;
    let body = Body {
        epoch,
        windows,
        bucket,
        log,
        windows_from,
        log_from,
    };
    Row {
        dead_at: dead_at.as_nanos(),
        body: write_formatted(&body, 64),
    }
}

/// Reads a row of the counters: its name, its death and its body.
///
/// # Errors
/// When name or body are not exactly one value.
pub fn decode_row(id: &[u8], dead_at: i64, body: &[u8]) -> Result<CounterRecord, Garbled> {
    let id: CounterId = read("a counter's name", id)?;
    let Body {
        epoch,
        windows,
        bucket,
        log,
        windows_from,
        log_from,
    } = read_formatted("a counter", body)?;
    let dead_at = Timestamp::from_nanos(dead_at);
    Ok(CounterRecord {
        id,
        epoch,
        windows,
        bucket,
        log,
        windows_from,
        log_from,
        dead_at,
    })
}

pub(super) fn encode_hold(hold: &HoldRecord) -> Vec<u8> {
    write_formatted(hold, 128)
}

/// Reads a hold's row.
///
/// # Errors
/// When the bytes are not exactly one hold.
pub fn decode_hold(bytes: &[u8]) -> Result<HoldRecord, Garbled> {
    read_formatted("a hold", bytes)
}

pub(super) fn encode_request(request: &RequestId) -> Vec<u8> {
    write(request, Vec::with_capacity(64))
}

pub(super) fn encode_answer(answer: &KeptAnswer) -> Vec<u8> {
    write_formatted(answer, 128 + answer.body.len())
}

/// Reads an answer's row.
///
/// # Errors
/// When the bytes are not exactly one answer.
pub fn decode_answer(bytes: &[u8]) -> Result<KeptAnswer, Garbled> {
    read_formatted("a kept answer", bytes)
}

/// The marks in the first bytes of a database file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Which program's file it is, and which kind.
    pub application_id: u32,
    /// Schema version, as far as it has been checkpointed.
    pub schema: u32,
}

/// Bytes of a file that [`decode_header`] reads.
pub const HEADER_BYTES: usize = 100;

/// Reads the first bytes of a database or backup file, without SQLite and so without any risk that it
/// changes something in a file that is not ours.
///
/// # Errors
/// When the bytes do not begin an SQLite database.
pub fn decode_header(bytes: &[u8]) -> Result<Header, Garbled> {
    const MAGIC: &[u8] = b"SQLite format 3\0";
    let what = "a database's header";
    if bytes.is_empty() {
        return Err(Garbled::new(what, "the file is empty"));
    }
    if !bytes.starts_with(MAGIC) {
        return Err(Garbled::new(what, "it is not an SQLite database"));
    }
    let number_at = |at: usize| {
        let four = bytes.get(at..at + 4)?;
        Some(
            four.iter()
                .fold(0_u32, |number, byte| (number << 8) | u32::from(*byte)),
        )
    };
    match (bytes.len() >= HEADER_BYTES, number_at(68), number_at(60)) {
        (true, Some(application_id), Some(schema)) => Ok(Header {
            application_id,
            schema,
        }),
        _ => Err(Garbled::new(what, "the file is cut short")),
    }
}
