//! Folding the journal into rows, in small steps.
//!
//! ```text
//! gather: oldest groups ──► joined in memory, per counter     (many flushes of a hot counter become one)
//! write:  a slice of them, in key order ──► joined into rows  (neighbours share pages)
//! trim:   the groups that were gathered are deleted
//! ```
//!
//! Each step is part of a transaction of the writer. A round that is cut short by a crash or a rollback is
//! begun again: the groups are still there, and joining twice is joining once. Until the trim the same
//! news is in the journal and in rows, which is harmless for the same reason.
//!
//! What has ended is not written at all, so the counters of short windows mostly never become rows.

use std::collections::BTreeMap;

use ahash::RandomState;
use hashbrown::HashMap;
use rusqlite::OptionalExtension;
use rusqlite::Transaction;

use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::ledger::hold::HoldKey;
use crate::ledger::hold::HoldRecord;
use crate::store::error::WriteError;
use crate::store::format;
use crate::store::format::Group;
use crate::store::sweep::is_over;
use crate::usage::record::CounterId;
use crate::usage::record::CounterRecord;

/// Groups at which a round begins: the more wait, the more flushes of one counter become one row.
const GROUPS_DUE: u64 = 256;
/// Records at which a round begins; bounds how long a start reads the journal.
const RECORDS_DUE: u64 = 500_000;
/// Bytes at which a round begins.
const BYTES_DUE: u64 = 48 * 1024 * 1024;
/// A journal that has been quiet for so long is folded whatever its size.
const QUIET: Span = Span::from_seconds(5);

/// Records read from the journal in one step, at least one group.
const GATHERED_PER_STEP: usize = 8_192;
/// Different counters in one round; bounds its memory.
const COUNTERS_PER_ROUND: usize = 100_000;
/// Rows written in one step.
const ROWS_PER_STEP: usize = 1_500;
/// Groups deleted in one step; each may be some hundred pages.
const GROUPS_TRIMMED_PER_STEP: i64 = 16;

/// How much is in the journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Backlog {
    pub groups: u64,
    pub records: u64,
    pub bytes: u64,
    /// Region time of the newest group.
    pub newest: Timestamp,
}

impl Backlog {
    /// Counts what the file holds.
    pub fn read(connection: &rusqlite::Connection) -> rusqlite::Result<Self> {
        connection.query_row(
            "SELECT count(*), coalesce(sum(records), 0), coalesce(sum(length(body)), 0), coalesce(max(at), 0) \
             FROM journal",
            [],
            |row| {
                Ok(Self {
                    groups: row.get(0)?,
                    records: row.get(1)?,
                    bytes: row.get(2)?,
                    newest: Timestamp::from_nanos(row.get(3)?),
                })
            },
        )
    }

    pub fn add(&mut self, records: usize, bytes: usize, at: Timestamp) {
        self.groups += 1;
        self.records = self
            .records
            .saturating_add(u64::try_from(records).unwrap_or(u64::MAX));
        self.bytes = self
            .bytes
            .saturating_add(u64::try_from(bytes).unwrap_or(u64::MAX));
        self.newest = at;
    }

    fn remove(&mut self, groups: u64, records: u64, bytes: u64) {
        self.groups = self.groups.saturating_sub(groups);
        self.records = self.records.saturating_sub(records);
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    fn is_due(&self, now: Timestamp) -> bool {
        self.groups >= GROUPS_DUE
            || self.records >= RECORDS_DUE
            || self.bytes >= BYTES_DUE
            || (self.groups > 0 && now.since(self.newest) >= QUIET)
    }
}

/// A round that is under way.
#[derive(Debug, Default)]
struct Round {
    /// Newest group when the round began; later ones wait for the next round.
    head: i64,
    /// Newest group that has been gathered.
    gathered: i64,
    is_gathering: bool,
    counters: HashMap<CounterId, CounterRecord, RandomState>,
    /// Counters that are still to be written, by their names as they are on disk: the last one is the next.
    order: Vec<(Vec<u8>, CounterId)>,
    holds: BTreeMap<HoldKey, HoldRecord>,
}

/// The state of the fold; empty between rounds.
#[derive(Debug, Default)]
pub(super) struct Fold {
    round: Option<Round>,
}

impl Fold {
    /// Forgets the round; the next step begins a new one.
    pub fn abandon(&mut self) {
        self.round = None;
    }

    /// One step; answers whether more waits.
    pub fn step(
        &mut self,
        tx: &Transaction<'_>,
        backlog: &mut Backlog,
        now: Timestamp,
    ) -> Result<bool, WriteError> {
        let Some(round) = &mut self.round else {
            if !backlog.is_due(now) {
                return Ok(false);
            }
            let mut round = Round::begin(tx)?;
            round.gather(tx, now)?;
            self.round = Some(round);
            return Ok(true);
        };
        if round.is_gathering {
            round.gather(tx, now)?;
        } else if round.order.is_empty() && round.holds.is_empty() {
            if round.trim(tx, backlog)? {
                self.round = None;
                return Ok(backlog.is_due(now));
            }
        } else {
            round.write(tx, now)?;
        }
        Ok(true)
    }
}

impl Round {
    fn begin(tx: &Transaction<'_>) -> Result<Self, WriteError> {
        let newest = "SELECT coalesce(max(id), 0) FROM journal";
        let head = tx.prepare_cached(newest)?.query_row([], |row| row.get(0))?;
        Ok(Self {
            head,
            is_gathering: true,
            ..Self::default()
        })
    }

