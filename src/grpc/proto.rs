//! Messages and services as `tests/protos` makes them from the .proto files in `proto/`.
//!
//! Trimmed from Envoy's own files to what is read or sent here; on the wire they are the same.

#![allow(
    missing_docs,
    clippy::wildcard_imports,
    clippy::too_many_lines,
    clippy::uninlined_format_args,
    clippy::semicolon_if_nothing_returned,
    clippy::needless_pass_by_value,
    reason = "made by a program"
)]

/// All of it, for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!("proto/descriptors.bin");

#[rustfmt::skip]
pub mod envoy {
    pub mod config { pub mod core { pub mod v3; } }
    pub mod extensions { pub mod common { pub mod ratelimit { pub mod v3; } } }
    pub mod service { pub mod ratelimit { pub mod v3; } }
    pub mod r#type { pub mod v3; }
}
