//! `import`: a catalogue file from a configuration that somebody has already.

pub mod envoy_ratelimit;
mod envoy_tree;
#[cfg(test)]
mod tests;

use std::io::Read;
use std::path::Path;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use clap::Subcommand;

use super::Outcome;
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
        .map(|path| Ok((path.display().to_string(), read(path)?)))
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

fn read(path: &Path) -> anyhow::Result<String> {
    let name = path.display().to_string();
    let mut text = String::new();
    let mut reader: Box<dyn Read> = if name == "-" {
        Box::new(std::io::stdin())
    } else {
        Box::new(std::fs::File::open(path).with_context(|| format!("{name} cannot be read"))?)
    };
    reader
        .by_ref()
        .take(FILE_BYTES_MAX)
        .read_to_string(&mut text)
        .with_context(|| format!("{name} cannot be read"))?;
    anyhow::ensure!(
        reader.read(&mut [0])? == 0,
        "{name} is larger than {FILE_BYTES_MAX} bytes"
    );
    Ok(text)
}
