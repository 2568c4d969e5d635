//! Actors: the writers of counter slots.
//!
//! Every start of a region's process draws a new random incarnation, so no two processes ever share a
//! slot, and a process that lost its newest counts can never write below what others have seen of it.
//! Slots name their actor by a small number that is meaningful inside one store only; [`ActorTable`]
//! keeps the names behind the numbers.

use serde::Deserialize;
use serde::Serialize;

use crate::domain::name::RegionName;

/// The number of an actor inside one store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ActorId(pub u32);

/// The number of a region inside one process: 0 is the own one, the others count from 1 in the order in which
/// they became known. Never used again for another region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Site(pub u8);

impl Site {
    /// The own region.
    pub const HOME: Self = Self(0);
    /// Regions that are told apart at most, the own one among them.
    pub const MAX: u8 = 32;
}

/// One process of one region.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Actor {
    /// The region.
    pub region: RegionName,
    /// 64 random bits, drawn at every start.
    pub incarnation: u64,
}

/// The actors that a store knows, by number, and which of them is this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActorTable {
    actors: Vec<Actor>,
    own: ActorId,
}

impl ActorTable {
    /// The table of a process that is `actors[own]`.
    ///
    /// # Panics
    /// When `own` is not in `actors`.
    pub fn new(actors: Vec<Actor>, own: ActorId) -> Self {
        assert!(
            (own.0 as usize) < actors.len(),
            "the own actor is in the table"
        );
        Self { actors, own }
    }

    /// The table of a first start: this process alone.
    pub fn alone(actor: Actor) -> Self {
        Self {
            actors: vec![actor],
            own: ActorId(0),
        }
    }

    /// This process.
    pub const fn own(&self) -> ActorId {
        self.own
    }

    /// This process with its region and incarnation.
    pub fn own_actor(&self) -> &Actor {
        &self.actors[self.own.0 as usize]
    }

    /// The actor behind `id`, if known.
    pub fn get(&self, id: ActorId) -> Option<&Actor> {
        self.actors.get(id.0 as usize)
    }

    /// Whether `id` is a process of this region, now or before.
    pub fn is_home(&self, id: ActorId) -> bool {
        self.get(id)
            .is_some_and(|actor| actor.region == self.own_actor().region)
    }
}
