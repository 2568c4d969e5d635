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

/// Calls of one run: what all of them are told is kept, in 100 to 200 bytes each.
pub const CALLS_MAX: u64 = 20_000_000;

/// Runs a scenario in virtual time. The same scenario and seed give the same record.
///
/// # Errors
/// When callers would ask too often, the regions do not become one cluster, a step cannot be carried out, or what cannot be
/// was found: an entry that was committed and is another one by now.
pub fn run(scenario: &Scenario, seed: u64) -> Result<Record, String> {
    run_telling(scenario, seed, &mut |_, _| {})
}

/// The same; `tell` is told twenty times how far it is: milliseconds since callers began, and calls that were answered.
///
/// # Errors
/// See [`run`].
pub fn run_telling(
    scenario: &Scenario,
    seed: u64,
    tell: &mut dyn FnMut(u64, usize),
) -> Result<Record, String> {
    let planned = callers::planned(scenario);
    if planned > CALLS_MAX {
        return Err(format!(
            "callers would ask {planned} times, and one run in virtual time takes {CALLS_MAX}: let it last shorter, or let \
             them ask less often"
        ));
    }
    World::new(scenario, seed)?.run(tell)
}
