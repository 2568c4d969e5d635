//! What nodes are made of.

use std::rc::Rc;

use highwater::catalogue::intern::Interner;
use highwater::domain::limit::Limit;
use highwater::domain::name::RegionName;
use highwater::domain::time::Timestamp;
use highwater::replication::wire::Frame;
use highwater::replication::wire::NamedActor;

/// What all regions know alike.
#[derive(Debug)]
pub struct Catalogue {
    pub names: Interner,
    pub limits: Vec<Limit>,
}

impl Catalogue {
    pub fn new(limits: Vec<Limit>) -> Rc<Self> {
        let mut names = Interner::default();
        for limit in &limits {
            names.intern(&limit.name).expect("few names");
        }
        Rc::new(Self { names, limits })
    }
}

/// Which slot: limit, key, epoch, window, process.
pub type SlotId = (String, String, u64, i64, (String, u64));

/// A slot as it was told.
#[derive(Clone, Debug)]
pub struct Slot {
    pub id: SlotId,
    pub p: u64,
    pub n: u64,
    pub dead_at: Timestamp,
}

/// All slots in a frame.
pub fn slots_of(bytes: &[u8]) -> Vec<Slot> {
    let frame = Frame::read(bytes).expect("a frame that can be read");
    let named = |actor: NamedActor<'_>| (actor.region.to_owned(), actor.incarnation);
    let actors: Vec<(String, u64)> = frame.actors().map(named).collect();
    let mut slots = Vec::new();
    for entry in frame.entries() {
        for window in entry.windows() {
            for slot in window.slots() {
                let actor = actors[slot.actor as usize].clone();
                let (limit, key) = (entry.limit.to_owned(), entry.key.to_owned());
                slots.push(Slot {
                    id: (limit, key, entry.epoch, window.start.0, actor),
                    p: slot.p,
                    n: slot.n,
                    dead_at: entry.dead_at,
                });
            }
        }
    }
    slots
}

/// The names of so many regions.
pub fn names(count: usize) -> Rc<Vec<RegionName>> {
    let name = |n| RegionName::new(&format!("region-{n}")).expect("a region's name");
    Rc::new((0..count).map(name).collect())
}
