//! The log as the consensus library sees it: the store's log file with its tail in memory.
//!
//! Entries are readable when an append returns and are on disk when its callback comes; callbacks come in
//! order, because one thread writes. The newest entries stay in memory, so that replication and the state
//! machine read the disk only for what fell far behind. An entry that is not on disk yet never leaves memory.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::io;
use std::ops::Bound;
use std::ops::RangeBounds;
use std::sync::Arc;

use openraft::LogState;
use openraft::OptionalSend;
use openraft::RaftLogReader;
use openraft::storage::IOFlushed;
use openraft::storage::RaftLogStorage;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::consensus::types::Entry;
use crate::consensus::types::LogId;
use crate::consensus::types::Payload;
use crate::consensus::types::TypeConfig;
use crate::consensus::types::Vote;
use crate::consensus::types::id_of;
use crate::consensus::types::place_of;
use crate::store::LogPlace;
use crate::store::RaftDone;
use crate::store::RaftWrite;
use crate::store::Store;
use crate::store::StoreError;
use crate::store::StoredEntry;
use crate::store::StoredVote;

/// Entries and bytes that stay in memory when they are on disk.
const TAIL_ENTRIES_MAX: usize = 16_384;
const TAIL_BYTES_MAX: usize = 16 << 20;
/// Bytes of entries in one message to a follower; far below what the wire carries.
const REPLICATED_BYTES_MAX: usize = 512 << 10;
/// First byte of an entry on disk. It rises when the same entry comes to mean something else: regions that carry
/// one log out differently would drift apart.
const ENTRY_FORMAT: u8 = 2;

pub(super) fn failed(error: &StoreError) -> io::Error {
    io::Error::other(error.clone())
}

fn encode_entry(payload: &Payload) -> io::Result<Vec<u8>> {
    postcard::to_extend(payload, vec![ENTRY_FORMAT]).map_err(io::Error::other)
}

fn decode_entry(stored: &StoredEntry) -> io::Result<Entry> {
    let Some((&ENTRY_FORMAT, payload)) = stored.body.split_first() else {
        let format = stored.body.first().copied().unwrap_or_default();
        let index = stored.place.index;
        let reason = format!(
            "entry {index} of the log has format {format}, this build reads format {ENTRY_FORMAT}: run the build \
             that wrote it, or let the region join anew with an empty directory"
        );
        return Err(io::Error::other(reason));
    };
    let payload = postcard::from_bytes(payload).map_err(io::Error::other)?;
    Ok(Entry {
        log_id: id_of(stored.place),
        payload,
    })
}

/// An entry in memory.
struct Recent {
    entry: Entry,
    bytes: usize,
    /// Number of the append that carried it.
    append: u64,
}

struct Tail {
    vote: Option<Vote>,
    committed: Option<LogId>,
    purged: Option<LogId>,
    last: Option<LogId>,
    /// The newest entries without holes; the last one of these is `last`.
    recent: VecDeque<Recent>,
    bytes: usize,
    /// Appends that were handed over, and those of them that are on disk.
    appends: u64,
    durable: u64,
    is_closed: bool,
}

impl Tail {
    fn push(&mut self, entry: Entry, bytes: usize) {
        self.last = Some(entry.log_id);
        self.bytes += bytes;
        self.recent.push_back(Recent {
            entry,
            bytes,
            append: self.appends,
        });
    }

    fn pop_front(&mut self) {
        if let Some(gone) = self.recent.pop_front() {
            self.bytes = self.bytes.saturating_sub(gone.bytes);
        }
    }

    fn shorten(&mut self) {
        while let Some(oldest) = self.recent.front() {
            let is_surplus = self.recent.len() > TAIL_ENTRIES_MAX || self.bytes > TAIL_BYTES_MAX;
            if !is_surplus || oldest.append > self.durable {
                return;
            }
            self.pop_front();
        }
    }

    /// The index after the last entry.
    fn end(&self) -> u64 {
        self.last.map_or(0, |last| last.index + 1)
    }

    /// The first index that is still there.
    fn start(&self) -> u64 {
        self.purged.map_or(0, |purged| purged.index + 1)
    }

    /// The first index in memory.
    fn recent_start(&self) -> u64 {
        let first = self.recent.front();
        first.map_or(self.end(), |first| first.entry.log_id.index)
    }

