//! Replication: what to tell which peer when.
//!
//! ```text
//!            gather, every 100 ms or at once near a limit                    a link
//! ledger ──► FrameWriter ─ frames of a round ─► Replication::round ─ Send ─► peer: Frame::read, merge
//!    ▲                                              ▲    │                        │
//!    │                       replied, failed ───────┘    │ Encode: what it missed │
//!    │ merge of the reply ◄── Reply: what we may not know │ Everything: all we hold▼
//!    └──────────────────────────────◄────────────────────┴──────────────── Reply, when merged
//!
//! every 30 s, per peer:  Digest ─► Listing ─► Repair both ways ([`repair`])
//! ```
//!
//! A round is encoded once and its bytes go to every peer. What a peer does not acknowledge is told again as it
//! stands by then, so what a peer is owed is never more than a set of counters. A new process of a peer is
//! told everything, and says in turn when it has told everything ([`wire::Kind::Everything`]); until both have,
//! the two are not caught up.
//!
//! - [`wire`]: frames and their entries, read without allocating. `writer`, `bytes`: writing them.
//! - [`sender`]: all peers: rounds, replies, failures, what to do next. `recipient`: one peer, and what an
//!   acknowledged round means. `backlog`: what one peer is owed. `history`: when rounds were gathered.
//! - [`pages`], [`merge`], [`pass`]: between frames and the ledger: writing counters, merging them, walking over them.
//! - [`sight`]: what a region sees of the others, in the form that the share rule reads.
//! - [`repair`]: finding what differs nevertheless. `survey`: its frames. [`turns`]: when.
//!
//! What the other parts do for this to hold: a frame is acknowledged only when all of it was merged; a reply
//! is merged before [`sender::Replication::replied`] is called; a round tells at least the own slot, backlog
//! all slots that are known; of two processes of a peer nothing of the older is merged once the newer was
//! met. News of a process that is no more (of the own region before this one, of a peer before the one that
//! was met) is gathered like a charge, with all slots: nobody else may be left to tell it. Without that last
//! rule two crashes in a row can leave it to repair.
//!
//! Invariants kept here, with the tests that hold them:
//!
//! - A7: a round that counts as acknowledged was merged, under loss, repetition, reordering, restarts and
//!   lost links; 6: all regions come to know all within bounded rounds of calm: `tests::rounds`, case by case
//!   in `tests::pace`.
//! - 9: frames and bytes on their way and what is owed are bounded, nothing is sent without a link: the same.
//! - Repair finds exactly what differs, in bounded turns, and nothing can starve it: `tests::repair`.
//! - No bytes make the reader panic or allocate: `tests::wire`, and `tests/laws/decoders.rs`.
//!
//! Never here: sockets, timers, what a count is worth.

mod backlog;
mod bytes;
mod history;
pub mod merge;
pub mod pages;
pub mod pass;
mod recipient;
pub mod repair;
pub mod sender;
pub mod sight;
mod survey;
pub mod turns;
pub mod wire;
mod writer;

#[cfg(test)]
mod tests;
