//! Passes over the ledger for comparisons: which counters there are, and how they stand.

use hashbrown::HashMap;

use crate::catalogue::intern::Interner;
use crate::domain::time::Timestamp;
use crate::ledger::Ledger;
use crate::ledger::counter::Counter;
use crate::ledger::counter::Told;
use crate::ledger::counter::Unsent;
use crate::ledger::exchange::Reference;
use crate::replication::repair::ActorMark;
use crate::replication::repair::Identity;
use crate::replication::repair::MARGIN;
use crate::replication::repair::State;
use crate::usage::actor::ActorId;

/// The marks of the actors that were met in a pass.
#[derive(Debug, Default)]
pub struct Marks(HashMap<ActorId, Option<ActorMark>>);

impl Marks {
    fn of(&mut self, ledger: &Ledger, id: ActorId) -> Option<ActorMark> {
        *self
            .0
            .entry(id)
            .or_insert_with(|| ledger.roster().actor(id).map(ActorMark::new))
    }
}

/// Shows every counter of a shard that lives on for a while.
pub fn visit(
    ledger: &Ledger,
    names: &Interner,
    shard: usize,
    now: Timestamp,
    mut each: impl FnMut(Reference, Identity, &Counter),
) {
    ledger.visit(shard, |reference, name, counter| {
        let limit = names.name(name.limit);
        if let Some(limit) = limit.filter(|_| counter.dead_at > now.plus(MARGIN)) {
            let identity = Identity::new(limit.as_str(), name.tenant(), name.key(), counter.epoch);
            each(reference, identity, counter);
        }
    });
}

/// How a counter stands.
pub fn state(ledger: &Ledger, identity: Identity, counter: &Counter, marks: &mut Marks) -> State {
    let mut state = State::new(identity);
    let own = ledger.actors().own();
    counter.show(Told::Current, Unsent::ALL, own, |window, slots| {
        for slot in slots {
            if let Some(mark) = marks.of(ledger, slot.actor) {
                state.slot(window, mark, slot.p, slot.n);
            }
        }
    });
    state
}
