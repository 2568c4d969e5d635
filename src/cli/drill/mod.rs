//! `drill`: rehearses a failure and gives a verdict. What a drill is, and how it is judged, is in `crate::drill`.
//!
//! - [`processes`]: regions of the drill's own. [`live`]: a cluster that runs anyway.
//! - [`fleet`]: regions as callers and operators reach them.
//! - [`stage`]: one drill, made of [`load`] (callers), [`steps`] (what goes wrong), [`watch`] (what regions say of
//!   themselves) and [`counters`] (what they count at the end). [`progress`]: what is told meanwhile.
//!
//! Everything that is done to a region ends by itself or with this process: injected faults have a `ttl`, and a
//! region of the drill's own stops when its standard input closes.

pub mod counters;
pub mod fleet;
pub mod live;
pub mod load;
pub mod processes;
pub mod progress;
pub mod stage;
pub mod steps;
pub mod watch;

use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::OnceLock;

use anyhow::Context;
use anyhow::bail;
use clap::Args;
use clap::Subcommand;

use crate::domain::duration;
use crate::domain::time::Span;
use crate::drill::chaos;
use crate::drill::record::Record;
use crate::drill::report;
use crate::drill::report::Report;
use crate::drill::report::page;
use crate::drill::scenario::DURATION_MS_MAX;
use crate::drill::scenario::Scenario;
use crate::drill::scenario::ScenarioError;
use crate::drill::scenario::VIRTUAL_MS_MAX;
use crate::drill::scenario::step::seconds;
use crate::drill::shipped;
use crate::drill::shipped::SHIPPED;
use crate::drill::verdict;
use crate::region::clock::Clock;
use crate::region::entropy;
use crate::simulate;

use super::Outcome;
use super::dev::DataDir;
use super::output;
use super::output::OutputFormat;
use super::stop;
use fleet::Fleet;
use live::Live;
use processes::Processes;
use progress::Progress;
use stage::Stage;

/// Virtual runs of this length and more tell how far they are: they take longer than one waits in silence.
const TOLD_MS_MIN: u64 = 20 * 60_000;

/// Arguments of `drill`.
#[derive(Debug, Args)]
#[command(about = "Rehearse a failure, and get a verdict", after_help = EXAMPLES)]
pub struct DrillArgs {
    #[command(subcommand)]
    command: DrillCommand,
}

const EXAMPLES: &str = "\
Examples:
  highwater drill list
  highwater drill run leader-loss                          with regions of its own, in half a minute
  highwater drill run leader-loss --report leader-loss.html
  highwater drill run leader-loss --simulate --seed 7      in virtual time, in a second
  highwater drill run chaos --seed 7 --for 20m             things go wrong at random
  highwater drill run my-drill.toml --dry-run              what would be done
  highwater drill run partition-minority --cluster prod.toml

Exit status: 0 every expectation was met, 1 one was not, 2 the drill could not be run.";

#[derive(Debug, Subcommand)]
enum DrillCommand {
    /// The drills that come with the program
    List,
    /// Run one
    #[command(after_help = RUN_EXAMPLES)]
    Run(RunArgs),
}

const RUN_EXAMPLES: &str = "\
Examples:
  highwater drill run leader-loss --report leader-loss.json --report leader-loss.html
  highwater drill run partition-minority --cluster prod.toml --dry-run

A cluster's file names its regions; faults.enabled must be true in all of them:

  token_file = \"secrets/admin\"
  [[regions]]
  region = \"us-east-1\"
  admin  = \"http://10.1.0.7:7111\"
  check  = \"http://10.1.0.7:7110\"     # left out: the admin listener, which serves checks too

Against a cluster every fault ends by itself, also when this terminal is lost; Ctrl-C lifts all of them at once.";

