//! A running region: builds the parts, owns the timers, and knows the order of start and stop.
//!
//! - [`config`]: the region's file, the environment and the flags, resolved into one value.
//! - [`clock`]: the only reader of the clock.
//! - [`entropy`]: the only source of randomness.

pub mod clock;
pub mod config;
pub mod entropy;

use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;

use crate::domain::name::RegionName;
use crate::region::clock::Clock;
use crate::region::config::Config;

/// Runs the region that `config` describes until `shutdown` is ready, then drains it.
///
/// # Errors
/// When the region cannot start, or cannot stop cleanly.
pub async fn run(
    config: Config,
    clock: Clock,
    shutdown: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let _ = (clock, shutdown);
    anyhow::bail!("region {} cannot be served by this build", config.region)
}

/// Makes the data directory `data_dir` from the backup `file`.
///
/// # Errors
/// When the backup cannot be read, or the directory is not empty or cannot be written.
pub fn restore_backup(file: &Path, data_dir: &Path) -> anyhow::Result<()> {
    anyhow::bail!(
        "{} cannot be restored into {} by this build",
        file.display(),
        data_dir.display()
    )
}

/// The one line on standard output that says that a region serves: what starts it waits for this line.
pub fn ready_line(region: &RegionName, check: SocketAddr, admin: SocketAddr) -> String {
    format!("ready region={region} check=http://{check} admin=http://{admin}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ready_line_names_the_region_and_both_listeners() {
        let region = RegionName::new("us-east-1").expect("a name");
        let check = SocketAddr::from(([127, 0, 0, 1], 7110));
        let admin = SocketAddr::from(([127, 0, 0, 1], 7111));
        assert_eq!(
            ready_line(&region, check, admin),
            "ready region=us-east-1 check=http://127.0.0.1:7110 admin=http://127.0.0.1:7111"
        );
    }
}
