//! The command line: every command of the program, its flags and its help.
//!
//! Data goes to standard output, everything else to standard error. The exit status is 0 when the command
//! did what it was asked, 1 when the answer is no (refused, differs, invalid), 2 when it could not be run.
//!
//! - `serve`, `dev`: run regions.
//! - `check`, `usage`, `reset`, `why`: one limit at a time ([`checks`]).
//! - `limits`, `plans`, `tenants`, `tokens`: the catalogue by hand ([`items`], [`tokens`]).
//! - `apply`, `diff`: the catalogue from a file ([`apply`], [`difference`], [`catalogue_file`]).
//! - `import`: a catalogue file from the limits of another program ([`import`]).
//! - `status`, `leader`, `region`: the cluster ([`cluster`]). `ledger`: strict windows ([`ledger`]).
//! - `drill`: failures rehearsed, with a verdict ([`drill`]).
//! - `audit`, `backup`, `restore`, `openapi`, `completions`, `check-config`: operation ([`operate`]).

pub mod apply;
pub mod catalogue_file;
pub mod checks;
pub mod client;
pub mod cluster;
pub mod dev;
pub mod difference;
pub mod drill;
pub mod import;
pub mod items;
pub mod ledger;
pub mod limit_flags;
pub mod limit_table;
pub mod operate;
pub mod output;
mod profiles;
pub mod serve;
pub mod stop;
pub mod tokens;

use std::process::ExitCode;

use clap::Args;
use clap::Parser;
use clap::Subcommand;
use serde_json::Value;

use crate::telemetry::logs::LogFormat;

use client::Answer;
use client::Client;
use output::OutputFormat;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It did what it was asked.
    Done,
    /// The answer is no.
    No,
}

const EXAMPLES: &str = "\
Examples:
  highwater dev                                   three regions on this machine, with demo limits
  highwater check demo regional-api alice         one check
  highwater limits set acme exports --quota 10 --period day
  highwater apply -f catalogue.toml               the catalogue from a file
  highwater status                                regions, leader, lag
  highwater drill run leader-loss                 rehearse a failure
  highwater serve --config regions/us-east-1.toml one region";

/// Highwater: quotas and rate limits, counted exactly, in one binary and one directory.
#[derive(Debug, Parser)]
#[command(name = "highwater", version, max_term_width = 110, after_help = EXAMPLES)]
#[command(disable_help_subcommand = true)]
pub struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// Flags that all commands take.
#[derive(Clone, Debug, Args)]
pub struct Global {
    /// The admin listener to talk to.
    #[arg(long, global = true, env = "HIGHWATER_SERVER", value_name = "URL", default_value = client::DEV_SERVER)]
    #[arg(help_heading = "Global options")]
    server: String,
    /// The file that holds the token to talk with; else HIGHWATER_TOKEN, else `dev` on the default server.
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        help_heading = "Global options"
    )]
    token_file: Option<std::path::PathBuf>,
    /// How answers are written: table, for people, or json, for programs.
    #[arg(
        hide_possible_values = true,
        long,
        global = true,
        value_enum,
        default_value_t,
        help_heading = "Global options"
    )]
    output: OutputFormat,
    /// How log lines are written: text or json.
    #[arg(
        hide_possible_values = true,
        long,
        global = true,
        value_enum,
        default_value_t,
        env = "HIGHWATER_LOG_FORMAT"
    )]
    #[arg(help_heading = "Global options")]
    log_format: LogFormat,
}

#[derive(Debug, Subcommand)]
enum Command {
    Dev(dev::DevArgs),
    Serve(serve::ServeArgs),
    CheckConfig(serve::CheckConfigArgs),
    Check(checks::CheckArgs),
    Usage(checks::CounterArgs),
    Reset(checks::ResetArgs),
    Why(checks::WhyArgs),
    Limits(items::LimitsArgs),
    Plans(items::PlansArgs),
    Tenants(items::TenantsArgs),
    Profiles(profiles::ProfilesArgs),
    Tokens(tokens::TokensArgs),
    Apply(apply::ApplyArgs),
    Diff(apply::DiffArgs),
    Import(import::ImportArgs),
    Status(cluster::StatusArgs),
    Leader(cluster::LeaderArgs),
    Region(cluster::RegionArgs),
    Ledger(ledger::LedgerArgs),
    Drill(drill::DrillArgs),
    Audit(operate::AuditArgs),
    Backup(operate::BackupArgs),
    Restore(operate::RestoreArgs),
    Completions(operate::CompletionsArgs),
    Openapi(operate::OpenapiArgs),
}