/// Arguments of `drill run`.
#[derive(Debug, Args)]
struct RunArgs {
    /// A drill of `drill list`, or a file that ends in .toml.
    #[arg(value_name = "NAME or FILE")]
    drill: String,
    /// Run it against the cluster that this file names, instead of regions of its own.
    #[arg(long, value_name = "FILE")]
    cluster: Option<PathBuf>,
    /// Against a cluster: do not ask whether to go on.
    #[arg(long, requires = "cluster")]
    yes: bool,
    /// Say what would be done, and do nothing.
    #[arg(long)]
    dry_run: bool,
    /// Run it in virtual time: the same seed gives the same report.
    #[arg(long, conflicts_with_all = ["cluster", "data_dir"])]
    simulate: bool,
    /// How long `chaos` lasts, 20s to 60m; in virtual time up to 24h.
    #[arg(long = "for", value_name = "DURATION", value_parser = chaos_duration)]
    lasts: Option<Span>,
    /// What callers' calls, and the steps of `chaos`, follow from; else drawn, and told.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Write a report: .json for programs, .html for people; may be repeated.
    #[arg(long, value_name = "FILE")]
    report: Vec<PathBuf>,
    /// Keep the regions' data and logs and the record of all calls in this directory; else nothing is kept.
    #[arg(long, value_name = "DIR", conflicts_with = "cluster")]
    data_dir: Option<PathBuf>,
}

fn chaos_duration(text: &str) -> Result<Span, String> {
    let lasts = duration::parse(text).map_err(|error| error.to_string())?;
    if (chaos::DURATION_MS_MIN..=VIRTUAL_MS_MAX).contains(&lasts.as_ms_ceil()) {
        Ok(lasts)
    } else {
        Err("give 20s to 60m, with --simulate up to 24h".to_owned())
    }
}

/// Runs `drill`.
pub fn drill(args: &DrillArgs, format: OutputFormat) -> anyhow::Result<Outcome> {
    match &args.command {
        DrillCommand::List => list(format),
        DrillCommand::Run(args) => run(args, format),
    }
}

fn list(format: OutputFormat) -> anyhow::Result<Outcome> {
    let mut rows = Vec::new();
    for shipped in SHIPPED {
        let scenario = Scenario::parse(shipped.name, shipped.text)
            .map_err(|error| anyhow::anyhow!(error.in_file(shipped.name)))?;
        rows.push(serde_json::json!({
            "drill": scenario.name, "takes": seconds(scenario.duration_ms), "title": scenario.title,
        }));
    }
    rows.push(serde_json::json!({
        "drill": chaos::NAME, "takes": seconds(chaos::DURATION_MS),
        "title": "Things go wrong at random, by --seed, for as long as --for says",
    }));
    match format {
        OutputFormat::Json => output::show(format, &rows.into())?,
        OutputFormat::Table => {
            let header = ["DRILL", "CALLERS ASK FOR", "WHAT IS REHEARSED"].map(str::to_owned);
            let cell = |row: &serde_json::Value, name: &str| {
                row[name].as_str().unwrap_or_default().to_owned()
            };
            let lines: Vec<Vec<String>> = rows
                .iter()
                .map(|row| {
                    ["drill", "takes", "title"]
                        .map(|name| cell(row, name))
                        .into()
                })
                .collect();
            output::print(&output::aligned(&header, &lines))?;
        }
    }
    Ok(Outcome::Done)
}

/// The scenario that was asked for.
fn scenario(args: &RunArgs, seed: u64) -> anyhow::Result<Scenario> {
    let drill = args.drill.as_str();
    let parse: fn(&str, &str) -> Result<Scenario, ScenarioError> = if args.simulate {
        Scenario::parse_virtual
    } else {
        Scenario::parse
    };
    if drill == chaos::NAME {
        let lasts_ms = args.lasts.map_or(chaos::DURATION_MS, Span::as_ms_ceil);
        if !args.simulate && lasts_ms > DURATION_MS_MAX {
            bail!("--for: more than 60m are for --simulate");
        }
        return parse(drill, &chaos::text(seed, lasts_ms))
            .map_err(|error| anyhow::anyhow!(error.in_file(drill)));
    }
    if args.lasts.is_some() {
        bail!("--for is for the drill `chaos`; others say themselves how long they last");
    }
    if let Some(shipped) = shipped::named(drill) {
        return parse(shipped.name, shipped.text)
            .map_err(|error| anyhow::anyhow!(error.in_file(shipped.name)));
    }
    let path = Path::new(drill);
    if path.extension().is_none_or(|extension| extension != "toml") {
        bail!(
            "there is no drill {drill:?}; see `highwater drill list`, or give a file that ends in .toml"
        );
    }
    let text = std::fs::read_to_string(path).with_context(|| format!("{drill} cannot be read"))?;
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    parse(&name, &text).map_err(|error| anyhow::anyhow!("\n{}", error.in_file(drill)))
}