    /// Entries in memory from `from` to before `to`: at most `bytes_max` bytes, but at least one.
    fn read(&self, from: u64, to: u64, bytes_max: usize) -> Vec<Entry> {
        let skipped = from.saturating_sub(self.recent_start());
        let mut bytes = 0_usize;
        let mut entries = Vec::new();
        for recent in self
            .recent
            .iter()
            .skip(usize::try_from(skipped).unwrap_or(usize::MAX))
        {
            bytes = bytes.saturating_add(recent.bytes);
            if recent.entry.log_id.index >= to || (bytes > bytes_max && !entries.is_empty()) {
                break;
            }
            entries.push(recent.entry.clone());
        }
        entries
    }
}

/// The log. Clones are the same log.
#[derive(Clone)]
pub(super) struct Log {
    store: Store,
    tail: Arc<Mutex<Tail>>,
}

impl Log {
    /// Reads where the log stands, and its newest entries.
    pub async fn open(store: Store) -> io::Result<Self> {
        let marks = store.raft_marks().await.map_err(|error| failed(&error))?;
        let mut tail = Tail {
            vote: marks.vote.map(|vote| Vote {
                leader_id: openraft::impls::leader_id_std::LeaderId {
                    term: vote.term,
                    voted_for: vote.voter,
                },
                committed: vote.is_committed,
            }),
            committed: marks.committed.map(id_of),
            purged: marks.purged.map(id_of),
            last: marks.last.map(id_of),
            recent: VecDeque::new(),
            bytes: 0,
            appends: 0,
            durable: 0,
            is_closed: false,
        };
        let keep = u64::try_from(TAIL_ENTRIES_MAX / 2).unwrap_or(u64::MAX);
        let end = tail.end();
        let mut from = end.saturating_sub(keep).max(tail.start());
        while from < end {
            let portion = store.raft_entries(from, end, REPLICATED_BYTES_MAX).await;
            let portion = portion.map_err(|error| failed(&error))?;
            for stored in &portion {
                if stored.place.index != from {
                    return Err(io::Error::other(format!("entry {from} is missing")));
                }
                tail.push(decode_entry(stored)?, stored.body.len());
                from += 1;
            }
            if portion.is_empty() {
                return Err(io::Error::other(format!("entry {from} is missing")));
            }
            tail.shorten();
        }
        Ok(Self {
            store,
            tail: Arc::new(Mutex::new(tail)),
        })
    }

    /// Refuses every later write, so that nothing of this instance follows what its successor reads.
    pub fn close(&self) {
        self.tail.lock().is_closed = true;
    }

    /// The last entry.
    pub fn last(&self) -> Option<LogPlace> {
        self.tail.lock().last.as_ref().map(place_of)
    }

    /// Waits until all that was handed over is on disk, with the mark of what is committed.
    pub async fn settle(&self) -> io::Result<()> {
        self.write(RaftWrite::Barrier).await
    }

    /// Hands a write over; answered when it is on disk.
    pub async fn write(&self, write: RaftWrite) -> io::Result<()> {
        if self.tail.lock().is_closed {
            return Err(failed(&StoreError::Closed));
        }
        let (to, answer) = oneshot::channel();
        let done = RaftDone::new(move |outcome| {
            // Nobody waits any more when the instance was dropped.
            to.send(outcome).ok();
        });
        self.store.raft_write(write, done).await;
        match answer.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(failed(&error)),
            Err(_) => Err(failed(&StoreError::Closed)),
        }
    }

    /// The store below.
    pub fn store(&self) -> &Store {
        &self.store
    }

    async fn read(&self, from: u64, to: u64, bytes_max: usize) -> io::Result<Vec<Entry>> {
        let (from, on_disk_to, mut recent) = {
            let tail = self.tail.lock();
            let (from, to) = (from.max(tail.start()), to.min(tail.end()));
            let on_disk_to = to.min(tail.recent_start());
            let recent = if from < on_disk_to && bytes_max < usize::MAX {
                // What is read from the disk is enough for one message.
                Vec::new()
            } else {
                tail.read(from.max(on_disk_to), to, bytes_max)
            };
            (from, on_disk_to, recent)
        };
        if from >= on_disk_to {
            return Ok(recent);
        }
        let stored = self.store.raft_entries(from, on_disk_to, bytes_max).await;
        let stored = stored.map_err(|error| failed(&error))?;
        let mut entries = Vec::with_capacity(stored.len() + recent.len());
        for stored in &stored {
            entries.push(decode_entry(stored)?);
        }
        entries.append(&mut recent);
        // Entries may have been purged meanwhile, at the beginning only.
        for pair in entries.windows(2) {
            if pair[0].log_id.index + 1 != pair[1].log_id.index {
                let missing = pair[0].log_id.index + 1;
                return Err(io::Error::other(format!("entry {missing} is missing")));
            }
        }
        Ok(entries)
    }
}

