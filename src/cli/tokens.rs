//! `tokens`: who may do what.

use clap::Args;
use clap::Subcommand;
use reqwest::Method;
use serde_json::Value;
use serde_json::json;

use super::Outcome;
use super::Session;
use super::apply;
use super::output;
use super::output::OutputFormat;

/// Arguments of `tokens`.
#[derive(Debug, Args)]
#[command(about = "Access tokens: create, list, revoke", after_help = EXAMPLES)]
pub struct TokensArgs {
    #[command(subcommand)]
    command: TokensCommand,
}

const EXAMPLES: &str = "\
Examples:
  highwater tokens create --scope check > gateway.token    the token is shown this once only
  highwater tokens create --scope tenant --tenant acme --expires-at 2027-01-01T00:00:00Z
  highwater tokens list
  highwater tokens revoke ID";

#[derive(Debug, Subcommand)]
enum TokensCommand {
    /// Create a token and show it; it cannot be shown again.
    Create {
        /// What it is for: all, reading, one tenant's limits, checks.
        #[arg(long, value_parser = ["admin", "read", "tenant", "check"])]
        scope: String,
        /// Whose it is; needed for scope tenant, narrows scope check.
        #[arg(long)]
        tenant: Option<String>,
        /// When it ends by itself, as in 2027-01-01T00:00:00Z.
        #[arg(long, value_name = "TIME")]
        expires_at: Option<String>,
    },
    /// List all tokens, without the tokens themselves.
    List,
    /// End a token at once.
    Revoke {
        /// Its id, as `list` shows it.
        id: String,
    },
}

const TOKENS: [&str; 3] = ["admin", "v1", "tokens"];

/// Runs `tokens`.
pub async fn tokens(session: &Session, args: TokensArgs) -> anyhow::Result<Outcome> {
    match args.command {
        TokensCommand::Create {
            scope,
            tenant,
            expires_at,
        } => {
            let mut body = json!({ "scope": scope });
            for (name, value) in [("tenant", tenant), ("expires_at", expires_at)] {
                if let Some(value) = value {
                    body[name] = Value::from(value);
                }
            }
            let answer = session
                .client
                .call(Method::POST, &TOKENS, &[], Some(&body), None)
                .await?
                .success()?;
            shown_once(session, &answer.body)
        }
        TokensCommand::List => session.list(&TOKENS, None).await,
        TokensCommand::Revoke { id } => {
            let path = ["admin", "v1", "tokens", &id];
            let answer = session
                .client
                .call(Method::DELETE, &path, &[], None, None)
                .await?
                .success()?;
            apply::report(session, &answer)
        }
    }
}

/// The token alone on standard output, so that it can go into a file; all else to standard error.
fn shown_once(session: &Session, body: &Value) -> anyhow::Result<Outcome> {
    let token = body.get("token").and_then(Value::as_str);
    match (session.output, token) {
        (OutputFormat::Table, Some(token)) => {
            output::print(&format!("{token}\n"))?;
            let mut rest = body.clone();
            if let Some(members) = rest.as_object_mut() {
                members.remove("token");
            }
            eprint!("{}", output::describe(&rest));
            eprintln!("keep the token: it cannot be shown again");
        }
        (OutputFormat::Json, _) | (OutputFormat::Table, None) => {
            output::show(session.output, body)?;
        }
    }
    Ok(Outcome::Done)
}
