//! Highwater.

pub mod algorithm;
pub mod catalogue;
pub mod domain;
pub mod http;
pub mod ledger;
pub mod region;
pub mod store;
pub mod telemetry;
pub mod usage;
