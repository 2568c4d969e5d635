//! Highwater: a multi-region quota server. This page is the architecture document.
//!
//! A team that serves an API from several regions runs one Highwater server per region, next to its
//! gateways, and asks it: *may this tenant's key spend this much now?* The name: a grow-only counter merges
//! by taking each replica's high-water mark.
//!
//! # The flow
//!
//! ```text
//!             check                        one atomic step                    group commit
//! client ─► http ─► region ─► ledger shard: look at all limits ─► charge all ─► store (SQLite writer)
//!                     ▲                     or none                              every 100 ms, or before
//!                     │                                                          the answer (`sync`)
//! strict, too little held:  region ─ Ask ─► leader ─ entry ─► log (majority's disks) ─► units arrive, the step again
//! strict, decided one by one, keyed:  region ─► leader ─ entry ─► log ─► machine decides, everywhere alike
//! changed counters ─► every 100 ms, or at once near a limit ─► peers ─► merged into their ledgers
//! admin ─► catalogue change ─► leader ─ entry ─► log ─► machine ─► new immutable view in every region
//! ```
//!
//! Data flows one way. The **pure half** ([`domain`], [`algorithm`], [`catalogue`], [`usage`], [`grants`],
//! [`ledger`], [`replication`], [`machine`], [`drill`], [`simulate`]) has no clock, randomness, input or output: `now` and seeds are arguments, outcomes
//! are values. The **shell** carries sockets, disk, clock and metrics around it. Imports point downwards only,
//! in the order of this table; `tests/tidy.rs` holds all of this.
//!
//! # Where things are
//!
//! | module | what it is |
//! |---|---|
//! | [`domain`] | vocabulary: names, time, limits, calendar, decisions |
//! | [`algorithm`] | one file per algorithm: state + now + cost → may it pass, how does it stand |
//! | [`catalogue`] | base < plan < tenant < key, epochs, versions, tokens; a pure state machine fed by a log |
//! | [`usage`] | the replicated truth: PN-counter per (limit, epoch, key, window), a slot per process |
//! | [`grants`] | strict limits: the leader's book and a region's reservation; pure state machines |
//! | [`ledger`] | the admission machine: shards, check all or none, holds, remembered answers, expiry |
//! | [`replication`] | what to tell which peer when: frames, rounds, backlog, repair; pure |
//! | [`machine`] | what the log drives: catalogue, book, log-decided checks; the same on every region |
//! | [`drill`] | failover drills: scenario, record of what callers were told, verdict, report |
//! | [`simulate`] | drills in virtual time: regions of the pure machines, network, clocks, disks and the log as a model |
//! | [`client`] | asks a server, with a deadline and a policy for when none answers; a tower layer. Alone with the feature `client` |
//! | [`store`] | SQLite: two files, a writer thread each, group commit, journal and fold, restore, backup |
//! | [`telemetry`] | the one table of metric names, logs |
//! | [`consensus`] | the replicated log: openraft over the store and the links, members, leadership |
//! | [`peer`] | links between regions: order, authentication, breakers, clock offsets, injected faults |
//! | [`region`] | a running region: its parts, clock, configuration, timers |
//! | [`http`] | the check API |
//! | [`resp`] | the Redis protocol: `CL.THROTTLE`, `HW.CHECK` |
//! | [`grpc`] | the rate limit service that gateways speak: descriptors in, one check, statuses out |
//! | [`admin`] | the admin API |
//! | [`server`] | listeners, order of start and stop |
//! | [`cli`] | the commands |
//!
//! A check is read in two files: `http/check.rs` (what comes in and goes out) and `ledger/check.rs` (the
//! atomic step). A strict check: `machine/strict.rs` (the step over reservations) and `region/deciding.rs` (what
//! waits). A limit's arithmetic is in `algorithm/`, what its fields mean in `catalogue/effective.rs`.
//! An approximate one: `ledger/sharing.rs` (the share of what is left) and `region/exchange/` (counts out and in).
//!
//! # What must always be true, and what would fail if it were not
//!
//! 1. **A check is atomic**: parallel checks never pass more than the limit; several limits are charged all
//!    or none. `tests/laws/ledger.rs`, `tests/api/concurrency.rs`.
//! 2. **Counts are never hidden by a merge**: a counter slot belongs to one process of one region; every
//!    start is a new one. `src/usage/laws.rs`, `tests/crash.rs`.
//! 3. **A window and an epoch are part of a counter's name**: nothing is reset in place, what is late
//!    changes nothing. `tests/laws/ledger.rs`, `tests/api/admin.rs`.
//! 4. **Merging is commutative, associative, idempotent and monotone.** `src/usage/laws.rs`.
//! 5. **Exact arithmetic**: integers with 128-bit intermediates, no floats in a decision, no panic on any
//!    input, clock step or overflow. `tests/laws/`, against oracles on exact rationals.
//! 6. **Time never runs backwards in a decision.** `src/region/clock.rs`, `tests/api/clock.rs`.
//! 7. **Everything is bounded**: keys, queues, batches, bodies, label sets, remembered answers; over a bound
//!    there is a stated answer, and a live counter is never forgotten. `tests/laws/bounds.rs`.
//! 8. **The answer tells the truth**: 429 only for a real refusal, 503 when it cannot decide, `degraded` when
//!    the failure policy decided. `tests/api/failure.rs`.
//! 9. **A refused write stores nothing; an acknowledged `sync` charge, keyed request or admin write is on
//!    disk.** `src/store/tests/`, `tests/crash.rs`.
//!
//! 10. **Strict is strict**: of each window of the log no more is admitted than its largest quota in force, of a
//!     token bucket over any interval of log time no more than its capacity and what that interval earns,
//!     under crash, pause, partition, leader change, lost and doubled messages. `src/grants/book/laws.rs`,
//!     `src/grants/book/tests/shadow.rs`, `src/grants/leader/laws.rs`, `tests/sim`, `tests/chaos`.
//! 11. **The same entries give the same machine on every region**, also over a snapshot. `src/machine/tests`.
//! 12. **An acknowledged entry is on the disks of a majority, and nothing is called undone that may have been
//!     done.** `src/consensus/tests`, `tests/cluster`.
//!
//! 13. **Regions converge, and an acknowledgement never overtakes what it stands for**, under loss, repetition,
//!     cuts and restarts. `src/replication/tests`, `tests/cluster`.
//! 14. **No region alone passes an approximate limit on its own knowledge**, and one region alone can use all of
//!     it. `src/ledger/sharing`, `tests/sim/approximate`, `tests/cluster/approximate`, `tests/hammer`.
//!
//! # What is deliberately absent
//!
//! - No clock but `region/clock.rs`, no randomness but `region/entropy.rs`.
//! - No lock is held across a wait, and no check goes through a queue or another task.
//! - No time supplied by callers, no expression language for limits, no home-made TLS.
//! - No consensus of our own: openraft, behind [`consensus`].
//! - No write of peers' counts to disk: a region that starts is told them.

