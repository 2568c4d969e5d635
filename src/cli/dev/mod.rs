//! `dev`: several regions on this machine, each a process of its own, with demo limits.
//!
//! - [`plan`]: which regions there are, their ports and their files. Pure.
//! - [`region`]: one region's process, from its start to its end.
//! - [`cluster`]: the regions become one cluster. [`demo`]: its demo limits, and the lines that say how to try
//!   them.
//!
//! The regions stop with this process, however it ends: their standard input is a pipe from here, and they
//! stop when it closes. A region that dies is told and not restarted, so that its failure can be looked at.

pub mod cluster;
pub mod demo;
pub mod plan;
pub mod region;

use std::path::Path;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use anyhow::bail;
use clap::Args;
use tokio::task::JoinSet;

use crate::domain::duration;
use crate::domain::time::Span;
use crate::peer::faults::DELAY_MAX;
use crate::region::entropy;
use crate::telemetry::logs;
use crate::telemetry::logs::LogFormat;

use super::Outcome;
use super::output;
use super::stop;
use plan::Plan;
use region::Ended;
use region::Running;
use region::Start;

/// How long a region may take to drain before it is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);

/// Arguments of `dev`.
#[derive(Debug, Args)]
#[command(about = "Run several regions on this machine, with demo limits, until Ctrl-C", after_help = EXAMPLES)]
pub struct DevArgs {
    /// How many regions.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=plan::REGIONS_MAX))]
    regions: u16,
    /// Region i (from 1) checks at port base + 10 i, its admin listener is one above, gRPC three, Redis clients four.
    #[arg(long, value_name = "PORT", default_value_t = 7100)]
    base_port: u16,
    /// One-way delay between the regions, at most 2s.
    #[arg(long, value_name = "DURATION", default_value = "40ms", value_parser = delay)]
    latency: Span,
    /// Keep the data in this directory; else it is removed at the end.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Let time stand still; PUT /admin/v1/clock of each region moves it.
    #[arg(long)]
    manual_clock: bool,
}

const EXAMPLES: &str = "\
Examples:
  highwater dev
  highwater dev --regions 1 --data-dir data/dev    keep the data
  highwater dev --base-port 9000                   other ports

The admin token is `dev`, and faults can be injected. All other commands reach the first region without flags.";

fn delay(text: &str) -> Result<Span, String> {
    match duration::parse(text) {
        Ok(delay) if delay > DELAY_MAX => Err(format!("give 0s to {DELAY_MAX}")),
        Ok(delay) => Ok(delay),
        Err(error) => Err(error.to_string()),
    }
}

/// Runs `dev`.
pub fn dev(args: &DevArgs, log_format: LogFormat) -> anyhow::Result<Outcome> {
    logs::init(log_format)?;
    let dir = DataDir::new(args.data_dir.as_deref(), "dev")?;
    let peer_secret = format!("{:032x}", entropy::bits128());
    let plan = Plan::new(
        args.regions,
        args.base_port,
        dir.path(),
        args.latency,
        peer_secret,
    )?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let flags = Flags {
        manual_clock: args.manual_clock,
        log_format,
    };
    runtime.block_on(run(flags, &plan, &dir))
}

/// What every region is started with.
#[derive(Clone, Copy, Debug)]
struct Flags {
    manual_clock: bool,
    log_format: LogFormat,
}

impl Flags {
    fn to_arguments(self) -> Vec<&'static str> {
        let mut arguments = Vec::new();
        if self.manual_clock {
            arguments.push("--manual-clock");
        }
        if self.log_format == LogFormat::Json {
            arguments.push("--log-format=json");
        }
        arguments
    }
}

async fn run(flags: Flags, plan: &Plan, dir: &DataDir) -> anyhow::Result<Outcome> {
    let mut stop = std::pin::pin!(stop::requested().context("signals cannot be listened to")?);
    plan.check_ports()?;
    let mut running = Vec::new();
    let started = tokio::select! {
        biased;
        () = &mut stop => None,
        started = start_all(flags, plan, &mut running) => Some(started),
    };
    let outcome = match started {
        None => Ok(Outcome::Done),
        Some(Err(error)) => Err(error),
        Some(Ok(())) => {
            output::print(&demo::welcome(plan, dir.kept()))?;
            watch(&mut running, stop).await
        }
    };
    stop_all(running).await;
    outcome
}

