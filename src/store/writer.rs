//! The one thread that writes a file.
//!
//! ```text
//! jobs ──► bounded queue ──► up to 512 at a time ──► ONE transaction ──► commit ──► answer all of them
//! ```
//!
//! While a commit waits for the disk the next jobs gather, so many callers share one sync of the disk. A
//! busy file is tried again a bounded number of times; any other failure marks the file failed, answers
//! all jobs with the reason, and from then on jobs are refused until a probe has reopened the file and
//! written to it. Nothing is answered before its transaction is committed.
//!
//! What a job writes is the business of a [`Lane`]; this file knows no table but the scratch table.

use std::fs::File;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::sync::mpsc as blocking;

use rusqlite::Connection;
use rusqlite::Transaction;
use rusqlite::TransactionBehavior;
use rusqlite::wal::CheckpointMode;
use tokio::sync::mpsc;
use tokio::sync::oneshot;

use crate::store::error::StoreError;
use crate::store::error::WriteError;
use crate::store::health::HealthBoard;
use crate::store::health::Which;
use crate::store::schema;
use crate::store::schema::Schema;

/// Jobs in one transaction at most: bounds both the wait of the first and the memory of all.
const BATCH_JOBS_MAX: usize = 512;
/// Jobs waiting at most; a full queue makes callers wait.
pub(super) const QUEUE_JOBS_MAX: usize = 4096;
/// Tries of one transaction while the file is busy; each waits for the busy timeout.
const ATTEMPTS_MAX: u32 = 3;
/// Scratch that a probe writes: more than a page cache or a half-filled page could hide.
const PROBE_BYTES: i64 = 64 * 1024;
const PAGE_BYTES: i64 = 4096;
/// Below SQLite's bound of 10^9 bytes in one value.
const BLOB_BYTES_MAX: i64 = 900_000_000;
/// SQLite's own default for `max_page_count`.
const PAGES_MAX_DEFAULT: i64 = 4_294_967_294;

/// A failure that is caused on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreFault {
    /// Every transaction fails before it begins.
    Errors,
    /// The files may not grow: SQLite itself reports a full disk.
    Full,
}

