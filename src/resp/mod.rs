//! The Redis protocol: limits for programs that speak `CL.THROTTLE` to Redis already.
//!
//! ```text
//! bytes ──► parse (a command's words) ──► session (who, which command) ──► ledger, ask ──► reply ──► bytes
//! ```
//!
//! [`parse`], [`reply`] and [`throttle`] are pure; [`session`] knows a connection's client; [`listener`] accepts
//! connections and answers what has arrived together with one write. `CL.THROTTLE` is answered as redis-cell answers
//! it, counted as a regional limit of the connection's tenant (`ops/adr/0016-cl-throttle.md`); `HW.CHECK` asks a limit
//! of the catalogue and is decided as every check.

pub mod listener;
pub mod parse;
pub mod reply;
pub mod session;
pub mod throttle;
