//! Reading everything back at a start.
//!
//! Rows, then the journal, then sync records; what the last process left of these was put into the journal
//! when the directory was opened. All of it is handed over as it is found, and the receiver joins it: any
//! order gives the same state. A record or row that cannot be read stops the restore, because a counter that is left out would be a quota that is
//! given twice.

use std::path::Path;
use std::sync::mpsc;
use std::thread;

use rusqlite::Connection;

use crate::domain::time::Timestamp;
use crate::ledger::hold::HoldRecord;
use crate::ledger::idempotency::KeptAnswer;
use crate::store::error::StoreError;
use crate::store::format;
use crate::store::schema;
use crate::store::schema::COUNTERS;
use crate::store::schema::LOG;
use crate::store::sweep::is_over;
use crate::usage::record::CounterRecord;

/// Rows handed over at once, and how many such portions may wait.
const PORTION_ROWS: usize = 4_096;
const PORTIONS_WAITING_MAX: usize = 4;

/// Takes in what a store held. The same counter or hold may come several times, in any order: counters
/// are joined, of a hold the highest version counts.
pub trait Sink {
    /// A counter, whole or in part.
    fn counter(&mut self, record: CounterRecord);
    /// A hold.
    fn hold(&mut self, hold: HoldRecord);
    /// A kept answer.
    fn answer(&mut self, answer: KeptAnswer);
}

/// How much was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Rows of counters.
    pub counters: u64,
    /// Rows of holds.
    pub holds: u64,
    /// Groups in the journal, those included that were taken over from sync records.
    pub journal: u64,
    /// Groups of sync charges that may not have been flushed.
    pub sync: u64,
    /// Kept answers.
    pub answers: u64,
    /// Of all these, what had ended and was left out.
    pub ended: u64,
}

enum Item {
    Counter(CounterRecord),
    Hold(HoldRecord),
    Answer(KeptAnswer),
}

impl Item {
    fn ends_at(&self) -> Timestamp {
        match self {
            Self::Counter(record) => record.dead_at,
            Self::Hold(hold) => hold.forget_at,
            Self::Answer(answer) => answer.expires_at,
        }
    }
}

type Portion = Vec<Item>;

/// Reads both files; see [`crate::store::Store::restore`]. Decoding runs on a thread of its own, so that
/// it overlaps with the work of the sink.
pub(super) fn restore(
    log: &Path,
    counters: &Path,
    now: Option<Timestamp>,
    sink: &mut dyn Sink,
) -> Result<Restored, StoreError> {
    let (sender, receiver) = mpsc::sync_channel(PORTIONS_WAITING_MAX);
    thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let mut reader = Reader {
                now,
                to: sender,
                portion: Portion::new(),
                read: Restored::default(),
            };
            reader.read_all(log, counters)?;
            Ok(reader.read)
        });
        for item in receiver.into_iter().flatten() {
            match item {
                Item::Counter(record) => sink.counter(record),
                Item::Hold(hold) => sink.hold(hold),
                Item::Answer(answer) => sink.answer(answer),
            }
        }
        reader
            .join()
            .unwrap_or_else(|_| Err(StoreError::read("the reader stopped")))
    })
}

struct Reader {
    now: Option<Timestamp>,
    to: mpsc::SyncSender<Portion>,
    portion: Portion,
    read: Restored,
}

impl Reader {
    fn read_all(&mut self, log: &Path, counters: &Path) -> Result<(), StoreError> {
        let log = schema::open_reader(log)?;
        let counters = schema::open_reader(counters)?;
        // One view of each file, whatever is folded meanwhile; the log file's first, because what is trimmed
        // from there is in the other by then.
        let log = log.unchecked_transaction()?;
        log.query_row("SELECT count(*) FROM log_meta", [], |row| {
            row.get::<_, i64>(0)
        })?;
        let counters = counters.unchecked_transaction()?;
        self.read_counters(&counters)
            .map_err(|error| error.in_file(COUNTERS.file))?;
        self.read_log(&log)
            .map_err(|error| error.in_file(LOG.file))?;
        self.hand_over()
    }

