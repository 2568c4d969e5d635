//! A node's disk: what is written is readable at once and durable after a sync, which takes its time. A crash
//! keeps what was durable and some beginning of the rest.
//!
//! [`Log`] is the library's view of it, like the product's log over its store: one writer, in order; votes,
//! truncations and snapshots are answered when they are durable, appends call back then.

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::fmt::Debug;
use std::io;
use std::ops::RangeBounds;
use std::sync::Arc;

use openraft::LogState;
use openraft::OptionalSend;
use openraft::RaftLogReader;
use openraft::storage::IOFlushed;
use openraft::storage::RaftLogStorage;
use tokio::sync::oneshot;

use super::Sim;
use super::types::Entry;
use super::types::LogId;
use super::types::SimConfig;
use super::types::Snapshot;
use super::types::Vote;
use crate::model::MS;
use crate::model::rng::Rng;

/// Entries in one message to a follower.
const REPLICATED_MAX: u64 = 64;

/// What a disk holds.
#[derive(Clone, Default)]
pub struct Image {
    pub vote: Option<Vote>,
    pub committed: Option<LogId>,
    pub purged: Option<LogId>,
    pub entries: BTreeMap<u64, Entry>,
    pub snapshot: Option<Snapshot>,
}

/// One write.
#[derive(Clone)]
pub enum Write {
    Vote(Vote),
    Committed(LogId),
    Append(Entry),
    /// Everything from this index on goes.
    Truncate(u64),
    Purge(LogId),
    Snapshot(Snapshot),
}

impl Image {
    fn last(&self) -> Option<LogId> {
        let newest = self.entries.values().next_back();
        newest.map(|entry| entry.log_id).max(self.purged)
    }

    fn write(&mut self, write: Write) {
        match write {
            Write::Vote(vote) => self.vote = Some(vote),
            Write::Committed(committed) => self.committed = Some(committed),
            Write::Append(entry) => {
                self.entries.insert(entry.log_id.index, entry);
            }
            Write::Truncate(from) => {
                self.entries.split_off(&from);
            }
            Write::Purge(upto) => {
                self.entries = self.entries.split_off(&(upto.index + 1));
                self.purged = self.purged.max(Some(upto));
            }
            Write::Snapshot(snapshot) => self.snapshot = Some(snapshot),
        }
    }
}

type Done = Box<dyn FnOnce(io::Result<()>) + Send>;

/// See the module.
#[derive(Default)]
pub struct Disk {
    durable: Image,
    seen: Image,
    queue: VecDeque<(Write, Option<Done>)>,
    /// The life that may write.
    life: u64,
    is_syncing: bool,
    /// Syncs take so many times longer.
    pub slowness: u64,
}

impl Disk {
    /// The machine starts: only what is durable is there.
    pub fn open(&mut self, life: u64) {
        self.life = life;
        self.seen = self.durable.clone();
        self.is_syncing = false;
    }

    /// The machine stops: of what was not synced only some beginning is there. Gives how much was lost.
    pub fn crash(&mut self, rng: &mut Rng) -> usize {
        let kept = rng.between(0, self.queue.len() as u64 + 1) as usize;
        let lost = self.queue.len() - kept;
        for (write, _) in self.queue.drain(..).take(kept) {
            self.durable.write(write);
        }
        self.life = 0;
        lost
    }
}

/// The log of one life of a node.
#[derive(Clone)]
pub struct Log {
    sim: Arc<Sim>,
    node: usize,
    life: u64,
}

fn stopped() -> io::Error {
    io::Error::other("the process has ended")
}

impl Log {
    pub fn new(sim: Arc<Sim>, node: usize, life: u64) -> Self {
        Self { sim, node, life }
    }

    fn seen<T>(&self, read: impl FnOnce(&Image) -> T) -> io::Result<T> {
        let disk = self.sim.nodes[self.node].disk.lock();
        if disk.life != self.life {
            return Err(stopped());
        }
        Ok(read(&disk.seen))
    }

