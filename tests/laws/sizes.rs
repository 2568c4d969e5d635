//! What a counter costs in memory, so that no field creeps in unnoticed.
//!
//! A live key of one region is a place in a shard (176 bytes), its share of the shard's table (8 bytes and
//! one of control, at a load between 7/16 and 7/8) and of the list of dirty places (4), and a heap
//! allocation if tenant and key together pass 23 bytes. Every window that other actors have charged adds
//! one box of 64 bytes for up to two of them.

use std::mem::size_of;

use highwater::algorithm::bucket::Level;
use highwater::algorithm::concurrency::Lease;
use highwater::algorithm::sliding_log::Log;
use highwater::algorithm::sliding_log::LogEntry;
use highwater::ledger::check::ItemOutcome;
use highwater::ledger::counter::Counter;
use highwater::ledger::hold::HoldRecord;
use highwater::ledger::hold::Receipt;
use highwater::ledger::idempotency::KeptAnswer;
use highwater::ledger::shard::Entry;
use highwater::usage::window::Slot;
use highwater::usage::window::WindowUse;
use smallvec::SmallVec;

#[test]
fn a_counter_costs_no_more_than_it_did() {
    let measured = [
        ("a place in a shard", size_of::<Option<Entry>>(), 176),
        ("a counter", size_of::<Counter>(), 136),
        ("a window", size_of::<WindowUse>(), 32),
        ("a slot of another actor", size_of::<Slot>(), 24),
        (
            "the box of other actors",
            size_of::<SmallVec<[Slot; 2]>>(),
            64,
        ),
        ("a bucket's level", size_of::<Level>(), 24),
        ("a log", size_of::<Log>(), 144),
        ("a call in a log", size_of::<LogEntry>(), 16),
        ("a lease", size_of::<Lease>(), 32),
        ("a hold", size_of::<HoldRecord>(), 128),
        ("a receipt", size_of::<Receipt>(), 120),
        ("a remembered answer", size_of::<KeptAnswer>(), 128),
        ("what one limit says", size_of::<ItemOutcome>(), 88),
    ];
    for (what, bytes, bound) in measured {
        assert!(bytes <= bound, "{what}: {bytes} bytes, {bound} are allowed");
    }
}