    fn read_counters(&mut self, counters: &Connection) -> Result<(), StoreError> {
        self.read_rows(counters)?;
        self.read_holds(counters)?;
        self.read.journal = self.read_groups(counters, "SELECT body FROM journal ORDER BY id")?;
        Ok(())
    }

    fn read_log(&mut self, log: &Connection) -> Result<(), StoreError> {
        self.read.sync = self.read_groups(log, "SELECT body FROM sync ORDER BY id")?;
        self.read_answers(log)
    }

    fn read_rows(&mut self, view: &Connection) -> Result<(), StoreError> {
        let mut select = view.prepare("SELECT id, dead_at, body FROM counters")?;
        let mut rows = select.query([])?;
        while let Some(row) = rows.next()? {
            self.read.counters += 1;
            let dead_at: i64 = row.get(1)?;
            if self.has_ended(Timestamp::from_nanos(dead_at)) {
                continue;
            }
            let (id, body) = (row.get_ref(0)?.as_blob(), row.get_ref(2)?.as_blob());
            let (id, body) = (
                id.map_err(rusqlite::Error::from)?,
                body.map_err(rusqlite::Error::from)?,
            );
            self.take(Item::Counter(format::decode_row(id, dead_at, body)?))?;
        }
        Ok(())
    }

    fn read_holds(&mut self, view: &Connection) -> Result<(), StoreError> {
        let mut select = view.prepare("SELECT body FROM holds")?;
        let mut rows = select.query([])?;
        while let Some(row) = rows.next()? {
            self.read.holds += 1;
            let body = row.get_ref(0)?.as_blob().map_err(rusqlite::Error::from)?;
            self.take_unless_ended(Item::Hold(format::decode_hold(body)?))?;
        }
        Ok(())
    }

    fn read_groups(&mut self, view: &Connection, select: &str) -> Result<u64, StoreError> {
        let mut groups = 0;
        let mut select = view.prepare(select)?;
        let mut rows = select.query([])?;
        while let Some(row) = rows.next()? {
            groups += 1;
            let body = row.get_ref(0)?.as_blob().map_err(rusqlite::Error::from)?;
            let group = format::decode_group(body)?;
            for record in group.records {
                self.take_unless_ended(Item::Counter(record))?;
            }
            for hold in group.holds {
                self.take_unless_ended(Item::Hold(hold))?;
            }
        }
        Ok(groups)
    }

    fn read_answers(&mut self, log: &Connection) -> Result<(), StoreError> {
        let mut select = log.prepare("SELECT body FROM answers")?;
        let mut rows = select.query([])?;
        while let Some(row) = rows.next()? {
            self.read.answers += 1;
            let body = row.get_ref(0)?.as_blob().map_err(rusqlite::Error::from)?;
            self.take_unless_ended(Item::Answer(format::decode_answer(body)?))?;
        }
        Ok(())
    }

    fn has_ended(&mut self, ends_at: Timestamp) -> bool {
        let ended = self.now.is_some_and(|now| is_over(ends_at, now));
        self.read.ended += u64::from(ended);
        ended
    }

    fn take_unless_ended(&mut self, item: Item) -> Result<(), StoreError> {
        if self.has_ended(item.ends_at()) {
            Ok(())
        } else {
            self.take(item)
        }
    }

    fn take(&mut self, item: Item) -> Result<(), StoreError> {
        self.portion.push(item);
        if self.portion.len() >= PORTION_ROWS {
            self.hand_over()
        } else {
            Ok(())
        }
    }

    fn hand_over(&mut self) -> Result<(), StoreError> {
        let portion = std::mem::replace(&mut self.portion, Vec::with_capacity(PORTION_ROWS));
        self.to
            .send(portion)
            .map_err(|_| StoreError::read("the restore was given up"))
    }
}
