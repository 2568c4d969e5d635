//! Replication: what to tell which peer when.

mod bytes;
pub mod wire;
mod writer;
