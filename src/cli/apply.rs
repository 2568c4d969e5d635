//! `apply`, `diff`: the catalogue from a TOML file, all or nothing.

use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use reqwest::Method;
use serde_json::Map;
use serde_json::Value;

use super::Outcome;
use super::Session;
use super::catalogue_file::CatalogueFile;
use super::catalogue_file::FileFaults;
use super::catalogue_file::Rejection;
use super::client::Answer;
use super::difference;
use super::difference::Difference;
use super::output;
use super::output::OutputFormat;

/// Arguments of `apply`.
#[derive(Debug, Args)]
#[command(about = "Make the catalogue what a TOML file says, all or nothing", after_help = APPLY_EXAMPLES)]
pub struct ApplyArgs {
    /// The catalogue file (- is standard input).
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    file: PathBuf,
    /// Also delete limits, plans and profiles that the file does not name. Tenants are never deleted.
    #[arg(long)]
    prune: bool,
}

const APPLY_EXAMPLES: &str = "\
Examples:
  highwater apply -f catalogue.toml            creates and changes what the file names, deletes nothing
  highwater diff -f catalogue.toml --prune     what the next line would change
  highwater apply -f catalogue.toml --prune";

/// Arguments of `diff`.
#[derive(Debug, Args)]
#[command(about = "Show what `apply` would change", after_help = DIFF_EXAMPLES)]
pub struct DiffArgs {
    /// The catalogue file (- is standard input).
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    file: PathBuf,
    /// Also show limits, plans and profiles that the file does not name.
    #[arg(long)]
    prune: bool,
}

const DIFF_EXAMPLES: &str = "\
Examples:
  highwater diff -f catalogue.toml
  highwater diff -f catalogue.toml --prune

Lines begin with + (would be created), ~ (would be changed) or - (would be deleted). The exit status is 0 when
nothing differs, 1 when something does, 2 when it could not be found out.";

const CATALOGUE: [&str; 3] = ["admin", "v1", "catalogue"];

/// Runs `apply`.
pub async fn apply(session: &Session, args: ApplyArgs) -> anyhow::Result<Outcome> {
    let file = CatalogueFile::read(&args.file)?;
    let document = match file.to_json() {
        Ok(document) => document,
        Err(faults) => return refuse(&faults),
    };
    let answer = if args.prune {
        let (server, version) = catalogue(session).await?;
        let whole = difference::pruned(&document, &server);
        session
            .client
            .call(Method::PUT, &CATALOGUE, &[], Some(&whole), Some(version))
            .await?
    } else {
        session
            .client
            .call(Method::PATCH, &CATALOGUE, &[], Some(&document), None)
            .await?
    };
    settle(session, &file, answer)
}

/// Runs `diff`.
pub async fn diff(session: &Session, args: DiffArgs) -> anyhow::Result<Outcome> {
    let file = CatalogueFile::read(&args.file)?;
    let document = match file.to_json() {
        Ok(document) => document,
        Err(faults) => {
            eprintln!("{faults}");
            bail!("the file cannot be compared");
        }
    };
    let (server, _) = catalogue(session).await?;
    let differences = difference::differences(&document, &server, args.prune);
    match session.output {
        OutputFormat::Table => {
            let lines: String = differences
                .iter()
                .map(|difference| format!("{difference}\n"))
                .collect();
            output::print(&lines)?;
        }
        OutputFormat::Json => {
            let list = differences.iter().map(as_json).collect();
            output::show(OutputFormat::Json, &Value::Array(list))?;
        }
    }
    Ok(if differences.is_empty() {
        Outcome::Done
    } else {
        Outcome::No
    })
}

fn as_json(difference: &Difference) -> Value {
    let Difference {
        path,
        before,
        after,
        note,
    } = difference;
    serde_json::json!({ "path": path, "before": before, "after": after, "note": note })
}

/// The server's catalogue and its version.
async fn catalogue(session: &Session) -> anyhow::Result<(Value, u64)> {
    let answer = session.client.get(&CATALOGUE, &[]).await?.success()?;
    let Some(version) = answer.version else {
        bail!("the server's answer names no version of the catalogue")
    };
    let mut body = answer.body;
    // The document itself, or beside its version.
    if let Some(inner) = body.get_mut("catalogue") {
        body = inner.take();
    } else if let Some(members) = body.as_object_mut() {
        members.remove("version");
    }
    Ok((body, version))
}

/// Tells what is wrong with a file before the server was asked.
pub fn refuse(faults: &FileFaults) -> anyhow::Result<Outcome> {
    eprintln!("{faults}");
    Ok(Outcome::No)
}

/// Tells how the server took a file.
pub fn settle(session: &Session, file: &CatalogueFile, answer: Answer) -> anyhow::Result<Outcome> {
    match file.accepted(answer) {
        Ok(answer) => report(session, &answer),
        Err(Rejection::Server(error)) => Err(error.into()),
        Err(Rejection::Fields(faults)) => {
            eprintln!("{faults}");
            eprintln!("nothing was changed");
            Ok(Outcome::No)
        }
    }
}

/// Tells what a change of the catalogue did: its version, and what the author should know.
pub fn report(session: &Session, answer: &Answer) -> anyhow::Result<Outcome> {
    match session.output {
        OutputFormat::Json => output::show(OutputFormat::Json, &answer.body)?,
        OutputFormat::Table => output::print(&change_lines(answer))?,
    }
    Ok(Outcome::Done)
}

fn change_lines(answer: &Answer) -> String {
    let list = |name: &str| {
        answer
            .body
            .get(name)
            .and_then(Value::as_array)
            .map(Vec::as_slice)
            .unwrap_or_default()
    };
    let mut text = match answer.version {
        Some(version) => format!("done; the catalogue is at version {version}\n"),
        None => "done\n".to_owned(),
    };
    for warning in list("warnings") {
        text.push_str(&format!("warning: {}\n", output::cell("", warning)));
    }
    for counter in list("new_epochs") {
        let members = counter.as_object().into_iter().flat_map(Map::iter);
        let named: Vec<String> = members
            .map(|(name, value)| format!("{name} {}", output::cell(name, value)))
            .collect();
        text.push_str(&format!("starts from zero: {}\n", named.join(", ")));
    }
    for region in list("pending_regions") {
        text.push_str(&format!(
            "not yet confirmed by {}\n",
            output::cell("", region)
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_change_is_told_with_its_version_its_warnings_and_what_starts_from_zero() {
        let body = json!({
            "version": 7,
            "warnings": ["limits.a: many calls are remembered"],
            "new_epochs": [{ "limit": "exports", "tenant": "acme" }],
            "pending_regions": [],
        });
        let answer = Answer {
            status: 200,
            body,
            version: Some(7),
        };
        let text = "\
done; the catalogue is at version 7
warning: limits.a: many calls are remembered
starts from zero: limit exports, tenant acme
";
        assert_eq!(change_lines(&answer), text);
    }
}