/// What the jobs of one file are and what they write.
pub(super) trait Lane: Send + 'static {
    /// One request with the way back to its caller.
    type Job: Send + 'static;

    /// Writes all jobs. Runs again from the start when the transaction could not be committed.
    fn write(&mut self, tx: &Transaction<'_>, jobs: &mut [Self::Job]) -> Result<(), WriteError>;

    /// The transaction of these jobs is committed: makes their effects visible and answers them.
    fn committed(&mut self, jobs: Vec<Self::Job>);

    /// The transaction is gone: forgets what the lane remembered of it.
    fn rolled_back(&mut self);

    /// Answers a job that was not carried out.
    fn refuse(job: Self::Job, error: &StoreError);

    /// What a probe tries besides writing.
    fn probe(&mut self, tx: &Transaction<'_>) -> Result<(), WriteError>;
}

/// Carries the answer back to a caller.
pub(super) type Reply<T> = oneshot::Sender<T>;

/// Answers a caller, who may have stopped waiting in the meantime: then nobody needs the answer.
pub(super) fn reply<T>(to: Reply<T>, answer: T) {
    drop(to.send(answer));
}

pub(super) enum Message<J> {
    Job(J),
    Control(Control),
}

/// What is done between transactions.
pub(super) enum Control {
    /// Reopens a failed file and tries to write.
    Probe(Reply<Result<(), StoreError>>),
    /// Begins or ends a fault.
    Fault(Option<StoreFault>, Reply<()>),
    /// Copies committed pages into the main file and syncs it; answers whether that was all of them.
    Checkpoint(Reply<bool>),
    /// Commits nothing from the moment it says so until it is released.
    Pin {
        reached: blocking::SyncSender<()>,
        release: blocking::Receiver<()>,
    },
    /// Carries out what is queued, then closes the file.
    Close(Reply<()>),
}

/// The thread's state.
pub(super) struct Writer<L: Lane> {
    pub which: Which,
    pub path: PathBuf,
    pub schema: &'static Schema,
    pub lane: L,
    pub connection: Option<Connection>,
    pub inbox: mpsc::Receiver<Message<L::Job>>,
    pub health: Arc<HealthBoard>,
    pub commits: Arc<AtomicU64>,
    pub fault: Option<StoreFault>,
    /// Held open, and so locked, until both writers are done.
    pub lock: Arc<File>,
}

impl<L: Lane> Writer<L> {
    /// Works until the last sender is gone or a close is asked for.
    pub fn run(mut self) {
        let mut closing = None;
        while let Some(first) = self.inbox.blocking_recv() {
            let (jobs, control) = self.gather(first);
            if !jobs.is_empty() {
                self.carry_out(jobs);
            }
            if let Some(control) = control
                && let ControlFlow::Break(reply) = self.steer(control)
            {
                closing = Some(reply);
                // What is queued is still carried out; nothing new comes in.
                self.inbox.close();
            }
        }
        self.finish();
        let Self {
            connection, lock, ..
        } = self;
        drop(connection);
        drop(lock);
        if let Some(closing) = closing {
            reply(closing, ());
        }
    }

    fn gather(&mut self, first: Message<L::Job>) -> (Vec<L::Job>, Option<Control>) {
        let mut jobs = Vec::new();
        let mut next = Some(first);
        while let Some(message) = next {
            match message {
                Message::Job(job) => jobs.push(job),
                Message::Control(control) => return (jobs, Some(control)),
            }
            next = if jobs.len() < BATCH_JOBS_MAX {
                self.inbox.try_recv().ok()
            } else {
                None
            };
        }
        (jobs, None)
    }

    fn carry_out(&mut self, mut jobs: Vec<L::Job>) {
        if let Some(error) = self.health.refusal(self.which) {
            jobs.into_iter().for_each(|job| L::refuse(job, &error));
            return;
        }
        let mut attempt = 1;
        let failure = loop {
            match self.attempt(&mut jobs) {
                Ok(()) => {
                    self.commits.fetch_add(1, Ordering::Relaxed);
                    self.lane.committed(jobs);
                    return;
                }
                Err(error) => {
                    self.lane.rolled_back();
                    if attempt == ATTEMPTS_MAX || !error.is_transient() {
                        break error;
                    }
                    attempt += 1;
                }
            }
        };
        let error = self.fail(&failure);
        jobs.into_iter().for_each(|job| L::refuse(job, &error));
    }

    fn attempt(&mut self, jobs: &mut [L::Job]) -> Result<(), WriteError> {
        let tx = begin(&mut self.connection, self.fault, self.schema)?;
        self.lane.write(&tx, jobs)?;
        tx.commit()?;
        Ok(())
    }

    fn fail(&mut self, failure: &WriteError) -> StoreError {
        let reason = format!("{}: {failure}", self.schema.file);
        if self.health.refusal(self.which).is_none() {
            tracing::error!(file = self.schema.file, reason = %failure, "the store has failed");
        }
        self.health.fail(self.which, reason)
    }

    fn steer(&mut self, control: Control) -> ControlFlow<Reply<()>> {
        match control {
            Control::Probe(to) => {
                let outcome = self.probe();
                reply(to, outcome);
            }
            Control::Fault(fault, to) => {
                self.set_fault(fault);
                reply(to, ());
            }
            Control::Checkpoint(to) => {
                let complete = self.checkpoint();
                reply(to, complete);
            }
            Control::Pin { reached, release } => {
                // Either end may be gone already: then there is nobody to wait for.
                if reached.send(()).is_ok() {
                    release.recv().ok();
                }
            }
            Control::Close(to) => return ControlFlow::Break(to),
        }
        ControlFlow::Continue(())
    }

    fn probe(&mut self) -> Result<(), StoreError> {
        let was_failed = self.health.refusal(self.which).is_some();
        if was_failed {
            // A connection that has seen an I/O error may hold a stale view of the file.
            self.connection = None;
            self.connection = schema::open_writer(&self.path, self.schema).ok();
            self.limit_size();
        }
        match self.trial() {
            Ok(()) => {
                self.health.recover(self.which);
                if was_failed {
                    tracing::info!(file = self.schema.file, "the store works again");
                }
                Ok(())
            }
            Err(error) => Err(self.fail(&error)),
        }
    }

    fn trial(&mut self) -> Result<(), WriteError> {
        let tx = begin(&mut self.connection, self.fault, self.schema)?;
        tx.prepare_cached(self.schema.probe_fill)?
            .execute([PROBE_BYTES])?;
        self.lane.probe(&tx)?;
        tx.commit()?;
        let tx = begin(&mut self.connection, self.fault, self.schema)?;
        tx.prepare_cached(self.schema.probe_clear)?.execute([])?;
        tx.commit()?;
        Ok(())
    }

    /// A fault shows at once: its beginning is followed by a write that it makes fail.
    fn set_fault(&mut self, fault: Option<StoreFault>) {
        self.fault = fault;
        self.limit_size();
        if fault.is_some()
            && let Err(error) = self.trial()
        {
            self.fail(&error);
        }
    }

    fn limit_size(&mut self) {
        let Some(connection) = &self.connection else {
            return;
        };
        let limit = match self.fault {
            Some(StoreFault::Full) => {
                connection.pragma_query_value(None, "page_count", |row| row.get(0))
            }
            Some(StoreFault::Errors) | None => Ok(PAGES_MAX_DEFAULT),
        };
        let set = limit.and_then(|pages: i64| {
            connection
                .pragma_update_and_check(None, "max_page_count", pages, |row| row.get::<_, i64>(0))
        });
        if let Err(error) = set {
            tracing::warn!(file = self.schema.file, %error, "the size limit of the file could not be set");
        }
    }

    fn checkpoint(&mut self) -> bool {
        let Some(connection) = &self.connection else {
            return false;
        };
        if self.fault.is_some() || self.health.refusal(self.which).is_some() {
            return false;
        }
        // Passive never waits for a reader; when one stands in the way the next try does the rest. The
        // main file is synced exactly when all frames have been copied.
        match connection.wal_checkpoint_v2(rusqlite::DEFAULT_NAME, CheckpointMode::PASSIVE) {
            Ok((frames, copied)) => frames >= 0 && frames == copied,
            Err(error) => {
                let error = WriteError::from(error);
                if !error.is_transient() {
                    self.fail(&error);
                }
                false
            }
        }
    }

    fn finish(&mut self) {
        let Some(connection) = &self.connection else {
            return;
        };
        if self.health.refusal(self.which).is_some() {
            return;
        }
        let tidied = connection.execute_batch("PRAGMA optimize").and_then(|()| {
            connection
                .wal_checkpoint_v2(rusqlite::DEFAULT_NAME, CheckpointMode::TRUNCATE)
                .map(|_| ())
        });
        if let Err(error) = tidied {
            // Everything acknowledged is in the write-ahead log; the next start reads it from there.
            tracing::warn!(file = self.schema.file, %error, "the last checkpoint failed");
        }
    }
}

/// Begins a transaction, under a fault one that fails.
fn begin<'c>(
    connection: &'c mut Option<Connection>,
    fault: Option<StoreFault>,
    schema: &Schema,
) -> Result<Transaction<'c>, WriteError> {
    if fault == Some(StoreFault::Errors) {
        return Err(WriteError::Injected);
    }
    let connection = connection.as_mut().ok_or(WriteError::NotOpen)?;
    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    if fault == Some(StoreFault::Full) {
        // The file cannot grow, but free pages inside it would still take small writes for a while. Asking
        // for more than all of them makes SQLite say that the disk is full right away.
        let free: i64 = tx.pragma_query_value(None, "freelist_count", |row| row.get(0))?;
        let bytes = free
            .saturating_add(2)
            .saturating_mul(PAGE_BYTES)
            .min(BLOB_BYTES_MAX);
        tx.prepare_cached(schema.probe_fill)?.execute([bytes])?;
    }
    Ok(tx)
}
