//! Failover drills: a failure is rehearsed, and what callers were told says whether it went well. Pure.
//!
//! ```text
//!   ops/drills/*.toml ─► scenario ─┬─► regions of its own, as processes ─┐
//!                                  └─► a cluster that runs anyway      ─┴─► record ─► verdict ─► report (JSON, HTML)
//! ```
//!
//! - [`scenario`]: what is there, what is asked, what goes wrong and what is expected, read from TOML. A fault in the
//!   file names its line.
//! - [`shipped`]: the scenarios that come with the program. [`chaos`]: one in which things go wrong at random.
//! - [`arrivals`]: when callers ask, from a seed.
//! - [`record`]: what callers were told and what was seen, in one form for every way to run.
//! - [`settled`]: which counters are compared at the end, and whether the regions count alike.
//! - [`verdict`]: figures from the record, and of each expectation whether it was met.
//! - [`timeline`]: the same record over time, for the curves.
//! - [`report`]: all of it as JSON, and as one page that needs no network.
//!
//! The verdict rests on answers alone, never on what a region says of itself, except for the comparison of the two:
//! a drill that asked the limiter whether the limiter works would always pass. An expectation without anything to
//! judge by is not met: a drill that proves nothing does not pass.
//!
//! Processes, sockets, signals and the clock are in `cli::drill`, which carries out what a scenario says.

pub mod arrivals;
pub mod chaos;
pub mod record;
pub mod report;
pub mod scenario;
pub mod settled;
pub mod shipped;
pub mod timeline;
pub mod verdict;
