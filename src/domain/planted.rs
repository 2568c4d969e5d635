//! Faults that are in the program on purpose, in builds for tests alone: a drill that cannot say no proves nothing. One of
//! them is chosen when the program starts.

use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering;

/// The variable that chooses one.
pub const VARIABLE: &str = "HIGHWATER_PLANTED_FAULT";

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Planted {
    /// A leader that begins has forgotten what was granted, spent and charged.
    LeaderForgetsBook = 1,
    /// Counts that are told are added to those that are known, instead of taking the larger.
    MergeSums,
    /// Of a count that is known already no news is taken.
    MergeForgets,
    /// What is closed when nobody can decide is open.
    FailOpenTooWide,
    /// An injected fault does not end.
    FaultDoesNotHeal,
}

/// All of them, by name.
const NAMES: [(&str, Planted); 5] = [
    ("leader-forgets-book", Planted::LeaderForgetsBook),
    ("merge-sums", Planted::MergeSums),
    ("merge-forgets", Planted::MergeForgets),
    ("fail-open-too-wide", Planted::FailOpenTooWide),
    ("fault-does-not-heal", Planted::FaultDoesNotHeal),
];

static CHOSEN: AtomicU8 = AtomicU8::new(0);

/// Chooses the fault of that name; whether there is one.
pub fn choose(name: &str) -> bool {
    let found = NAMES.iter().find(|(known, _)| *known == name);
    if let Some((_, fault)) = found {
        CHOSEN.store(*fault as u8, Ordering::Relaxed);
    }
    found.is_some()
}

/// Whether this one was chosen.
pub fn is(fault: Planted) -> bool {
    CHOSEN.load(Ordering::Relaxed) == fault as u8
}