// The client alone has no pages for most of what this one links to.
#![cfg_attr(not(feature = "server"), allow(rustdoc::broken_intra_doc_links))]

#[cfg(feature = "server")]
pub mod admin;
#[cfg(feature = "server")]
pub mod algorithm;
#[cfg(feature = "server")]
pub mod catalogue;
#[cfg(feature = "server")]
pub mod cli;
#[cfg(feature = "client")]
pub mod client;
#[cfg(feature = "server")]
pub mod consensus;
pub mod domain;
#[cfg(feature = "server")]
pub mod drill;
#[cfg(feature = "server")]
pub mod grants;
#[cfg(feature = "server")]
pub mod grpc;
#[cfg(feature = "server")]
pub mod http;
#[cfg(feature = "server")]
pub mod ledger;
#[cfg(feature = "server")]
pub mod machine;
#[cfg(feature = "server")]
pub mod peer;
#[cfg(feature = "server")]
pub mod region;
#[cfg(feature = "server")]
pub mod replication;
#[cfg(feature = "server")]
pub mod resp;
#[cfg(feature = "server")]
pub mod server;
#[cfg(feature = "server")]
pub mod simulate;
#[cfg(feature = "server")]
pub mod store;
#[cfg(feature = "server")]
pub mod telemetry;
#[cfg(feature = "server")]
pub mod usage;