fn check_reports(reports: &[PathBuf]) -> anyhow::Result<()> {
    for path in reports {
        let ending = path.extension().and_then(std::ffi::OsStr::to_str);
        if !matches!(ending, Some("json" | "html")) {
            bail!(
                "--report {}: give a name that ends in .json or .html",
                path.display()
            );
        }
    }
    Ok(())
}

fn run(args: &RunArgs, format: OutputFormat) -> anyhow::Result<Outcome> {
    check_reports(&args.report)?;
    let seed = args.seed.unwrap_or_else(entropy::bits64) % (1 << 53);
    let mut scenario = scenario(args, seed)?;
    let live = match &args.cluster {
        Some(path) => Some(Live::read(path, &mut scenario)?),
        None => None,
    };
    if args.dry_run {
        output::print(&plan(&scenario, live.as_ref(), args.simulate))?;
        if let Some(live) = &live {
            output::print(&readiness(live)?)?;
        }
        return Ok(Outcome::Done);
    }
    if args.simulate {
        let record = in_virtual_time(&scenario, seed)?;
        let ran = Ran {
            scenario: Arc::new(scenario),
            record,
            stage: report::Stage::Simulation,
            notes: Vec::new(),
        };
        return conclude(args, &ran, seed, format);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let ran = runtime.block_on(async {
        match live {
            None => on_processes(args, Arc::new(scenario), seed).await,
            Some(live) => on_cluster(args, scenario, &live, seed).await,
        }
    })?;
    conclude(args, &ran, seed, format)
}

/// A drill that was run.
struct Ran {
    /// What was rehearsed.
    scenario: Arc<Scenario>,
    /// What came of it.
    record: Record,
    /// How it was run.
    stage: report::Stage,
    /// What was done otherwise than the scenario says.
    notes: Vec<String>,
}

/// Runs it without processes; a long one tells how far it is.
fn in_virtual_time(scenario: &Scenario, seed: u64) -> anyhow::Result<Record> {
    let progress = Progress::to_stderr();
    let is_long = scenario.duration_ms >= TOLD_MS_MIN;
    let record = simulate::run_telling(scenario, seed, &mut |at_ms, calls| {
        if is_long {
            let whole = seconds(scenario.duration_ms);
            progress.standing(at_ms, &format!("of {whole} in virtual time, {calls} calls"));
        }
    });
    progress.end();
    record.map_err(|error| anyhow::anyhow!(error))
}

/// Judges a record, and tells and writes what came of it.
fn conclude(args: &RunArgs, ran: &Ran, seed: u64, format: OutputFormat) -> anyhow::Result<Outcome> {
    let mut report = report::report(&ran.scenario, &ran.record, ran.stage.clone(), seed);
    report.notes.extend(ran.notes.iter().cloned());
    for path in &args.report {
        write_report(&report, path)?;
    }
    let outcome = if report.is_passed {
        Outcome::Done
    } else {
        Outcome::No
    };
    super::told(tell(&report, format), outcome)
}

/// Whether the drill would begin, in words.
fn readiness(live: &Live) -> anyhow::Result<String> {
    let clock = Clock::real();
    let fleet = Fleet::new(live.endpoints.clone(), clock.stopwatch(), String::new());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    Ok(match runtime.block_on(live.guard(&fleet, &clock)) {
        Ok(_) => "\nThe cluster is well: the drill would begin.\n".to_owned(),
        Err(why) => format!("\nThe drill would not begin: {why:#}\n"),
    })
}

/// What would be done, in words.
fn plan(scenario: &Scenario, live: Option<&Live>, is_virtual: bool) -> String {
    let mut text = format!(
        "{}: {}\n{}\n\n",
        scenario.name, scenario.title, scenario.about
    );
    match live {
        None if is_virtual => text.push_str("Regions, simulated in virtual time:\n"),
        None => text.push_str("Regions, each a process of its own on this machine:\n"),
        Some(live) => text.push_str(&format!(
            "Regions of the running cluster in {}:\n",
            live.file.display()
        )),
    }
    for (index, region) in scenario.regions.iter().enumerate() {
        let at = live
            .and_then(|live| live.address(index))
            .map_or_else(String::new, |address| format!("  {address}"));
        text.push_str(&format!("  {region}{at}\n"));
    }
    text.push_str(&format!(
        "\nCallers ask for {}:\n",
        seconds(scenario.duration_ms)
    ));
    for load in &scenario.loads {
        let limit = scenario
            .limits
            .get(load.limit)
            .map_or("?", |limit| limit.name.as_str());
        let regions: Vec<&str> = load
            .regions
            .iter()
            .map(|region| scenario.region(*region))
            .collect();
        text.push_str(&format!(
            "  {limit}: {} a second in each of {}\n",
            load.rate,
            regions.join(", ")
        ));
    }
    text.push_str("\nSteps:\n");
    for step in &scenario.steps {
        text.push_str(&format!(
            "  at {}: {}\n",
            seconds(step.at_ms),
            step.describe(scenario)
        ));
    }
    if let Some(live) = live {
        for note in &live.notes {
            text.push_str(&format!("  note: {note}\n"));
        }
    }
    text.push_str("\nExpected:\n");
    // What nothing is held against says what is wanted.
    for finding in verdict::judge(scenario, &Record::default()) {
        text.push_str(&format!("  {}: {}\n", finding.expectation, finding.wanted));
    }
    text
}

async fn on_processes(args: &RunArgs, scenario: Arc<Scenario>, seed: u64) -> anyhow::Result<Ran> {
    let stop = stop::requested().context("signals cannot be listened to")?;
    let dir = DataDir::new(args.data_dir.as_deref(), "drill")?;
    let progress = Arc::new(Progress::to_stderr());
    progress.say(&format!(
        "{}: {} regions of its own, seed {seed}",
        scenario.name,
        scenario.regions.len()
    ));
    let secret = format!("{:032x}", entropy::bits128());
    let (processes, endpoints) = Processes::new(&scenario, dir.path(), &secret)?;
    let processes = Arc::new(processes);
    let stage = Stage {
        scenario: Arc::clone(&scenario),
        endpoints,
        processes: Some(Arc::clone(&processes)),
        tenant_prefix: "drill".to_owned(),
        seed,
        progress,
    };
    let ran = tokio::select! {
        ran = staged(&stage, async |fleet| processes.start_all(fleet).await) => ran,
        () = stop => Err(anyhow::anyhow!("broken off; its regions were ended")),
    };
    processes.end().await;
    if let (Ok(record), Some(kept)) = (&ran, dir.kept()) {
        let path = kept.join("record.json");
        std::fs::write(&path, serde_json::to_vec(record)?)
            .with_context(|| format!("{} cannot be written", path.display()))?;
    }
    let panicked = processes.panicked();
    if !panicked.is_empty() {
        bail!(
            "panicked, see the log with --data-dir: {}",
            panicked.join(", ")
        );
    }
    Ok(Ran {
        record: ran?,
        scenario,
        stage: report::Stage::Processes,
        notes: Vec::new(),
    })
}

/// Prepares the regions, makes the limits and runs the drill.
async fn staged(
    stage: &Stage,
    prepare: impl AsyncFnOnce(&Fleet) -> anyhow::Result<()>,
) -> anyhow::Result<Record> {
    let clock = Clock::real();
    let before = stage.fleet(&clock);
    prepare(&before).await?;
    before
        .make_tenants(&stage.scenario.tenants(), &stage.limits()?)
        .await?;
    let fleet = Arc::new(stage.fleet(&clock));
    stage.run(&clock, &fleet).await
}

async fn on_cluster(
    args: &RunArgs,
    mut scenario: Scenario,
    live: &Live,
    seed: u64,
) -> anyhow::Result<Ran> {
    let clock = Clock::real();
    let plan = plan(&scenario, Some(live), false);
    let fleet = Fleet::new(live.endpoints.clone(), clock.stopwatch(), String::new());
    scenario.links = live.guard(&fleet, &clock).await?;
    if !args.yes {
        live.confirm(&plan)?;
        // Much may have happened before somebody answered.
        scenario.links = live.guard(&fleet, &clock).await?;
    }
    let scenario = Arc::new(scenario);
    let stage = Stage {
        scenario: Arc::clone(&scenario),
        endpoints: live.endpoints.clone(),
        processes: None,
        // Not from the seed: what a tenant of the same name was answered before is remembered.
        tenant_prefix: fleet::tenant_prefix(entropy::bits64()),
        seed,
        progress: Arc::new(Progress::to_stderr()),
    };
    let stop = stop::requested_or_hung_up().context("signals cannot be listened to")?;
    let before = stage.fleet(&clock);
    let words = scenario.tenants();
    let during = OnceLock::new();
    let ran = tokio::select! {
        ran = async {
            before.make_tenants(&words, &stage.limits()?).await?;
            let fleet = during.get_or_init(|| Arc::new(stage.fleet(&clock)));
            stage.run(&clock, fleet).await
        } => ran,
        () = stop => Err(anyhow::anyhow!("broken off")),
    };
    if let Some(fleet) = during.get() {
        let (lifted, left) = fleet.lift().await;
        if ran.is_err() {
            let said = format!("{lifted} faults and drains were lifted");
            stage.progress.say(&said);
        }
        if left > 0 {
            stage.progress.say(&format!(
                "{left} faults and drains could not be lifted; they end by themselves"
            ));
        }
    }
    if let Err(error) = before.remove_tenants(&words).await {
        stage.progress.say(&format!("{error:#}; remove it by hand"));
    }
    let stage = report::Stage::Cluster(live.name.clone());
    Ok(Ran {
        record: ran?,
        scenario,
        stage,
        notes: live.notes.clone(),
    })
}

fn write_report(report: &Report, path: &Path) -> anyhow::Result<()> {
    let is_page = path.extension().is_some_and(|ending| ending == "html");
    let text = if is_page {
        page::page(report)
    } else {
        let mut text = serde_json::to_string_pretty(report)?;
        text.push('\n');
        text
    };
    std::fs::write(path, text).with_context(|| format!("{} cannot be written", path.display()))
}

fn tell(report: &Report, format: OutputFormat) -> anyhow::Result<()> {
    if format == OutputFormat::Json {
        return Ok(output::show(format, &serde_json::to_value(report)?)?);
    }
    let header = ["", "LINE", "EXPECTED", "WANTED", "FOUND", ""].map(str::to_owned);
    let line = |finding: &verdict::Finding| {
        vec![
            if finding.is_met { "yes" } else { "NO" }.to_owned(),
            finding.line.to_string(),
            finding.expectation.clone(),
            finding.wanted.clone(),
            finding.found.clone(),
            finding.note.clone(),
        ]
    };
    let lines: Vec<Vec<String>> = report.findings.iter().map(line).collect();
    output::print(&output::aligned(&header, &lines))?;
    if report.figures.stall_ms_max >= page::STALL_MS {
        output::print(&format!(
            "\nThe machine of the drill stood still for {}: answers may be late by as much through no fault of a region\n",
            seconds(report.figures.stall_ms_max)
        ))?;
    }
    let (met, all) = report.met();
    let verdict = if report.is_passed { "passed" } else { "failed" };
    output::print(&format!(
        "\n{}: {verdict}, {met} of {all} expectations met, {} calls, seed {}\n",
        report.scenario, report.figures.calls, report.seed
    ))?;
    Ok(())
}
