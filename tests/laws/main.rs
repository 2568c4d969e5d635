//! The laws of the ledger, tried from outside: every test here goes through the public [`Ledger`] with
//! real counters.
//!
//! - [`traces`]: random traces of every algorithm against the slow oracles of [`oracle`], which count on
//!   exact rationals and know nothing of the ledger's forms.
//! - [`cases`]: exact cases that no HTTP test can reach, since they need single nanoseconds.
//! - [`ledger`]: the properties that the header of `src/ledger/mod.rs` names.
//! - [`holds`], [`answers`]: leases, the table of holds, the table of remembered answers.
//! - [`receipts`]: giving units back to the charge they came from.
//! - [`peers`]: what peers are told of, and what they tell.
//! - [`restart`]: what a ledger wrote, merged into a fresh one, gives the same answers.
//! - [`decoders`]: everything that reads bytes from outside, with any bytes (`tests/fuzz/` runs the same
//!   list without an end).
//! - [`sizes`]: what a counter costs in memory.
//!
//! Random tests use a fixed seed, so a failure is the same for everyone. `PROPTEST_RNG_SEED=random` or a
//! number tries others, `PROPTEST_CASES` more of them. A trace that once failed is kept as a test of its own.
//!
//! [`Ledger`]: highwater::ledger::Ledger

mod answers;
mod bounds;
mod cases;
mod decoders;
mod extremes;
mod found;
mod holds;
mod ledger;
mod oracle;
mod peers;
mod receipts;
mod restart;
mod scene;
mod sizes;
mod steps;
mod traces;

#[path = "../fuzz/targets.rs"]
mod targets;
