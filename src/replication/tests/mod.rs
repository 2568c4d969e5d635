//! What replication promises, under loss, repetition, reordering, restarts and garbage.

mod pace;
mod repair;
mod rounds;
mod wire;
mod world;

use crate::domain::name::RegionName;
use crate::usage::actor::Actor;

fn region(number: usize) -> RegionName {
    RegionName::new(["a", "b", "c", "d"][number]).expect("a region's name")
}

fn actor(number: usize, incarnation: u64) -> Actor {
    Actor {
        region: region(number),
        incarnation,
    }
}
