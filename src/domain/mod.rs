//! The vocabulary of the product: names, time, quantities, limits, decisions.
//!
//! Everything here is a plain value. Nothing reads a clock, a file, a socket or a random source, and
//! nothing imports another part of the crate: every other module may import this one.

pub mod calendar;
pub mod decision;
pub mod draws;
pub mod duration;
pub mod limit;
pub mod name;
pub mod secret;
pub mod stamp;
pub mod time;