impl RaftLogReader<TypeConfig> for Log {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: R,
    ) -> Result<Vec<Entry>, io::Error> {
        let from = match range.start_bound() {
            Bound::Included(from) => *from,
            Bound::Excluded(before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let to = match range.end_bound() {
            Bound::Included(last) => last.saturating_add(1),
            Bound::Excluded(to) => *to,
            Bound::Unbounded => u64::MAX,
        };
        self.read(from, to, usize::MAX).await
    }

    async fn limited_get_log_entries(
        &mut self,
        start: u64,
        end: u64,
    ) -> Result<Vec<Entry>, io::Error> {
        self.read(start, end, REPLICATED_BYTES_MAX).await
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, io::Error> {
        Ok(self.tail.lock().vote)
    }
}

impl RaftLogStorage<TypeConfig> for Log {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<TypeConfig>, io::Error> {
        let tail = self.tail.lock();
        Ok(LogState {
            last_purged_log_id: tail.purged,
            last_log_id: tail.last,
        })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), io::Error> {
        let stored = StoredVote {
            term: vote.leader_id.term,
            voter: vote.leader_id.voted_for,
            is_committed: vote.committed,
        };
        self.write(RaftWrite::Vote(stored)).await?;
        self.tail.lock().vote = Some(*vote);
        Ok(())
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), io::Error> {
        if let Some(committed) = committed {
            self.tail.lock().committed = Some(committed);
            self.store.raft_committed(place_of(&committed));
        }
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, io::Error> {
        Ok(self.tail.lock().committed)
    }

    async fn append<I>(
        &mut self,
        entries: I,
        callback: IOFlushed<TypeConfig>,
    ) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut stored = Vec::new();
        let is_closed = {
            let mut tail = self.tail.lock();
            tail.appends += 1;
            for entry in entries {
                let body = encode_entry(&entry.payload)?;
                let bytes = body.len();
                stored.push(StoredEntry {
                    place: place_of(&entry.log_id),
                    body,
                });
                tail.push(entry, bytes);
            }
            tail.is_closed
        };
        if is_closed {
            callback.io_completed(Err(failed(&StoreError::Closed)));
            return Ok(());
        }
        let tail = Arc::clone(&self.tail);
        let done = RaftDone::new(move |outcome| {
            if outcome.is_ok() {
                let mut tail = tail.lock();
                tail.durable += 1;
                tail.shorten();
            }
            callback.io_completed(outcome.map_err(|error| failed(&error)));
        });
        self.store.raft_write(RaftWrite::Append(stored), done).await;
        Ok(())
    }

    async fn truncate_after(&mut self, last_log_id: Option<LogId>) -> Result<(), io::Error> {
        let after = last_log_id.map(|last| last.index);
        {
            let mut tail = self.tail.lock();
            let start = after.map_or(0, |after| after + 1);
            while let Some(newest) = tail.recent.back()
                && newest.entry.log_id.index >= start
            {
                tail.bytes = tail.bytes.saturating_sub(newest.bytes);
                tail.recent.pop_back();
            }
            if tail.end() > start {
                tail.last = last_log_id;
            }
        }
        self.write(RaftWrite::Truncate { after }).await
    }

    async fn purge(&mut self, log_id: LogId) -> Result<(), io::Error> {
        {
            let mut tail = self.tail.lock();
            while let Some(oldest) = tail.recent.front()
                && oldest.entry.log_id.index <= log_id.index
            {
                tail.pop_front();
            }
            tail.purged = tail.purged.max(Some(log_id));
            if tail.last < Some(log_id) {
                tail.last = Some(log_id);
            }
        }
        self.write(RaftWrite::Purge(place_of(&log_id))).await
    }
}