    fn gather(&mut self, tx: &Transaction<'_>, now: Timestamp) -> Result<(), WriteError> {
        let mut select = tx.prepare_cached(
            "SELECT id, body FROM journal WHERE id > ?1 AND id <= ?2 ORDER BY id",
        )?;
        let mut rows = select.query([self.gathered, self.head])?;
        let mut records = 0;
        while records < GATHERED_PER_STEP && self.counters.len() < COUNTERS_PER_ROUND {
            let Some(row) = rows.next()? else {
                self.put_in_order(now);
                return Ok(());
            };
            let group =
                format::decode_group(row.get_ref(1)?.as_blob().map_err(rusqlite::Error::from)?)?;
            self.gathered = row.get(0)?;
            records += group.records.len() + group.holds.len();
            self.take_in(group);
        }
        if self.counters.len() >= COUNTERS_PER_ROUND {
            self.put_in_order(now);
        }
        Ok(())
    }

    /// All that is written in this round has been gathered.
    fn put_in_order(&mut self, now: Timestamp) {
        self.is_gathering = false;
        self.counters
            .retain(|_, record| !is_over(record.dead_at, now));
        let ids = self.counters.keys();
        self.order = ids.map(|id| (format::encode_id(id), id.clone())).collect();
        self.order
            .sort_unstable_by(|one, other| other.0.cmp(&one.0));
    }

    fn take_in(&mut self, group: Group) {
        for record in group.records {
            match self.counters.get_mut(&record.id) {
                Some(known) => known.merge(record),
                None => {
                    self.counters.insert(record.id.clone(), record);
                }
            }
        }
        for hold in group.holds {
            match self.holds.entry(hold.key) {
                std::collections::btree_map::Entry::Occupied(mut known) => {
                    if known.get().version < hold.version {
                        known.insert(hold);
                    }
                }
                std::collections::btree_map::Entry::Vacant(free) => {
                    free.insert(hold);
                }
            }
        }
    }

    fn write(&mut self, tx: &Transaction<'_>, now: Timestamp) -> Result<(), WriteError> {
        let mut select = tx.prepare_cached("SELECT dead_at, body FROM counters WHERE id = ?1")?;
        let mut upsert = tx.prepare_cached(
            "INSERT OR REPLACE INTO counters (id, dead_at, body) VALUES (?1, ?2, ?3)",
        )?;
        for _ in 0..ROWS_PER_STEP {
            let Some((id, counter)) = self.order.pop() else {
                break;
            };
            let Some(news) = self.counters.remove(&counter) else {
                continue;
            };
            if is_over(news.dead_at, now) {
                continue;
            }
            let known = select
                .query_row([&id], |row| {
                    let body = row.get_ref(1)?.as_blob()?;
                    Ok(format::decode_row(&id, row.get(0)?, body))
                })
                .optional()?;
            let record = match known {
                Some(known) => {
                    let mut known = known?;
                    known.merge(news);
                    known
                }
                None => news,
            };
            let row = format::encode_row(record);
            upsert.execute((&id, row.dead_at, &row.body))?;
        }
        self.write_holds(tx, now)
    }

    fn write_holds(&mut self, tx: &Transaction<'_>, now: Timestamp) -> Result<(), WriteError> {
        let mut upsert = tx.prepare_cached(
            "INSERT INTO holds (key, forget_at, version, body) VALUES (?1, ?2, ?3, ?4) \
             ON CONFLICT (key) DO UPDATE SET forget_at = excluded.forget_at, version = excluded.version, \
             body = excluded.body WHERE excluded.version > version",
        )?;
        for _ in 0..ROWS_PER_STEP {
            let Some((key, hold)) = self.holds.pop_first() else {
                break;
            };
            if is_over(hold.forget_at, now) {
                continue;
            }
            let body = format::encode_hold(&hold);
            upsert.execute((
                key.0.to_be_bytes(),
                hold.forget_at.as_nanos(),
                hold.version.cast_signed(),
                body,
            ))?;
        }
        Ok(())
    }

    /// Deletes gathered groups; answers whether all are gone.
    fn trim(&mut self, tx: &Transaction<'_>, backlog: &mut Backlog) -> Result<bool, WriteError> {
        let oldest = "SELECT max(id), count(*), coalesce(sum(records), 0), coalesce(sum(length(body)), 0) \
                      FROM (SELECT id, records, body FROM journal WHERE id <= ?1 ORDER BY id LIMIT ?2)";
        let (last, groups, records, bytes): (Option<i64>, u64, u64, u64) = tx
            .prepare_cached(oldest)?
            .query_row([self.gathered, GROUPS_TRIMMED_PER_STEP], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
            })?;
        if let Some(last) = last {
            tx.prepare_cached("DELETE FROM journal WHERE id <= ?1")?
                .execute([last])?;
            backlog.remove(groups, records, bytes);
        }
        Ok(last.is_none_or(|last| last >= self.gathered))
    }
}
