//! placeholder replaced by the merge
pub mod intern;
