//! The replicated machine as the library sees it: in memory, rebuilt after a crash from the newest snapshot
//! and the log, like the product's.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::Stream;
use futures_util::TryStreamExt;
use highwater::machine::Machine;
use highwater::machine::command::Command;
use openraft::EntryPayload;
use openraft::OptionalSend;
use openraft::RaftSnapshotBuilder;
use openraft::storage::EntryResponder;
use openraft::storage::RaftStateMachine;

use super::disk::Log;
use super::disk::Write;
use super::node::Life;
use super::types::LogId;
use super::types::SimConfig;
use super::types::Snapshot;
use super::types::SnapshotMeta;
use super::types::StoredMembers;

/// The machine's handle.
pub struct State {
    life: Arc<Life>,
    log: Log,
    stored: Option<LogId>,
}

impl State {
    pub fn new(life: Arc<Life>, log: Log) -> Self {
        Self {
            life,
            log,
            stored: None,
        }
    }
}

/// Writes a snapshot that was taken before.
pub struct Builder {
    snapshot: Snapshot,
    log: Log,
}

impl RaftSnapshotBuilder<SimConfig> for Builder {
    type SnapshotData = Bytes;

    async fn build_snapshot(&mut self) -> Result<Snapshot, io::Error> {
        let write = Write::Snapshot(self.snapshot.clone());
        self.log.write(write).await?;
        Ok(self.snapshot.clone())
    }
}

impl RaftStateMachine<SimConfig> for State {
    type SnapshotData = Bytes;
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembers), io::Error> {
        let core = self.life.core.lock();
        Ok((core.last, core.members.clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> Result<(), io::Error>
    where
        S: Stream<Item = Result<EntryResponder<SimConfig>, io::Error>> + Unpin + OptionalSend,
    {
        let sim = Arc::clone(&self.life.sim);
        while let Some((entry, responder)) = entries.try_next().await? {
            let place = entry.log_id;
            let mut reply = None;
            let mut is_change = false;
            {
                let mut core = self.life.core.lock();
                let mut written = Vec::new();
                match entry.payload {
                    EntryPayload::Blank => {}
                    EntryPayload::Normal(command) => {
                        let payload = command.payload();
                        let said = core.machine.apply(&payload);
                        is_change = matches!(payload.command, Command::Change(_));
                        sim.audited(|audit| {
                            audit.applied(&place, &command.0, &payload, &said, &core.machine);
                        });
                        written = command.0;
                        reply = Some(said);
                    }
                    EntryPayload::Membership(members) => {
                        core.members = StoredMembers::new(Some(place), members);
                    }
                }
                core.last = Some(place);
                sim.traced(b"apply", &[self.life.node as u64, place.index]);
                if written.is_empty() {
                    sim.audited(|audit| audit.passed(&place));
                }
            }
            if let Some(responder) = responder {
                responder.send(reply);
            }
            if is_change {
                self.life.learn_catalogue();
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        let core = self.life.core.lock();
        let body = core.machine.snapshot().expect("a snapshot");
        if let Some(last) = core.last {
            let sim = &self.life.sim;
            sim.audited(|audit| audit.snapshot(self.life.node, last.index, &body));
        }
        Builder {
            snapshot: Snapshot {
                meta: SnapshotMeta {
                    last_log_id: core.last,
                    last_membership: core.members.clone(),
                },
                snapshot: Bytes::from(body),
            },
            log: self.log.clone(),
        }
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta,
        snapshot: Bytes,
    ) -> Result<(), io::Error> {
        let sim = Arc::clone(&self.life.sim);
        if self.stored != meta.last_log_id {
            let whole = Snapshot {
                meta: meta.clone(),
                snapshot: snapshot.clone(),
            };
            self.log.write(Write::Snapshot(whole)).await?;
            self.stored = meta.last_log_id;
            sim.audited(|audit| audit.fault("snapshot installed"));
        } else {
            sim.audited(|audit| audit.fault("snapshot restored"));
        }
        let machine = Machine::from_snapshot(&snapshot).map_err(io::Error::other)?;
        {
            let mut core = self.life.core.lock();
            if let Some(last) = meta.last_log_id {
                // A machine that was read back writes the same snapshot.
                let again = machine.snapshot().expect("a snapshot");
                sim.audited(|audit| audit.snapshot(self.life.node, last.index, &again));
            }
            core.machine = machine;
            core.last = meta.last_log_id;
            core.members = meta.last_membership.clone();
        }
        self.life.learn_catalogue();
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot>, io::Error> {
        let snapshot = self.log.snapshot()?;
        if let Some(snapshot) = &snapshot {
            self.stored = snapshot.meta.last_log_id;
        }
        Ok(snapshot)
    }
}
