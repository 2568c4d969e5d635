//! Failover drills end to end: the command, regions as processes, live clusters, and the report.
//!
//! `cargo test --test drill` takes a minute and a half, with two of the shipped drills. Every shipped drill is a command of its own,
//! `highwater drill run NAME`; all of them, one after the other, in ten minutes:
//! `HIGHWATER_DRILL_ALL=1 cargo test --test drill shipped_drills_pass`, or `HIGHWATER_DRILL_ALL=clock-skew,disk-full` for some.
//! Their failing reports stay in the directory that is printed.

#[allow(dead_code, reason = "another test's harness")]
#[path = "../chaos/clock.rs"]
mod clock;
#[allow(dead_code, reason = "another test's harness")]
#[path = "../chaos/cluster.rs"]
mod cluster;
mod command;
mod live;
#[cfg(feature = "planted-faults")]
mod planted;
mod processes;
mod simulated;
mod words;
