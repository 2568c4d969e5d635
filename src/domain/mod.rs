//! The vocabulary of the product: names, time, quantities, limits, decisions.
//!
//! Everything here is a plain value. Nothing reads a clock, a file, a socket or a random source, and
//! nothing imports another part of the crate: every other module may import this one. The client needs
//! the decisions alone.

#[cfg(feature = "server")]
pub mod calendar;
pub mod decision;
#[cfg(feature = "server")]
pub mod draws;
#[cfg(feature = "server")]
pub mod duration;
#[cfg(feature = "server")]
pub mod limit;
#[cfg(feature = "server")]
pub mod name;
#[cfg(feature = "planted-faults")]
pub mod planted;
#[cfg(feature = "server")]
pub mod secret;
#[cfg(feature = "server")]
pub mod stamp;
#[cfg(feature = "server")]
pub mod time;
