//! A running region: builds the parts, owns the timers, and knows the order of start and stop.
//!
//! - [`config`]: the region's file, the environment and the flags, resolved into one value.
//! - [`clock`]: the only reader of the clock. [`entropy`]: the only source of randomness.
//! - [`state`]: the parts of a region. [`changes`]: the catalogue's log.
//! - [`decide`]: a check with a disk behind it. [`observe`]: what metrics and logs are told of it.
//! - [`timers`]: flushing, sweeping, housekeeping, probing. [`rejections`]: the newest refusals.
//! - [`faults`]: failures injected on purpose. [`links`]: this region among the others.

pub mod changes;
pub mod clock;
pub mod config;
pub mod decide;
pub mod entropy;
pub mod faults;
pub mod links;
pub mod observe;
pub mod rejections;
pub mod state;
pub mod timers;
