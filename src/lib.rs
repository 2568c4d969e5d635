//! Highwater.

pub mod algorithm;
pub mod catalogue;
pub mod domain;
pub mod ledger;
pub mod usage;