async fn start_all(flags: Flags, plan: &Plan, running: &mut Vec<Running>) -> anyhow::Result<()> {
    let program = std::env::current_exe().context("the path of this program is unknown")?;
    for region in &plan.regions {
        plan::write_file(region, plan)?;
        let start = Start {
            name: region.name,
            file: &region.file,
            flags: &flags.to_arguments(),
            log: None,
        };
        running.push(Running::spawn(&program, start)?);
    }
    for region in running.iter_mut() {
        region.ready().await?;
    }
    let mut ends = ends_of(running);
    tokio::select! {
        formed = async {
            cluster::formed(plan).await?;
            cluster::with_demo_limits(plan).await
        } => formed,
        Some(Ok(Ended { region, status })) = ends.join_next() => {
            bail!("region {region} ended before the regions were one cluster ({status}); its log is above")
        }
    }
}

fn ends_of(running: &[Running]) -> JoinSet<Ended> {
    let mut ends = JoinSet::new();
    for region in running {
        ends.spawn(region.end());
    }
    ends
}

/// Waits for the stop. A region that ends before is told; when none is left there is nothing to wait for.
async fn watch(
    running: &mut Vec<Running>,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<Outcome> {
    let mut stop = std::pin::pin!(stop);
    let mut ends = ends_of(running);
    loop {
        tokio::select! {
            biased;
            () = &mut stop => return Ok(Outcome::Done),
            ended = ends.join_next() => match ended {
                Some(Ok(Ended { region, status })) => {
                    eprintln!("region {region} has ended by itself ({status}); it is not started again");
                    running.retain(|running| running.name() != region);
                }
                Some(Err(error)) => eprintln!("a region can no longer be watched: {error}"),
                None => bail!("no region is left"),
            },
        }
    }
}

/// Asks all regions to stop, and kills those that take too long.
async fn stop_all(running: Vec<Running>) {
    for region in &running {
        region.ask_to_stop();
    }
    let mut ends = JoinSet::new();
    for region in running {
        ends.spawn(region.wait_or_kill(STOP_TIMEOUT));
    }
    while let Some(ended) = ends.join_next().await {
        match ended {
            Ok(Ok(())) => {}
            Ok(Err(error)) => eprintln!("{error:#}"),
            Err(error) => eprintln!("a region could not be stopped: {error}"),
        }
    }
}

/// Where the regions keep their data: a directory of the user's, or one that goes with this value.
#[derive(Debug)]
pub(super) struct DataDir {
    path: PathBuf,
    is_temporary: bool,
}

impl DataDir {
    /// `given`, or a new directory of its own, named after `what`, that is removed at the end.
    pub(super) fn new(given: Option<&Path>, what: &str) -> anyhow::Result<Self> {
        let path = match given {
            Some(path) => path.to_owned(),
            None => {
                std::env::temp_dir().join(format!("highwater-{what}-{:016x}", entropy::bits64()))
            }
        };
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(given.is_some());
        #[cfg(unix)]
        {
            use std::os::unix::fs::DirBuilderExt;
            builder.mode(0o700);
        }
        builder
            .create(&path)
            .with_context(|| format!("{} cannot be made", path.display()))?;
        Ok(Self {
            path,
            is_temporary: given.is_none(),
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The directory when it stays.
    pub(super) fn kept(&self) -> Option<&Path> {
        (!self.is_temporary).then_some(self.path.as_path())
    }
}

impl Drop for DataDir {
    fn drop(&mut self) {
        if self.is_temporary
            && let Err(error) = std::fs::remove_dir_all(&self.path)
        {
            eprintln!("{} cannot be removed: {error}", self.path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_data_goes_with_its_owner_and_other_data_stays() {
        let temporary = DataDir::new(None, "dev").expect("made");
        let path = temporary.path().to_owned();
        std::fs::write(path.join("x"), "x").expect("written");
        assert_eq!(temporary.kept(), None);
        drop(temporary);
        assert!(!path.exists());
        let parent = tempfile::tempdir().expect("made");
        let path = parent.path().join("a/b");
        let kept = DataDir::new(Some(&path), "dev").expect("made");
        assert_eq!(kept.kept(), Some(path.as_path()));
        drop(kept);
        assert!(path.exists());
        DataDir::new(Some(&path), "dev").expect("again");
    }
}
