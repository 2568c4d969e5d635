//! Figures of strict limits, from the simulator of `tests/sim`.
fn main() {}
