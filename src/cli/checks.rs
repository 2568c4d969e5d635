//! `check`, `usage`, `reset`, `why`: one limit at a time.

use clap::Args;
use reqwest::Method;
use serde_json::Value;
use serde_json::json;

use super::Outcome;
use super::Session;
use super::apply;
use super::client::Answer;
use super::output;
use super::output::OutputFormat;

/// One counter: a tenant's limit, and the key when the limit has one.
#[derive(Debug, Args)]
#[command(about = "Show the use of a limit, in all and by region", after_help = USAGE_EXAMPLES)]
pub struct CounterArgs {
    /// Whose limit.
    tenant: String,
    /// Which limit.
    limit: String,
    /// Which key, when the limit has one.
    key: Option<String>,
}

const USAGE_EXAMPLES: &str = "\
Examples:
  highwater usage demo regional-api alice
  highwater usage acme exports --output json";

/// Arguments of `check`.
#[derive(Debug, Args)]
#[command(about = "Check a limit once, and charge it when allowed", after_help = CHECK_EXAMPLES)]
pub struct CheckArgs {
    /// Whose limit.
    tenant: String,
    /// Which limit.
    limit: String,
    /// Which key, when the limit has one.
    key: Option<String>,
    /// Units to take; 0 looks and takes nothing.
    #[arg(long, value_name = "N")]
    cost: Option<u64>,
}

const CHECK_EXAMPLES: &str = "\
Examples:
  highwater check demo regional-api alice
  highwater check demo regional-api alice --cost 30
  highwater check demo regional-api alice --cost 0    look, take nothing

The exit status is 0 when allowed, 1 when refused, 2 when it could not be decided.";

/// Arguments of `reset`.
#[derive(Debug, Args)]
#[command(about = "Start a limit, or one key of it, from zero", after_help = RESET_EXAMPLES)]
pub struct ResetArgs {
    #[command(flatten)]
    counter: ResetCounter,
}

#[derive(Debug, Args)]
struct ResetCounter {
    /// Whose limit.
    tenant: String,
    /// Which limit.
    limit: String,
    /// Which key; absent: all keys.
    key: Option<String>,
}

const RESET_EXAMPLES: &str = "\
Examples:
  highwater reset demo regional-api alice    one key
  highwater reset acme exports               the whole limit";

/// Arguments of `why`.
#[derive(Debug, Args)]
#[command(
    about = "Show the newest refusals of a tenant: which limit, how much, and when to come back"
)]
#[command(after_help = WHY_EXAMPLES)]
pub struct WhyArgs {
    /// Whose checks.
    tenant: String,
    /// Only this key.
    #[arg(long)]
    key: Option<String>,
    /// Only this limit.
    #[arg(long)]
    limit: Option<String>,
}

const WHY_EXAMPLES: &str = "\
Examples:
  highwater why demo
  highwater why demo --key alice --limit regional-api";

/// Runs `check`.
pub async fn check(session: &Session, args: CheckArgs) -> anyhow::Result<Outcome> {
    let mut body = json!({ "tenant": args.tenant, "limit": args.limit });
    if let Some(key) = args.key {
        body["key"] = json!(key);
    }
    if let Some(cost) = args.cost {
        body["cost"] = json!(cost);
    }
    let answer = session
        .client
        .call(Method::POST, &["v1", "check"], &[], Some(&body), None)
        .await?;
    let decided = answer.body.get("decision").is_some();
    if !decided {
        answer.success()?;
        anyhow::bail!("the server's answer has no decision");
    }
    match session.output {
        OutputFormat::Json => output::show(OutputFormat::Json, &answer.body)?,
        OutputFormat::Table => output::print(&verdict(&answer.body))?,
    }
    match answer.status {
        200 => Ok(Outcome::Done),
        429 => Ok(Outcome::No),
        status => anyhow::bail!("the check could not be decided (HTTP {status})"),
    }
}

/// A decision for people: one word, then a line for each limit.
fn verdict(body: &Value) -> String {
    let text = |value: &Value, name: &str| {
        value
            .get(name)
            .map_or_else(String::new, |value| output::cell(name, value))
    };
    let mut out = text(body, "decision");
    if let Some(region) = body.get("region") {
        out.push_str(&format!(" in {}", output::cell("region", region)));
    }
    let reason = text(body, "detail");
    if !reason.is_empty() {
        out.push_str(&format!(": {reason}"));
    }
    out.push('\n');
    out.push_str(&result_lines(body, &VERDICT_COLUMNS));
    out
}

const VERDICT_COLUMNS: [&str; 9] = [
    "limit",
    "key",
    "decision",
    "reason",
    "used",
    "quota",
    "remaining",
    "reset_after_ms",
    "retry_after_ms",
];
const USAGE_COLUMNS: [&str; 8] = [
    "limit",
    "key",
    "used",
    "quota",
    "remaining",
    "reset_after_ms",
    "window_start_ms",
    "epoch",
];

