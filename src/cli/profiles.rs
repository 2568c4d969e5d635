//! `profiles`: gateway profiles by hand, one at a time.

use std::path::PathBuf;

use clap::Args;
use clap::Subcommand;

use super::Outcome;
use super::Session;
use super::items;

/// Arguments of `profiles`.
#[derive(Debug, Args)]
#[command(about = "Gateway profiles: what /v1/gateway/{profile} asks", after_help = EXAMPLES)]
pub struct ProfilesArgs {
    #[command(subcommand)]
    command: ProfilesCommand,
}

const EXAMPLES: &str = "\
Examples:
  highwater profiles list
  highwater profiles set edge -f edge.toml    as in: tenant = \"acme\", action = \"api\", keys = { ip = \"client_ip/64\" }
  highwater profiles get edge
  highwater profiles delete edge";

#[derive(Debug, Subcommand)]
enum ProfilesCommand {
    /// List all profiles.
    List,
    /// Show one profile.
    Get {
        /// Which profile.
        profile: String,
    },
    /// Define one profile, as a whole.
    Set {
        /// Which profile.
        profile: String,
        /// The TOML file that holds it (- is standard input).
        #[arg(short = 'f', long = "file", value_name = "FILE")]
        file: PathBuf,
    },
    /// Delete one profile.
    Delete {
        /// Which profile.
        profile: String,
    },
}

/// Runs `profiles`.
pub async fn profiles(session: &Session, args: ProfilesArgs) -> anyhow::Result<Outcome> {
    const PROFILES: [&str; 3] = ["admin", "v1", "profiles"];
    let [admin, version, table] = PROFILES;
    match args.command {
        ProfilesCommand::List => session.list(&PROFILES, None).await,
        ProfilesCommand::Get { profile } => {
            items::get(session, &[admin, version, table, &profile], &[]).await
        }
        ProfilesCommand::Set { profile, file } => {
            items::set_from_file(session, &[admin, version, table, &profile], &[], file).await
        }
        ProfilesCommand::Delete { profile } => {
            items::delete(session, &[admin, version, table, &profile], &[]).await
        }
    }
}
