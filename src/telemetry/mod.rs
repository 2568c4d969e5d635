//! What a region tells about itself: metrics, logs.
//!
//! - [`metrics`]: the one table of metric names, and all metrics of a region.
//! - [`meters`]: the counters that the hot path adds to.
//! - [`histogram`]: a latency histogram of plain atomics.
//! - [`peers`]: the metrics of links to other regions.
//! - [`usage`]: the metrics of the exchange of counts.
//! - [`logs`]: how log lines are written, and where to.
//! - [`refusal`]: the log of refused checks, at a bounded rate.
//!
//! Never here: keys and tenants as labels; a label value that does not come from configuration.

pub mod histogram;
pub mod logs;
pub mod meters;
pub mod metrics;
pub mod peers;
pub mod refusal;
pub mod usage;