/// Runs the program with the arguments of the process.
pub fn main() -> ExitCode {
    #[cfg(feature = "planted-faults")]
    if let Ok(name) = std::env::var(crate::domain::planted::VARIABLE)
        && !crate::domain::planted::choose(&name)
    {
        eprintln!("error: there is no planted fault {name:?}");
        return ExitCode::from(2);
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Nothing can be told to anyone when standard error is closed.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    match run(cli) {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::No) => ExitCode::from(1),
        // Who reads has seen enough, as in `highwater audit | head`.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(if client::is_refusal(&error) { 1 } else { 2 })
        }
    }
}

/// The outcome of a command that has written what it found. That nobody read on makes it no other one.
fn told(written: anyhow::Result<()>, outcome: Outcome) -> anyhow::Result<Outcome> {
    match written {
        Err(error) if !is_broken_pipe(&error) => Err(error),
        _ => Ok(outcome),
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<std::io::Error>();
    io.is_some_and(|io| io.kind() == std::io::ErrorKind::BrokenPipe)
}

fn run(cli: Cli) -> anyhow::Result<Outcome> {
    let Cli { global, command } = cli;
    let g = &global;
    match command {
        Command::Serve(args) => serve::serve(args, global.log_format),
        Command::Dev(args) => dev::dev(&args, global.log_format),
        Command::Drill(args) => drill::drill(&args, global.output),
        Command::CheckConfig(args) => serve::check_config(args),
        Command::Import(args) => import::import(&args),
        Command::Restore(args) => operate::restore(&args),
        Command::Completions(args) => operate::completions(&args),
        Command::Check(args) => ask(g, async |session| checks::check(&session, args).await),
        Command::Usage(args) => ask(g, async |session| checks::usage(&session, args).await),
        Command::Reset(args) => ask(g, async |session| checks::reset(&session, args).await),
        Command::Why(args) => ask(g, async |session| checks::why(&session, args).await),
        Command::Limits(args) => ask(g, async |session| items::limits(&session, args).await),
        Command::Plans(args) => ask(g, async |session| items::plans(&session, args).await),
        Command::Tenants(args) => ask(g, async |session| items::tenants(&session, args).await),
        Command::Profiles(args) => ask(g, async |session| profiles::profiles(&session, args).await),
        Command::Tokens(args) => ask(g, async |session| tokens::tokens(&session, args).await),
        Command::Apply(args) => ask(g, async |session| apply::apply(&session, args).await),
        Command::Diff(args) => ask(g, async |session| apply::diff(&session, args).await),
        Command::Status(_) => ask(g, async |session| cluster::status(&session).await),
        Command::Leader(args) => ask(g, async |session| cluster::leader(&session, args).await),
        Command::Region(args) => ask(g, async |session| cluster::region(&session, args).await),
        Command::Ledger(args) => ask(g, async |session| ledger::ledger(&session, args).await),
        Command::Audit(args) => ask(g, async |session| operate::audit(&session, args).await),
        Command::Backup(args) => ask(g, async |session| operate::backup(&session, args).await),
        Command::Openapi(_) => ask(g, async |session| operate::openapi(&session).await),
    }
}

/// Runs a command that talks to the server that the flags name.
fn ask(
    global: &Global,
    work: impl AsyncFnOnce(Session) -> anyhow::Result<Outcome>,
) -> anyhow::Result<Outcome> {
    let session = Session {
        client: Client::new(global)?,
        output: global.output,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(work(session))
}

/// What a command that talks to a server works with.
#[derive(Debug)]
pub struct Session {
    client: Client,
    output: OutputFormat,
}

impl Session {
    /// Writes a whole answer, as JSON or for people.
    fn show(&self, answer: &Answer) -> anyhow::Result<Outcome> {
        output::show(self.output, &answer.body)?;
        Ok(Outcome::Done)
    }

    /// Writes a whole list, read page by page from `after` on.
    async fn list(&self, path: &[&str], after: Option<String>) -> anyhow::Result<Outcome> {
        let items = self.client.list(path, after).await?;
        output::show(self.output, &Value::Array(items))?;
        Ok(Outcome::Done)
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_flags_of_all_commands_fit_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_examples() {
        let all = Cli::command();
        for command in all.get_subcommands() {
            let with_examples = command
                .get_after_help()
                .map(ToString::to_string)
                .unwrap_or_default();
            assert!(
                with_examples.starts_with("Examples:\n") && with_examples.contains("highwater "),
                "{}",
                command.get_name()
            );
            assert!(command.get_about().is_some(), "{}", command.get_name());
        }
    }

    #[test]
    fn commands_of_other_builds_are_unknown() {
        assert!(Cli::try_parse_from(["highwater", "export"]).is_err());
    }
}
