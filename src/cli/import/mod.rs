//! `import`: a catalogue file from a configuration that somebody has already.

pub mod envoy_ratelimit;
mod envoy_tree;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use clap::Args;
use clap::Subcommand;

use super::Outcome;
use super::catalogue_file;
use super::output;

/// The most bytes of a file.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// Arguments of `import`.
#[derive(Debug, Args)]
#[command(about = "Make a catalogue file from the limits of another program", after_help = EXAMPLES)]
pub struct ImportArgs {
    #[command(subcommand)]
    from: From,
}

const EXAMPLES: &str = "\
Examples:
  highwater import envoy-ratelimit config.yaml > limits.toml     then: highwater diff -f limits.toml
  highwater import envoy-ratelimit config/*.yaml > limits.toml   a tenant for each domain

What has no equivalent is told line by line, here and as comments in the file. The exit status is 0 when
everything has one, 1 when something has not, 2 when a file cannot be read.";

#[derive(Debug, Subcommand)]
enum From {
    /// The YAML files of envoyproxy/ratelimit.
    EnvoyRatelimit {
        /// The files (- is standard input).
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
}

/// Runs `import`.
pub fn import(args: &ImportArgs) -> anyhow::Result<Outcome> {
    let From::EnvoyRatelimit { files } = &args.from;
    let texts = files
        .iter()
        .map(|path| catalogue_file::read_text(path, FILE_BYTES_MAX))
        .collect::<anyhow::Result<Vec<(String, String)>>>()?;
    let translated = envoy_ratelimit::translate(&texts)?;
    output::print(&translated.toml)?;
    for note in &translated.notes {
        eprintln!("{note}");
    }
    if translated.notes.is_empty() {
        Ok(Outcome::Done)
    } else {
        Ok(Outcome::No)
    }
}
