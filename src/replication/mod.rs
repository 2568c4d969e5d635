//! Replication: what to tell which peer when.

mod backlog;
mod bytes;
mod history;
mod recipient;
pub mod sender;
pub mod wire;
mod writer;
