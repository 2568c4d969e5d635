//! This region's copy of the replicated machine, and what it publishes.
//!
//! Entries are applied one after another under one lock; readers of the catalogue never take it, they load
//! the newest view. While this region leads, the leader's soft state stands under the same lock, since it
//! plans on top of the book. What the leader wants told or proposed leaves through a queue
//! ([`crate::region::outbox`]), after the lock is gone.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;

use arc_swap::ArcSwap;
use arc_swap::Guard;
use parking_lot::Mutex;
use parking_lot::MutexGuard;

use crate::catalogue::Catalogue;
use crate::catalogue::intern::Interner;
use crate::catalogue::view::View;
use crate::consensus::Committed;
use crate::consensus::Membership;
use crate::machine::Machine;
use crate::machine::command::Command;
use crate::machine::command::Payload;
use crate::machine::command::Reply;
use crate::region::leading::Leading;

/// What is under the lock.
#[derive(Debug)]
pub struct Core {
    /// The replicated machine.
    pub machine: Machine,
    /// What this region knows while it leads.
    pub leading: Option<Leading>,
}

/// See the module.
#[derive(Debug)]
pub struct Replica {
    core: Mutex<Core>,
    catalogue: ArcSwap<Catalogue>,
    view: ArcSwap<View>,
    names: ArcSwap<Interner>,
    members: ArcSwap<Membership>,
    is_founded: AtomicBool,
}

impl Default for Replica {
    fn default() -> Self {
        Self::new()
    }
}

impl Replica {
    /// A copy that has applied nothing.
    pub fn new() -> Self {
        let machine = Machine::new();
        let catalogue = machine.catalogue().clone();
        Self {
            view: ArcSwap::new(Arc::clone(catalogue.view())),
            names: ArcSwap::from_pointee(catalogue.names().clone()),
            catalogue: ArcSwap::from_pointee(catalogue),
            core: Mutex::new(Core {
                machine,
                leading: None,
            }),
            members: ArcSwap::default(),
            is_founded: AtomicBool::new(false),
        }
    }

    /// The machine and the leader's state. Never held across a wait.
    pub fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock()
    }

    /// The catalogue in force.
    pub fn view(&self) -> Guard<Arc<View>> {
        self.view.load()
    }

    /// The catalogue in force, to be held across waits.
    pub fn view_full(&self) -> Arc<View> {
        self.view.load_full()
    }

    /// The numbers of limits' names.
    pub fn names(&self) -> Guard<Arc<Interner>> {
        self.names.load()
    }

    /// The whole catalogue in force, to be read at leisure; waits for nobody.
    pub fn catalogue(&self) -> Arc<Catalogue> {
        self.catalogue.load_full()
    }

    /// Who belongs to the cluster, as far as this region knows.
    pub fn members(&self) -> Arc<Membership> {
        self.members.load_full()
    }

    /// Whether this copy knows its cluster. One that does not has an empty catalogue, which says nothing
    /// about what there is.
    pub fn is_founded(&self) -> bool {
        self.is_founded.load(Ordering::Acquire)
    }

    fn publish(&self, machine: &Machine) {
        let catalogue = machine.catalogue();
        // Names first: a counter of a new limit must find its name when it is flushed.
        self.names.store(Arc::new(catalogue.names().clone()));
        self.view.store(Arc::clone(catalogue.view()));
        self.catalogue.store(Arc::new(catalogue.clone()));
        self.is_founded
            .store(machine.cluster().is_some(), Ordering::Release);
    }
}

impl crate::consensus::Machine for Replica {
    fn apply(&self, entry: Committed<'_>) -> Vec<u8> {
        let reply = match postcard::from_bytes::<Payload>(entry.payload) {
            Ok(payload) => {
                let mut core = self.core.lock();
                let reply = core.machine.apply_in(entry.term, &payload);
                if matches!(payload.command, Command::Change(_) | Command::Found { .. }) {
                    self.publish(&core.machine);
                }
                reply
            }
            // Every region runs the same bytes into the same error, so they stay alike.
            Err(error) => {
                tracing::error!(index = entry.index, %error, "an entry of the log cannot be read: a newer build wrote it; upgrade this region");
                Reply::Invalid(error.to_string())
            }
        };
        postcard::to_allocvec(&reply).unwrap_or_default()
    }

    fn members(&self, _index: u64, members: &Membership) {
        self.members.store(Arc::new(members.clone()));
        let regions = members.voters.len() + members.learners.len();
        let mut core = self.core.lock();
        core.machine
            .set_regions(u32::try_from(regions).unwrap_or(u32::MAX));
        self.publish(&core.machine);
    }

    fn snapshot(&self) -> Vec<u8> {
        match self.core.lock().machine.snapshot() {
            Ok(bytes) => bytes,
            Err(error) => {
                tracing::error!(%error, "no snapshot could be made; the log stays uncompacted");
                Vec::new()
            }
        }
    }

    fn install(&self, snapshot: &[u8]) -> Result<(), String> {
        let machine = Machine::from_snapshot(snapshot).map_err(|error| error.to_string())?;
        let mut core = self.core.lock();
        self.publish(&machine);
        core.machine = machine;
        Ok(())
    }
}
