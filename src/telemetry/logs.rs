//! How log lines are written: to standard error, as text or as one JSON object per line.
//!
//! `RUST_LOG` chooses what is logged, as in `RUST_LOG=debug` or `RUST_LOG=info,highwater::refused=off`.

use std::io::IsTerminal;

use anyhow::Context;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// The form of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

const QUIET: &str = "openraft=off";

/// Sends all that is logged from here on to standard error.
///
/// # Errors
/// When `RUST_LOG` cannot be read, or logging was set up before.
pub fn init(format: LogFormat) -> anyhow::Result<()> {
    let filter = EnvFilter::builder()
        .with_default_directive(LevelFilter::INFO.into())
        .from_env()
        .context("RUST_LOG cannot be read; write it as in RUST_LOG=info,highwater=debug")?;
    // The consensus library reports each lost heartbeat; what matters of it is told by `consensus`.
    let filter = match std::env::var("RUST_LOG") {
        Ok(chosen) if chosen.contains("openraft") => filter,
        _ => filter.add_directive(QUIET.parse().context("the filter of the logs is wrong")?),
    };
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    let set = match format {
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).try_init(),
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
    };
    set.map_err(|error| anyhow::anyhow!("logging cannot be set up: {error}"))
}
