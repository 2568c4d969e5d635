//! The admission machine.
pub mod hold;
pub mod idempotency;