    /// Hands writes over; `done` is called when the last one is durable.
    fn put(&self, writes: Vec<Write>, done: Option<Done>) {
        let mut disk = self.sim.nodes[self.node].disk.lock();
        if disk.life != self.life {
            drop(disk);
            if let Some(done) = done {
                done(Err(stopped()));
            }
            return;
        }
        let count = writes.len();
        let mut done = done;
        for (place, write) in writes.into_iter().enumerate() {
            disk.seen.write(write.clone());
            let done = if place + 1 == count {
                done.take()
            } else {
                None
            };
            disk.queue.push_back((write, done));
        }
        let is_idle = !disk.is_syncing;
        disk.is_syncing = true;
        drop(disk);
        if let Some(done) = done {
            done(Ok(()));
        }
        if is_idle {
            let log = self.clone();
            self.sim.spawn(async move { log.sync().await });
        }
    }

    /// Syncs until there is nothing more to sync.
    async fn sync(self) {
        let sim = Arc::clone(&self.sim);
        loop {
            let (count, slowness) = {
                let disk = sim.nodes[self.node].disk.lock();
                (disk.queue.len(), disk.slowness)
            };
            let takes = sim.rng.lock().exponential(2.0 * MS as f64) as u64 + MS / 5;
            sim.sleep(takes * (1 + slowness)).await;
            sim.unpaused(self.node).await;
            let mut done = Vec::new();
            let is_idle = {
                let mut disk = sim.nodes[self.node].disk.lock();
                if disk.life != self.life {
                    return;
                }
                for (write, tell) in disk.queue.drain(..count).collect::<Vec<_>>() {
                    disk.durable.write(write);
                    done.extend(tell);
                }
                disk.is_syncing = !disk.queue.is_empty();
                disk.queue.is_empty()
            };
            for tell in done {
                tell(Ok(()));
            }
            if is_idle {
                return;
            }
        }
    }

    /// Writes and waits until that is durable.
    pub async fn write(&self, write: Write) -> io::Result<()> {
        let (tell, told) = oneshot::channel();
        let done: Done = Box::new(move |outcome| {
            tell.send(outcome).ok();
        });
        self.put(vec![write], Some(done));
        told.await.unwrap_or_else(|_| Err(stopped()))
    }

    pub fn snapshot(&self) -> io::Result<Option<Snapshot>> {
        self.seen(|image| image.snapshot.clone())
    }
}

impl RaftLogReader<SimConfig> for Log {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: R,
    ) -> Result<Vec<Entry>, io::Error> {
        self.seen(|image| {
            let entries = image.entries.range(range);
            entries.map(|(_, entry)| entry.clone()).collect()
        })
    }

    async fn limited_get_log_entries(
        &mut self,
        start: u64,
        end: u64,
    ) -> Result<Vec<Entry>, io::Error> {
        let end = end.min(start + REPLICATED_MAX);
        self.try_get_log_entries(start..end).await
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, io::Error> {
        self.seen(|image| image.vote)
    }
}

impl RaftLogStorage<SimConfig> for Log {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<SimConfig>, io::Error> {
        self.seen(|image| LogState {
            last_purged_log_id: image.purged,
            last_log_id: image.last(),
        })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), io::Error> {
        self.write(Write::Vote(*vote)).await
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), io::Error> {
        if let Some(committed) = committed {
            self.put(vec![Write::Committed(committed)], None);
        }
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, io::Error> {
        self.seen(|image| image.committed)
    }

    async fn append<I>(
        &mut self,
        entries: I,
        callback: IOFlushed<SimConfig>,
    ) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let writes = entries.into_iter().map(Write::Append).collect();
        self.put(
            writes,
            Some(Box::new(move |outcome| callback.io_completed(outcome))),
        );
        Ok(())
    }

    async fn truncate_after(&mut self, last_log_id: Option<LogId>) -> Result<(), io::Error> {
        let from = last_log_id.map_or(0, |last| last.index + 1);
        self.write(Write::Truncate(from)).await
    }

    async fn purge(&mut self, log_id: LogId) -> Result<(), io::Error> {
        self.write(Write::Purge(log_id)).await
    }
}
