//! Deleting what has expired, a few rows at a time, without an index on expiry.
//!
//! An index would cost more with every write than the sweep costs in all. A cursor walks the table in the
//! order of its primary key, over and over; one step looks at a bounded number of rows.

use rusqlite::OptionalExtension;
use rusqlite::Transaction;
use rusqlite::types::Value;

use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::store::error::WriteError;

/// How long state is kept after it has ended, so that a small step of the clock brings nothing back.
pub const GRACE: Span = Span::from_seconds(10);

/// Rows that one step looks at.
const ROWS_PER_STEP: i64 = 2_000;
/// A step that deleted this many rows asks to be called again at once: there are probably more.
const ROWS_THAT_ASK_FOR_MORE: usize = 200;

/// Whether what died at `dead_at` is over, grace included.
pub fn is_over(dead_at: Timestamp, now: Timestamp) -> bool {
    dead_at.plus(GRACE) < now
}

/// The statements that sweep one table.
pub(super) struct Table {
    /// The last of the next rows after a key.
    last_of_step: &'static str,
    /// Deletes the expired ones among the rows after `?1` and up to `?2`.
    delete: &'static str,
    /// Deletes the expired ones among all rows after `?1`.
    delete_rest: &'static str,
}

pub(super) static COUNTER_ROWS: Table = Table {
    last_of_step: "SELECT id FROM counters WHERE id > ?1 ORDER BY id LIMIT 1 OFFSET ?2",
    delete: "DELETE FROM counters WHERE id > ?1 AND id <= ?2 AND dead_at < ?3",
    delete_rest: "DELETE FROM counters WHERE id > ?1 AND dead_at < ?2",
};

pub(super) static HOLD_ROWS: Table = Table {
    last_of_step: "SELECT key FROM holds WHERE key > ?1 ORDER BY key LIMIT 1 OFFSET ?2",
    delete: "DELETE FROM holds WHERE key > ?1 AND key <= ?2 AND forget_at < ?3",
    delete_rest: "DELETE FROM holds WHERE key > ?1 AND forget_at < ?2",
};

pub(super) static ANSWERS: Table = Table {
    last_of_step: "SELECT request FROM answers WHERE request > ?1 ORDER BY request LIMIT 1 OFFSET ?2",
    delete: "DELETE FROM answers WHERE request > ?1 AND request <= ?2 AND expires_at < ?3",
    delete_rest: "DELETE FROM answers WHERE request > ?1 AND expires_at < ?2",
};

/// Where a sweep stands: the last key that it has looked at. Every key is longer than the empty one.
#[derive(Debug, Default)]
pub(super) struct Cursor {
    after: Vec<u8>,
}

impl Cursor {
    /// One step; answers whether the next one is likely to find more.
    pub fn step(
        &mut self,
        tx: &Transaction<'_>,
        table: &Table,
        now: Timestamp,
    ) -> Result<bool, WriteError> {
        let horizon = now.minus(GRACE).as_nanos();
        let last: Option<Value> = tx
            .prepare_cached(table.last_of_step)?
            .query_row((&self.after, ROWS_PER_STEP - 1), |row| row.get(0))
            .optional()?;
        let deleted = match last {
            Some(Value::Blob(last)) => {
                let deleted =
                    tx.prepare_cached(table.delete)?
                        .execute((&self.after, &last, horizon))?;
                self.after = last;
                deleted
            }
            Some(_) | None => {
                let deleted = tx
                    .prepare_cached(table.delete_rest)?
                    .execute((&self.after, horizon))?;
                self.after.clear();
                deleted
            }
        };
        Ok(deleted >= ROWS_THAT_ASK_FOR_MORE)
    }
}
