//! Replication: what to tell which peer when.

mod backlog;
mod bytes;
mod history;
mod recipient;
pub mod repair;
pub mod sender;
mod survey;
pub mod turns;
pub mod wire;
mod writer;

#[cfg(test)]
mod tests;
