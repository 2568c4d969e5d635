//! Usage: the replicated truth of what was charged and given back.
//!
//! Use is a PN-counter per (tenant, limit, epoch, key, window). A counter has one slot per *actor*, a
//! running process of one region, so a slot has exactly one writer for its whole life; both halves of a
//! slot only grow, and two versions of a slot merge by maximum. A window and an epoch are part of a
//! counter's name: nothing is ever reset in place, and a late word about an old window changes nothing.
//!
//! - [`actor`]: who writes a slot.
//! - [`window`]: the compact form that the ledger keeps in memory for each window.
//! - [`record`]: the form on disk (and later on the wire), built on `crdts::PNCounter`; its merge is
//!   commutative, associative, idempotent and monotone, shown by `laws` against a slow oracle.
//!
//! Invariants kept here: 4 (a merge hides no count), 5 (window and epoch are identity), 6 (merge laws).

pub mod actor;
pub mod record;
pub mod window;

#[cfg(test)]
mod laws;
