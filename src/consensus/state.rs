//! The machine that the log drives, as the consensus library sees it.
//!
//! Its state is in memory and outlives a restart of the library in this process. Snapshots are in the store;
//! a start takes the newest one and applies what the log holds after it.

use std::io;
use std::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::Stream;
use futures_util::TryStreamExt;
use openraft::EntryPayload;
use openraft::OptionalSend;
use openraft::RaftSnapshotBuilder;
use openraft::storage::EntryResponder;
use openraft::storage::RaftStateMachine;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::consensus::Committed;
use crate::consensus::Machine;
use crate::consensus::log::Log;
use crate::consensus::log::failed;
use crate::consensus::types::LogId;
use crate::consensus::types::Outcome;
use crate::consensus::types::Snapshot;
use crate::consensus::types::SnapshotMeta;
use crate::consensus::types::StoredMembers;
use crate::consensus::types::TypeConfig;
use crate::consensus::types::membership_of;
use crate::store::RaftWrite;
use crate::store::StoredSnapshot;

/// The machine with how far it has come.
pub(super) struct Applied {
    machine: Arc<dyn Machine>,
    at: Mutex<At>,
    index: watch::Sender<u64>,
}

#[derive(Clone, Default)]
struct At {
    last: Option<LogId>,
    members: StoredMembers,
}

impl Applied {
    pub fn new(machine: Arc<dyn Machine>) -> Self {
        Self {
            machine,
            at: Mutex::new(At::default()),
            index: watch::Sender::new(0),
        }
    }

    /// Index of the newest applied entry.
    pub fn index(&self) -> watch::Receiver<u64> {
        self.index.subscribe()
    }

    /// The newest applied entry.
    pub fn last(&self) -> Option<LogId> {
        self.at.lock().last
    }

    /// A snapshot of this moment. Only called between two entries.
    pub fn snapshot(&self) -> Snapshot {
        let at = self.at.lock().clone();
        Snapshot {
            meta: SnapshotMeta {
                last_log_id: at.last,
                last_membership: at.members,
            },
            snapshot: Bytes::from(self.machine.snapshot()),
        }
    }

    /// A machine that panics stops consensus here. Without this the library would go on without it, taking
    /// entries in that are never answered.
    fn carry_out(&self, entry: Committed<'_>) -> io::Result<Outcome> {
        catch_unwind(AssertUnwindSafe(|| self.machine.apply(entry)))
            .map(Outcome)
            .map_err(|_| {
                let index = entry.index;
                io::Error::other(format!("the machine cannot carry entry {index} out"))
            })
    }

    fn tell(&self) {
        if let Some(last) = self.last() {
            self.index.send_replace(last.index);
        }
    }
}

/// The handle of one instance of the library on the machine.
pub(super) struct State {
    applied: Arc<Applied>,
    log: Log,
    /// Place of the snapshot in the store, once it was read or written.
    stored: Option<LogId>,
}

impl State {
    pub fn new(applied: Arc<Applied>, log: Log) -> Self {
        Self {
            applied,
            log,
            stored: None,
        }
    }
}

/// Writes a snapshot that was taken before.
pub(super) struct Builder {
    snapshot: Snapshot,
    log: Log,
}

/// Puts a snapshot in the store; answered when it is on disk.
pub(super) async fn store_snapshot(log: &Log, meta: &SnapshotMeta, body: &Bytes) -> io::Result<()> {
    let snapshot = StoredSnapshot {
        index: meta.last_log_id.map_or(0, |last| last.index),
        meta: postcard::to_stdvec(meta).map_err(io::Error::other)?,
        body: body.to_vec(),
    };
    log.write(RaftWrite::Snapshot(snapshot)).await
}

impl RaftSnapshotBuilder<TypeConfig> for Builder {
    type SnapshotData = Bytes;

    async fn build_snapshot(&mut self) -> Result<Snapshot, io::Error> {
        store_snapshot(&self.log, &self.snapshot.meta, &self.snapshot.snapshot).await?;
        Ok(self.snapshot.clone())
    }
}

impl RaftStateMachine<TypeConfig> for State {
    type SnapshotData = Bytes;
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembers), io::Error> {
        let at = self.applied.at.lock().clone();
        Ok((at.last, at.members))
    }

    async fn apply<S>(&mut self, mut entries: S) -> Result<(), io::Error>
    where
        S: Stream<Item = Result<EntryResponder<TypeConfig>, io::Error>> + Unpin + OptionalSend,
    {
        while let Some((entry, responder)) = entries.try_next().await? {
            let place = entry.log_id;
            let mut outcome = Outcome::default();
            match entry.payload {
                EntryPayload::Blank => {}
                EntryPayload::Normal(command) => {
                    outcome = self.applied.carry_out(Committed {
                        index: place.index,
                        term: place.leader_id.term,
                        payload: &command.0,
                    })?;
                }
                EntryPayload::Membership(members) => {
                    let membership = membership_of(&members);
                    self.applied.machine.members(place.index, &membership);
                    self.applied.at.lock().members = StoredMembers::new(Some(place), members);
                }
            }
            self.applied.at.lock().last = Some(place);
            if let Some(responder) = responder {
                // Whoever gets the answer finds the entry applied.
                self.applied.tell();
                responder.send(outcome);
            }
        }
        self.applied.tell();
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        Builder {
            snapshot: self.applied.snapshot(),
            log: self.log.clone(),
        }
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta,
        snapshot: Bytes,
    ) -> Result<(), io::Error> {
        if self.stored != meta.last_log_id {
            // On disk first: a kill in between finds a snapshot that is ahead of the log, which a start
            // takes as it is.
            store_snapshot(&self.log, meta, &snapshot).await?;
            self.stored = meta.last_log_id;
        }
        self.applied
            .machine
            .install(&snapshot)
            .map_err(io::Error::other)?;
        let members = &meta.last_membership;
        if let Some(place) = members.log_id() {
            let membership = membership_of(members.membership());
            self.applied.machine.members(place.index, &membership);
        }
        *self.applied.at.lock() = At {
            last: meta.last_log_id,
            members: members.clone(),
        };
        self.applied.tell();
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot>, io::Error> {
        let stored = self.log.store().raft_snapshot().await;
        let Some(stored) = stored.map_err(|error| failed(&error))? else {
            return Ok(None);
        };
        let meta: SnapshotMeta = postcard::from_bytes(&stored.meta).map_err(io::Error::other)?;
        self.stored = meta.last_log_id;
        Ok(Some(Snapshot {
            meta,
            snapshot: Bytes::from(stored.body),
        }))
    }
}
