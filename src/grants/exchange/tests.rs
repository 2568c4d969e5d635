//! Bounds of the clock.
