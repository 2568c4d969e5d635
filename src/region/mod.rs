//! A running region: builds the parts, owns the timers, and knows the order of start and stop.
//!
//! - [`config`]: the region's file, the environment and the flags, resolved into one value.
//! - [`clock`]: the only reader of the clock. [`entropy`]: the only source of randomness.
//! - [`state`]: the parts of a region. [`cluster`]: belonging to one. [`members`]: looking after the others.
//!   [`moves`]: planned moves. [`progress`]: how far the members are.
//! - [`replica`]: its copy of what the log drives. [`proposals`]: the way into the log.
//! - [`strict`], [`deciding`]: checks of strict limits. [`reservations`]: what is held of them. [`leading`]: the
//!   leader's half. [`outbox`]: words between the two. [`requests`]: numbers of requests to the log.
//!   [`debts`]: what was let through without the leader.
//!   [`inherited`]: what processes that died had no time to tell.
//! - [`decide`]: a check with a disk behind it. [`observe`]: what metrics and logs are told of it.
//! - [`exchange`]: counts to and from the other regions.
//! - [`timers`]: flushing, sweeping, housekeeping, probing. [`rejections`]: the newest refusals.
//! - [`faults`]: failures injected on purpose. [`links`]: this region among the others.

pub mod clock;
pub mod cluster;
pub mod config;
pub mod debts;
pub mod decide;
pub mod deciding;
pub mod entropy;
pub mod exchange;
pub mod faults;
pub mod inherited;
pub mod leading;
pub mod links;
pub mod members;
pub mod moves;
pub mod observe;
pub mod outbox;
pub mod progress;
pub mod proposals;
pub mod rejections;
pub mod replica;
pub mod requests;
pub mod reservations;
pub mod restore;
pub mod state;
pub mod strict;
pub mod timers;
