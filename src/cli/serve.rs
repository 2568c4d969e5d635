//! `serve`, `check-config`: one region from its file.

use std::path::PathBuf;
use std::process::exit;

use anyhow::Context;
use clap::Args;

use crate::region::clock::Clock;
use crate::region::config::Above;
use crate::region::config::Config;
use crate::region::config::ConfigError;
use crate::server;
use crate::telemetry::logs;
use crate::telemetry::logs::LogFormat;

use super::Outcome;
use super::output;
use super::stop;

/// Arguments of `serve`.
#[derive(Debug, Args)]
#[command(about = "Run one region", after_help = SERVE_EXAMPLES)]
pub struct ServeArgs {
    /// The region's file.
    #[arg(long, value_name = "FILE", env = "HIGHWATER_CONFIG")]
    config: PathBuf,
    /// A setting that goes before the environment and the file; may be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = setting)]
    set: Vec<(String, String)>,
    /// Let time stand still; PUT /admin/v1/clock moves it. For tests.
    #[arg(long)]
    manual_clock: bool,
    /// Stop when standard input ends.
    #[arg(long, hide = true)]
    stop_with_stdin: bool,
}

const SERVE_EXAMPLES: &str = "\
Examples:
  HIGHWATER_AUTH__ADMIN_TOKEN=dev highwater serve --config regions/us-east-1.toml
  highwater serve --config regions/us-east-1.toml --set listen.check=0.0.0.0:7110 --log-format json

SIGTERM or Ctrl-C drains the region and ends it; a second one ends it at once.";

/// Arguments of `check-config`.
#[derive(Debug, Args)]
#[command(about = "Check a region's file and show the resolved configuration, without secrets")]
#[command(after_help = CHECK_CONFIG_EXAMPLES)]
pub struct CheckConfigArgs {
    /// The region's file.
    file: PathBuf,
    /// A setting that goes before the environment and the file; may be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = setting)]
    set: Vec<(String, String)>,
}

const CHECK_CONFIG_EXAMPLES: &str = "\
Examples:
  highwater check-config regions/us-east-1.toml
  HIGHWATER_LISTEN__CHECK=0.0.0.0:7110 highwater check-config regions/us-east-1.toml";

fn setting(text: &str) -> Result<(String, String), String> {
    let (key, value) = text
        .split_once('=')
        .ok_or("write it as KEY=VALUE, as in listen.check=0.0.0.0:7110")?;
    Ok((key.trim().to_owned(), value.trim().to_owned()))
}

fn above(flags: Vec<(String, String)>) -> Above {
    let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    Above {
        env: std::env::vars_os().filter_map(text).collect(),
        flags,
    }
}

/// Runs `check-config`.
pub fn check_config(args: CheckConfigArgs) -> anyhow::Result<Outcome> {
    match Config::load(&args.file, above(args.set)) {
        Ok(config) => {
            for warning in &config.warnings {
                eprintln!("warning: {warning}");
            }
            output::print(&config.to_toml())?;
            Ok(Outcome::Done)
        }
        Err(error @ ConfigError::Invalid(_)) => {
            eprintln!("{error}");
            Ok(Outcome::No)
        }
        Err(error @ ConfigError::Unreadable { .. }) => Err(error.into()),
    }
}

/// Runs `serve`.
pub fn serve(args: ServeArgs, log_format: LogFormat) -> anyhow::Result<Outcome> {
    logs::init(log_format)?;
    let config = match Config::load(&args.config, above(args.set)) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("{error}");
            anyhow::bail!(
                "{} is not a configuration that can be served",
                args.config.display()
            );
        }
    };
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    let clock = if args.manual_clock {
        Clock::manual()
    } else {
        Clock::real()
    };
    if args.manual_clock {
        tracing::warn!(
            "--manual-clock: time stands still until PUT /admin/v1/clock moves it; this is for tests"
        );
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("the runtime cannot be started")?;
    runtime.block_on(async {
        let asked = stop::requested().context("signals cannot be listened to")?;
        let gone = if args.stop_with_stdin {
            Some(stop::parent_gone()?)
        } else {
            None
        };
        let shutdown = async move {
            match gone {
                None => asked.await,
                Some(gone) => tokio::select! {
                    () = asked => {}
                    () = gone => {}
                },
            }
            tokio::spawn(end_at_second_request());
        };
        server::run(config, clock, shutdown).await
    })?;
    Ok(Outcome::Done)
}

/// Ends the process when it is asked to stop again while it drains.
async fn end_at_second_request() {
    if let Ok(again) = stop::requested() {
        again.await;
        tracing::warn!("asked to stop again: the region ends without draining");
        exit(2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_a_key_and_a_value() {
        assert_eq!(setting("a.b=c=d"), Ok(("a.b".to_owned(), "c=d".to_owned())));
        assert!(setting("a.b").is_err());
    }
}
