//! The durable half of one region: two SQLite files, one writer thread each.
//!
//! ```text
//!            keep, append_change                        flush
//!                    │                                    │
//!        log.db (synchronous = FULL)        counters.db (synchronous = NORMAL)
//!   catalogue, changes, answers, actors     journal ──fold──► counters, holds
//!   identity, consensus log and vote
//!   sync records ───── deleted once counters.db surely holds what they say
//! ```
//!
//! - A *flush* appends what changed to a journal; the process may be killed right after it and loses
//!   nothing. A power cut may lose the last flushes of asynchronous charges, which is what they promise.
//! - A *keep* is on disk before it is answered. All keeps that arrive while the disk is busy share the next
//!   commit.
//! - A *tend*, called by a timer, does one small step of folding, deleting and trimming.
//! - A *restore* hands over everything, to be joined by the receiver in any order.
//!
//! Invariants kept here: 4 (a start is a new actor, numbered durably before it counts), 9 (queue, batch,
//! journal, audit and sync records are bounded), 11 (a refused write stores nothing; an acknowledged keep
//! or change is on disk). The tests below `tests` hold them, with crash images of the files.
//!
//! Not here: clocks (callers tell region time), policies (what a failed store means for a limit is the
//! limit's business), the meaning of catalogue entries and of consensus entries.

mod backup;
mod counters;
mod directory;
mod error;
mod fold;
mod format;
mod health;
mod log;
mod open;
mod raft;
mod restore;
mod schema;
mod sweep;
#[cfg(test)]
mod tests;
mod writer;

use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use parking_lot::Mutex;
use rusqlite::Connection;
use tokio::sync::mpsc;
use tokio::sync::oneshot;

pub use crate::store::backup::BackupError;
pub use crate::store::backup::restore_backup;
pub use crate::store::counters::Batch;
pub use crate::store::counters::SyncMark;
pub use crate::store::counters::Unflushed;
pub use crate::store::error::Garbled;
pub use crate::store::error::OpenError;
pub use crate::store::error::StoreError;
pub use crate::store::format::Group;
pub use crate::store::format::Header;
pub use crate::store::format::decode_answer;
pub use crate::store::format::decode_group;
pub use crate::store::format::decode_header;
pub use crate::store::format::decode_hold;
pub use crate::store::format::decode_row;
pub use crate::store::health::Health;
pub use crate::store::log::Change;
pub use crate::store::log::Kept;
pub use crate::store::open::Opened;
pub use crate::store::open::Snapshot;
pub use crate::store::open::StoredChange;
pub use crate::store::raft::Identity;
pub use crate::store::raft::LogPlace;
pub use crate::store::raft::RaftDone;
pub use crate::store::raft::RaftMarks;
pub use crate::store::raft::RaftWrite;
pub use crate::store::raft::StoredEntry;
pub use crate::store::raft::StoredSnapshot;
pub use crate::store::raft::StoredVote;
pub use crate::store::restore::Restored;
pub use crate::store::restore::Sink;
pub use crate::store::sweep::GRACE;
pub use crate::store::writer::StoreFault;

use crate::domain::name::RegionName;
use crate::domain::time::Timestamp;
use crate::store::health::HealthBoard;
use crate::store::health::Which;
use crate::store::open::Marks;
use crate::store::writer::Control;
use crate::store::writer::Message;
use crate::store::writer::QUEUE_JOBS_MAX;
use crate::store::writer::Reply;

/// Sync records that make a trim worth a sync of the disk.
const SYNC_TRIM_DUE: u64 = 256;
/// Rows of the audit in one answer at most.
pub const AUDIT_PAGE_MAX: u32 = 1_000;

/// An open store. Clones are the same store; the files close when the last one is gone.
#[derive(Clone, Debug)]
pub struct Store {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    log: mpsc::Sender<Message<log::Job>>,
    counters: mpsc::Sender<Message<counters::Job>>,
    log_path: PathBuf,
    counter_path: PathBuf,
    region: RegionName,
    health: Arc<HealthBoard>,
    commits: Arc<AtomicU64>,
    marks: Marks,
    adopted_groups: u64,
    /// Keeps that are queued or being written.
    keeping: AtomicU64,
    identity: Mutex<Identity>,
    /// The newest committed place in the consensus log.
    raft_committed: Mutex<Option<LogPlace>>,
    /// A connection that waits for the next reader of the consensus log.
    raft_reader: Mutex<Option<Connection>>,
    /// Last, because fields are dropped in order: the queues are closed when the threads are waited for.
    threads: Threads,
}