/// A line for each limit of an answer, with those of `columns` that any of them has.
fn result_lines(body: &Value, columns: &[&str]) -> String {
    let results = body.get("results").and_then(Value::as_array);
    let results = results.map(Vec::as_slice).unwrap_or_default();
    let has =
        |result: &Value, column: &str| result.get(column).is_some_and(|value| !value.is_null());
    let shown: Vec<&str> = columns
        .iter()
        .copied()
        .filter(|column| results.iter().any(|result| has(result, column)))
        .collect();
    let title = |column: &&str| {
        column
            .trim_end_matches("_ms")
            .trim_end_matches("_after")
            .to_uppercase()
    };
    let cell = |result: &Value, column: &str| {
        output::cell(column, result.get(column).unwrap_or(&Value::Null))
    };
    let line = |result: &Value| shown.iter().map(|column| cell(result, column)).collect();
    let header: Vec<String> = shown.iter().map(title).collect();
    let lines: Vec<Vec<String>> = results.iter().map(line).collect();
    output::aligned(&header, &lines)
}

/// Use for people: how the limit stands, then which region has counted how much.
fn use_lines(body: &Value) -> String {
    let mut out = result_lines(body, &USAGE_COLUMNS);
    let regions = body.get("by_region").and_then(Value::as_object);
    if let Some(regions) = regions.filter(|regions| !regions.is_empty()) {
        let lines = regions
            .iter()
            .map(|(region, used)| vec![region.clone(), output::cell("", used)]);
        let lines: Vec<Vec<String>> = lines.collect();
        let header = ["REGION", "USED"].map(str::to_owned);
        out.push('\n');
        out.push_str(&output::aligned(&header, &lines));
    }
    out
}

/// Runs `usage`.
pub async fn usage(session: &Session, args: CounterArgs) -> anyhow::Result<Outcome> {
    let mut query = vec![
        ("tenant", args.tenant.as_str()),
        ("limit", args.limit.as_str()),
    ];
    query.extend(args.key.as_deref().map(|key| ("key", key)));
    let answer = session
        .client
        .get(&["v1", "usage"], &query)
        .await?
        .success()?;
    match session.output {
        OutputFormat::Json => output::show(OutputFormat::Json, &answer.body)?,
        OutputFormat::Table => output::print(&use_lines(&answer.body))?,
    }
    Ok(Outcome::Done)
}

/// Runs `reset`.
pub async fn reset(session: &Session, args: ResetArgs) -> anyhow::Result<Outcome> {
    let ResetCounter { tenant, limit, key } = args.counter;
    let path = ["admin", "v1", "tenants", &tenant, "limits", &limit, "reset"];
    let body = key.map_or_else(|| json!({}), |key| json!({ "key": key }));
    let answer: Answer = session
        .client
        .call(Method::POST, &path, &[], Some(&body), None)
        .await?
        .success()?;
    apply::report(session, &answer)
}

/// Runs `why`.
pub async fn why(session: &Session, args: WhyArgs) -> anyhow::Result<Outcome> {
    let mut query = vec![("tenant", args.tenant.as_str())];
    query.extend(args.key.as_deref().map(|key| ("key", key)));
    query.extend(args.limit.as_deref().map(|limit| ("limit", limit)));
    let answer = session
        .client
        .get(&["admin", "v1", "rejections"], &query)
        .await?
        .success()?;
    output::show_list(session.output, &answer.body)?;
    Ok(Outcome::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decision_is_one_word_and_a_line_for_each_limit() {
        let body = json!({
            "decision": "allow", "region": "us-east-1", "delay_ms": 0,
            "results": [{
                "limit": "tokens", "key": "gpt-5", "mode": "regional", "decision": "allow", "quota": 40000, "used": 43,
                "remaining": 39957, "reset_after_ms": 23000, "retry_after_ms": null, "decided_by": "local",
            }],
        });
        let text = "\
allow in us-east-1
LIMIT   KEY    DECISION  USED  QUOTA  REMAINING  RESET
tokens  gpt-5  allow     43    40000  39957      23s
";
        assert_eq!(verdict(&body), text);
    }

    #[test]
    fn use_is_told_with_the_regions_that_counted_it() {
        let body = json!({
            "decision": "allow", "by_region": { "us-east-1": 40, "eu-west-1": 3 },
            "results": [{ "limit": "exports", "quota": 500, "used": 43, "remaining": 457, "epoch": 3 }],
        });
        let text = "\
LIMIT    USED  QUOTA  REMAINING  EPOCH
exports  43    500    457        3

REGION     USED
eu-west-1  3
us-east-1  40
";
        assert_eq!(use_lines(&body), text);
    }
}
