//! Highwater.

pub mod catalogue;
pub mod domain;
pub mod usage;
pub mod ledger;
