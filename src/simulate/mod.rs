//! Regions in virtual time: a drill without processes, sockets or disks. Pure.
//!
//! ```text
//!   scenario, seed ─► world ─ events in the order of time ─► process ─ sends, timers, answers ─► world ─► record
//!                       │                                       │
//!                     net: delay, jitter, loss, cuts          ledger, replication, machine, grants: the product's own
//!                     steps, callers, looks                   log: a model
//! ```
//!
//! What decides is the product's: checks by [`crate::machine::strict`] and [`crate::ledger`], units by
//! [`crate::grants`], entries by [`crate::machine`], counts by [`crate::replication`]. What carries it is modelled:
//! [`log`] for the consensus library, [`net`] for links, [`clock`] for clocks, [`process`] for what the shell of a region
//! does between the machines. Its report says what a simulation does not mean
//! ([`crate::drill::report::Stage::notes`]).
//!
//! The same scenario and seed give the same record.

pub mod agenda;
mod callers;
pub mod clock;
pub mod exchange;
mod founding;
mod leading;
pub mod log;
mod looking;
pub mod net;
pub mod process;
mod proposing;
mod steps;
mod strict;
mod world;

use crate::drill::record::Record;
use crate::drill::scenario::Scenario;

use world::World;

/// Runs a scenario in virtual time. The same scenario and seed give the same record.
///
/// # Errors
/// When the regions do not become one cluster, or a step cannot be carried out.
pub fn run(scenario: &Scenario, seed: u64) -> Result<Record, String> {
    World::new(scenario, seed)?.run()
}
