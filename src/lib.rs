//! Highwater.

pub mod admin;
pub mod algorithm;
pub mod catalogue;
pub mod cli;
pub mod domain;
pub mod http;
pub mod ledger;
pub mod region;
pub mod server;
pub mod store;
pub mod telemetry;
pub mod usage;