/// The writers' threads. They end when their queues are closed; dropping waits for that, so that the files
/// are closed and unlocked when the store is gone. That takes as long as what is queued and a checkpoint.
#[derive(Debug)]
struct Threads {
    running: Mutex<Vec<JoinHandle<()>>>,
}

impl Threads {
    fn new(running: Vec<JoinHandle<()>>) -> Self {
        Self {
            running: Mutex::new(running),
        }
    }

    /// Waits for the threads to end; their queues must be closed.
    fn join(&self) {
        for thread in self.running.lock().drain(..) {
            // A panic in a writer has been reported by its sentinel.
            thread.join().ok();
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.join();
    }
}

/// A place in the log file's queue.
#[derive(Debug)]
pub struct KeepPermit {
    place: mpsc::OwnedPermit<Message<log::Job>>,
    store: Store,
}

impl KeepPermit {
    /// Puts `kept` in the queue: it is written after all that was put there before.
    pub fn send(self, kept: Kept) -> Keeping {
        let Self { place, store } = self;
        store.inner.health.saw(kept.now);
        store.inner.keeping.fetch_add(1, Ordering::AcqRel);
        let (to, answer) = oneshot::channel();
        place.send(Message::Job(log::Job::Keep(kept, to)));
        Keeping {
            answer,
            _underway: Underway(store),
        }
    }
}

/// Something that is on its way to the disk.
#[derive(Debug)]
pub struct Keeping {
    answer: oneshot::Receiver<Result<(), StoreError>>,
    _underway: Underway,
}

/// Counts a keep as under way until it is dropped.
#[derive(Debug)]
struct Underway(Store);

impl Drop for Underway {
    fn drop(&mut self) {
        self.0.inner.keeping.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Keeping {
    /// Waits until it is on disk.
    ///
    /// # Errors
    /// When the store has failed. Whether it is on disk is then not known.
    pub async fn wait(mut self) -> Result<(), StoreError> {
        (&mut self.answer).await.map_err(|_| StoreError::Closed)?
    }
}

/// A row of the audit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditRow {
    /// Place in the log.
    pub index: u64,
    /// Region time of the change.
    pub at: Timestamp,
    /// Who made it.
    pub author: String,
    /// What it did.
    pub summary: String,
}

/// Figures for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Transactions of callers' jobs that were committed since the start, both files together.
    pub commits: u64,
    /// Jobs that wait for their transaction, both files together.
    pub pending: u64,
    /// Committed groups of sync charges that are not trimmed yet.
    pub sync_groups: u64,
}

impl Store {
    fn new(inner: Inner) -> Self {
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Opens `dir` for `region`, laying it out when it is empty or not there.
    ///
    /// `incarnation` is this start's random number. Blocks on the disk.
    ///
    /// # Errors
    /// When the directory is in use, foreign, of another region, of a newer schema, damaged or not
    /// writable. Its files are then as they were before.
    pub fn open(dir: &Path, region: &RegionName, incarnation: u64) -> Result<Opened, OpenError> {
        open::open(dir, region, incarnation)
    }

    /// Hands everything over that had not ended by `now`, or everything when `now` is not given.
    ///
    /// Blocks on the disk; call it once after opening, before anything is written.
    ///
    /// # Errors
    /// When anything cannot be read. The sink has then seen a part only and must not be used.
    pub fn restore(
        &self,
        now: Option<Timestamp>,
        sink: &mut dyn Sink,
    ) -> Result<Restored, StoreError> {
        let inner = &self.inner;
        let restored = restore::restore(&inner.log_path, &inner.counter_path, now, sink)?;
        Ok(Restored {
            sync: restored.sync.saturating_add(inner.adopted_groups),
            ..restored
        })
    }

    /// Appends what changed to the counter file. When it is answered, a kill of the process loses none of it.
    ///
    /// # Errors
    /// When the store has failed or is closed; the batch comes back with the error.
    pub async fn flush(&self, batch: Batch) -> Result<(), Unflushed> {
        self.inner.health.saw(batch.now);
        let batch = Box::new(batch);
        if let Some(error) = self.inner.health.refusal(Which::Counters) {
            return Err(Unflushed { error, batch });
        }
        let (to, answer) = oneshot::channel();
        let message = Message::Job(counters::Job::Flush(batch, to));
        if let Err(mpsc::error::SendError(message)) = self.inner.counters.send(message).await {
            let Message::Job(counters::Job::Flush(batch, _)) = message else {
                return Err(Unflushed {
                    error: StoreError::Closed,
                    batch: Box::default(),
                });
            };
            return Err(Unflushed {
                error: StoreError::Closed,
                batch,
            });
        }
        // A queue that is closed with the job in it has lost the batch with it: the process is ending.
        answer.await.unwrap_or_else(|_| {
            Err(Unflushed {
                error: StoreError::Closed,
                batch: Box::default(),
            })
        })
    }

    /// Takes a place in the log file's queue, so that something can be put there without waiting.
    ///
    /// # Errors
    /// When the store has failed or is closed.
    pub async fn keep_permit(&self) -> Result<KeepPermit, StoreError> {
        if let Some(error) = self.inner.health.refusal(Which::Log) {
            return Err(error);
        }
        let place = self
            .inner
            .log
            .clone()
            .reserve_owned()
            .await
            .map_err(|_| StoreError::Closed)?;
        Ok(KeepPermit {
            place,
            store: self.clone(),
        })
    }

    /// Writes to the log file; answered when it is on disk.
    ///
    /// # Errors
    /// When the store has failed or is closed. Whether anything is on disk is then not known.
    pub async fn keep(&self, kept: Kept) -> Result<(), StoreError> {
        self.keep_permit().await?.send(kept).wait().await
    }

    /// Waits until everything is on disk that was put in the log file's queue before.
    ///
    /// # Errors
    /// When the store has failed or is closed.
    pub async fn keep_barrier(&self, now: Timestamp) -> Result<(), StoreError> {
        if self.inner.keeping.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        // The writer carries its queue out in order, so this is answered after all that came before.
        self.keep(Kept {
            records: Vec::new(),
            holds: Vec::new(),
            answers: Vec::new(),
            now,
        })
        .await
    }

    /// Appends a change of the catalogue; answered when it is on disk.
    ///
    /// # Errors
    /// When the store has failed or is closed, or when the index is not higher than all before.
    pub async fn append_change(&self, change: Change) -> Result<(), StoreError> {
        self.inner.health.saw(change.at);
        self.write_log(|to| log::Job::Append {
            change,
            outcome: Ok(()),
            to,
        })
        .await
    }

    /// The moment up to which sync charges are kept; see [`Batch::covers`].
    pub fn sync_mark(&self) -> SyncMark {
        SyncMark(self.inner.marks.kept.load(Ordering::Acquire))
    }

    /// One small step of housekeeping; answers whether more waits. Meant for a timer, about four times a
    /// second, and again at once while more waits.
    ///
    /// # Errors
    /// When the store has failed or is closed.
    pub async fn tend(&self, now: Timestamp) -> Result<bool, StoreError> {
        self.inner.health.saw(now);
        let more_counters = self
            .write_counters(|to| counters::Job::Tend {
                now,
                more: false,
                to,
            })
            .await?;
        self.advance_durable(!more_counters).await?;
        let trim_to = self.inner.marks.durable.load(Ordering::Acquire);
        let more_log = self
            .write_log(|to| log::Job::Tend {
                now,
                trim_to,
                committed: self.raft_committed_now(),
                more: false,
                to,
            })
            .await?;
        Ok(more_counters || more_log)
    }

    /// Makes sure that charges covered by committed flushes outlive a power cut. That takes a sync of the
    /// disk, so it waits until there is something to gain or nothing else to do.
    async fn advance_durable(&self, is_idle: bool) -> Result<(), StoreError> {
        let marks = &self.inner.marks;
        // Read before the checkpoint: what is covered while it runs waits for the next one.
        let covered = marks.covered.load(Ordering::Acquire);
        let waiting = covered.saturating_sub(marks.durable.load(Ordering::Acquire));
        if waiting >= SYNC_TRIM_DUE || (waiting > 0 && is_idle) {
            let is_complete = control(&self.inner.counters, Control::Checkpoint).await?;
            if is_complete {
                marks.durable.fetch_max(covered, Ordering::Release);
            }
        }
        Ok(())
    }

    /// Changes after `after`, oldest first, at most `page_size` and [`AUDIT_PAGE_MAX`].
    ///
    /// # Errors
    /// When the log file cannot be read.
    pub async fn audit(&self, after: u64, page_size: u32) -> Result<Vec<AuditRow>, StoreError> {
        let path = self.inner.log_path.clone();
        let page_size = page_size.min(AUDIT_PAGE_MAX);
        blocking(move || read_audit(&path, after, page_size)).await
    }

    /// Whether the store works.
    pub fn health(&self) -> Health {
        self.inner.health.health()
    }

    /// Whether the store has failed: one relaxed load.
    pub fn is_failed(&self) -> bool {
        self.inner.health.is_failed()
    }

    /// Figures for metrics.
    pub fn stats(&self) -> Stats {
        let inner = &self.inner;
        let waiting =
            |max: usize, free: usize| u64::try_from(max.saturating_sub(free)).unwrap_or(u64::MAX);
        let kept = inner.marks.kept.load(Ordering::Relaxed);
        Stats {
            commits: inner.commits.load(Ordering::Relaxed),
            pending: waiting(QUEUE_JOBS_MAX, inner.log.capacity())
                .saturating_add(waiting(QUEUE_JOBS_MAX, inner.counters.capacity())),
            sync_groups: kept.saturating_sub(inner.marks.durable.load(Ordering::Relaxed)),
        }
    }

    /// Tries a real write to both files; a failed one is opened again first. Success ends the failure.
    ///
    /// # Errors
    /// When either file still refuses.
    pub async fn probe(&self) -> Result<(), StoreError> {
        let log = control(&self.inner.log, Control::Probe).await;
        let counters = control(&self.inner.counters, Control::Probe).await;
        log?.and(counters?)
    }

    /// Makes the store fail on purpose, from now until [`Store::clear_fault`] and a probe.
    ///
    /// # Errors
    /// When the store is closed.
    pub async fn inject(&self, fault: StoreFault) -> Result<(), StoreError> {
        self.set_fault(Some(fault)).await
    }

    /// Ends a fault. The store works again after the next probe.
    ///
    /// # Errors
    /// When the store is closed.
    pub async fn clear_fault(&self) -> Result<(), StoreError> {
        self.set_fault(None).await
    }

    async fn set_fault(&self, fault: Option<StoreFault>) -> Result<(), StoreError> {
        control(&self.inner.log, |to| Control::Fault(fault, to)).await?;
        control(&self.inner.counters, |to| Control::Fault(fault, to)).await
    }

    /// Copies both files into one file at `to`, which must not exist; answers its size in bytes. Flush
    /// before: what was charged after the last flush is not in it.
    ///
    /// # Errors
    /// When a file cannot be read or the copy cannot be written; nothing is left at `to` then.
    pub async fn backup(&self, to: &Path) -> Result<u64, BackupError> {
        let (store, to) = (self.clone(), to.to_owned());
        let copied = tokio::task::spawn_blocking(move || backup::backup(&store.inner, &to)).await;
        copied.unwrap_or_else(|error| Err(BackupError::Store(StoreError::read(&error))))
    }

    /// Carries out what is queued, checkpoints and closes both files. Everything asked later is refused.
    ///
    /// # Errors
    /// When it was closed before.
    pub async fn close(&self) -> Result<(), StoreError> {
        *self.inner.raft_reader.lock() = None;
        let log = control(&self.inner.log, Control::Close).await;
        let counters = control(&self.inner.counters, Control::Close).await;
        // Their answers were the last thing that the threads did.
        self.inner.threads.join();
        log.and(counters)
    }

    async fn write_log<T>(&self, job: impl FnOnce(Answer<T>) -> log::Job) -> Result<T, StoreError> {
        if let Some(error) = self.inner.health.refusal(Which::Log) {
            return Err(error);
        }
        ask(&self.inner.log, |to| Message::Job(job(to))).await?
    }

    async fn write_counters<T>(
        &self,
        job: impl FnOnce(Answer<T>) -> counters::Job,
    ) -> Result<T, StoreError> {
        if let Some(error) = self.inner.health.refusal(Which::Counters) {
            return Err(error);
        }
        ask(&self.inner.counters, |to| Message::Job(job(to))).await?
    }
}

type Answer<T> = Reply<Result<T, StoreError>>;

/// Sends one message and waits for its answer.
async fn ask<M, T>(
    queue: &mpsc::Sender<M>,
    message: impl FnOnce(Reply<T>) -> M,
) -> Result<T, StoreError> {
    let (to, answer) = oneshot::channel();
    queue
        .send(message(to))
        .await
        .map_err(|_| StoreError::Closed)?;
    answer.await.map_err(|_| StoreError::Closed)
}

async fn control<J, T>(
    queue: &mpsc::Sender<Message<J>>,
    control: impl FnOnce(Reply<T>) -> Control,
) -> Result<T, StoreError> {
    ask(queue, |to| Message::Control(control(to))).await
}

/// Runs something that waits for the disk beside the asynchronous tasks.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(StoreError::read(&error)))
}

fn read_audit(log: &Path, after: u64, page_size: u32) -> Result<Vec<AuditRow>, StoreError> {
    let reader = schema::open_reader(log)?;
    let mut select = reader.prepare(
        "SELECT idx, at, author, summary FROM changes WHERE idx > ?1 ORDER BY idx LIMIT ?2",
    )?;
    let rows = select.query_map((after, page_size), |row| {
        Ok(AuditRow {
            index: row.get(0)?,
            at: Timestamp::from_nanos(row.get(1)?),
            author: row.get(2)?,
            summary: row.get(3)?,
        })
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}
