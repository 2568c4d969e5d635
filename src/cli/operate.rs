//! `audit`, `backup`, `restore`, `completions`, `openapi`: operation.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use clap::CommandFactory;
use clap_complete::Shell;

use crate::store;

use super::Cli;
use super::Outcome;
use super::Session;
use super::output;
use super::output::OutputFormat;

/// Arguments of `audit`.
#[derive(Debug, Args)]
#[command(about = "Show who changed what, oldest first", after_help = AUDIT_EXAMPLES)]
pub struct AuditArgs {
    /// Only changes after this version.
    #[arg(long, value_name = "VERSION")]
    after: Option<u64>,
}

const AUDIT_EXAMPLES: &str = "\
Examples:
  highwater audit
  highwater audit --after 120";

/// Arguments of `backup`.
#[derive(Debug, Args)]
#[command(about = "Copy everything that the region keeps into one file, while it runs", after_help = BACKUP_EXAMPLES)]
pub struct BackupArgs {
    /// The file to write; it must not exist.
    file: PathBuf,
}

const BACKUP_EXAMPLES: &str = "\
Examples:
  highwater backup us-east-1.backup";

/// Arguments of `restore`.
#[derive(Debug, Args)]
#[command(about = "Make a data directory from a backup; the region must not run", after_help = RESTORE_EXAMPLES)]
pub struct RestoreArgs {
    /// The backup.
    file: PathBuf,
    /// The data directory to make; it must be empty or not exist.
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
}

const RESTORE_EXAMPLES: &str = "\
Examples:
  highwater restore us-east-1.backup --data-dir data/us-east-1";

/// Arguments of `completions`.
#[derive(Debug, Args)]
#[command(about = "Write the completions of a shell to standard output", after_help = COMPLETIONS_EXAMPLES)]
pub struct CompletionsArgs {
    /// Which shell.
    shell: Shell,
}

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  highwater completions bash > /etc/bash_completion.d/highwater
  highwater completions zsh > ~/.zfunc/_highwater";

/// Arguments of `openapi`.
#[derive(Debug, Args)]
#[command(about = "Write the server's OpenAPI document to standard output", after_help = OPENAPI_EXAMPLES)]
pub struct OpenapiArgs {}

const OPENAPI_EXAMPLES: &str = "\
Examples:
  highwater openapi > admin.json
  highwater openapi --server http://127.0.0.1:7110 > check.json";

/// Runs `audit`.
pub async fn audit(session: &Session, args: AuditArgs) -> anyhow::Result<Outcome> {
    let after = args.after.map(|after| after.to_string());
    session.list(&["admin", "v1", "audit"], after).await
}

/// Runs `backup`.
pub async fn backup(session: &Session, args: BackupArgs) -> anyhow::Result<Outcome> {
    let mut response = match session.client.download(&["admin", "v1", "backup"]).await? {
        Ok(response) => response,
        Err(answer) => {
            answer.success()?;
            anyhow::bail!("the server sent no backup");
        }
    };
    let name = args.file.display();
    let mut partial = args.file.clone().into_os_string();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    anyhow::ensure!(!args.file.exists(), "{name} exists; name a new file");
    let mut file = private_file(&partial)?;
    let mut bytes: u64 = 0;
    let written = async {
        while let Some(chunk) = response.chunk().await.context("the backup broke off")? {
            file.write_all(&chunk)
                .with_context(|| format!("{} cannot be written", partial.display()))?;
            bytes = bytes.saturating_add(u64::try_from(chunk.len())?);
        }
        file.sync_all()?;
        std::fs::rename(&partial, &args.file).with_context(|| format!("{name} cannot be made"))
    };
    if let Err(error) = written.await {
        // What is there is no backup; that it cannot be removed either is the lesser news.
        let _ = std::fs::remove_file(&partial);
        return Err(error);
    }
    match session.output {
        OutputFormat::Json => {
            let told = serde_json::json!({ "file": args.file, "bytes": bytes });
            output::show(OutputFormat::Json, &told)?;
        }
        OutputFormat::Table => output::print(&format!("{name}: {bytes} bytes\n"))?,
    }
    Ok(Outcome::Done)
}

/// A new file that only its owner can read: a backup holds the hashes of tokens and every tenant's name, the file of
/// a drill's region a token.
pub(super) fn private_file(path: &Path) -> anyhow::Result<std::fs::File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(0o600);
    }
    options
        .open(path)
        .with_context(|| format!("{} cannot be made", path.display()))
}

/// Runs `restore`.
pub fn restore(args: &RestoreArgs) -> anyhow::Result<Outcome> {
    store::restore_backup(&args.file, &args.data_dir)?;
    output::print(&format!(
        "{} was made from {}\n",
        args.data_dir.display(),
        args.file.display()
    ))?;
    Ok(Outcome::Done)
}

/// Runs `completions`.
pub fn completions(args: &CompletionsArgs) -> anyhow::Result<Outcome> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "highwater", &mut script);
    output::print(&String::from_utf8_lossy(&script))?;
    Ok(Outcome::Done)
}

/// Runs `openapi`.
pub async fn openapi(session: &Session) -> anyhow::Result<Outcome> {
    let answer = session
        .client
        .get(&["openapi.json"], &[])
        .await?
        .success()?;
    output::show(OutputFormat::Json, &answer.body)?;
    Ok(Outcome::Done)
}
