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

/// The number of a region inside one process, meaningful nowhere else.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Site(pub u8);

impl Site {
    /// This region.
    pub const HOME: Self = Self(0);
    /// Regions that are told apart at most, this one among them.
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
}

/// Processes of other regions at most whose slots are told apart; names beyond are refused.
const PEER_ACTORS_MAX: usize = 4096;
/// Numbers of actors that the store does not know begin here.
const PEER_ACTORS_FROM: u32 = 1 << 31;

/// The processes that peers told of, and the numbers of their regions.
///
/// The store knows the processes of its own region alone; the numbers given here live as long as this process.
#[derive(Clone, Debug)]
pub struct Roster {
    own: ActorTable,
    peers: Vec<(Actor, Site)>,
    regions: Vec<RegionName>,
}

impl Roster {
    /// A roster that knows what the store knows.
    pub fn new(own: ActorTable) -> Self {
        let regions = vec![own.own_actor().region.clone()];
        Self {
            own,
            peers: Vec::new(),
            regions,
        }
    }

    /// The number of a region, which it gets when it is first asked for; `None` when there are too many.
    pub fn site(&mut self, region: &RegionName) -> Option<Site> {
        let known = self.regions.iter().position(|known| known == region);
        let place = known.unwrap_or(self.regions.len());
        let site = u8::try_from(place).ok().map(Site)?;
        if known.is_none() {
            self.regions.push(region.clone());
        }
        Some(site)
    }

    /// The number of a region that has one.
    pub fn known_site(&self, region: &RegionName) -> Option<Site> {
        let place = self.regions.iter().position(|known| known == region)?;
        u8::try_from(place).ok().map(Site)
    }

    /// The region with this number.
    pub fn region(&self, site: Site) -> Option<&RegionName> {
        self.regions.get(usize::from(site.0))
    }

    /// The number of a process and of its region, given when they are first asked for; `None` when there are too
    /// many.
    pub fn number(&mut self, actor: &Actor) -> Option<(ActorId, Site)> {
        if let Some(place) = self.own.actors.iter().position(|known| known == actor) {
            let site = self.site(&actor.region)?;
            return Some((ActorId(u32::try_from(place).ok()?), site));
        }
        let known = self.peers.iter().position(|(known, _)| known == actor);
        let place = match known {
            Some(place) => place,
            None if self.peers.len() >= PEER_ACTORS_MAX => return None,
            None => {
                let site = self.site(&actor.region)?;
                self.peers.push((actor.clone(), site));
                self.peers.len() - 1
            }
        };
        let number = PEER_ACTORS_FROM.checked_add(u32::try_from(place).ok()?)?;
        Some((ActorId(number), self.peers.get(place)?.1))
    }

    /// The process behind a number.
    pub fn actor(&self, id: ActorId) -> Option<&Actor> {
        match id.0.checked_sub(PEER_ACTORS_FROM) {
            Some(place) => self.peers.get(place as usize).map(|(actor, _)| actor),
            None => self.own.get(id),
        }
    }
}
