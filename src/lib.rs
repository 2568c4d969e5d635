//! Highwater.

pub mod domain;
pub mod usage;
pub mod ledger;
pub mod region;
pub mod telemetry;
pub mod cli;
