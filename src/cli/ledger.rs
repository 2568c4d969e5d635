//! `ledger`: the proof of one window of a strict limit.

use clap::Args;
use serde_json::Value;

use super::Outcome;
use super::Session;
use super::output;
use super::output::OutputFormat;

/// Arguments of `ledger`.
#[derive(Debug, Args)]
#[command(
    about = "Show the proof of a strict window: granted = spent + held + returned + stranded, by region"
)]
#[command(after_help = EXAMPLES)]
pub struct LedgerArgs {
    /// Whose limit.
    tenant: String,
    /// Which strict limit.
    limit: String,
    /// Which key, when the limit has one.
    key: Option<String>,
    /// A time inside the window, Unix milliseconds or RFC 3339; now when left out.
    #[arg(long, value_name = "TIME")]
    at: Option<String>,
}

const EXAMPLES: &str = "\
Examples:
  highwater ledger demo billing-exports alice
  highwater ledger demo billing-exports alice --at 2027-02-28T12:00:00Z

The exit status is 1 when the numbers do not add up, or there is no such window.";

const COLUMNS: [&str; 7] = [
    "granted", "spent", "held", "returned", "stranded", "charged", "refunded",
];

/// Runs `ledger`.
pub async fn ledger(session: &Session, args: LedgerArgs) -> anyhow::Result<Outcome> {
    let LedgerArgs {
        tenant,
        limit,
        key,
        at,
    } = args;
    let path = [
        "admin", "v1", "tenants", &tenant, "limits", &limit, "ledger",
    ];
    let mut query = Vec::new();
    query.extend(key.as_deref().map(|key| ("key", key)));
    query.extend(at.as_deref().map(|at| ("at", at)));
    let answer = session.client.get(&path, &query).await?.success()?;
    match session.output {
        OutputFormat::Json => output::show(OutputFormat::Json, &answer.body)?,
        OutputFormat::Table => output::print(&page(&answer.body))?,
    }
    Ok(if answer.body["adds_up"] == true {
        Outcome::Done
    } else {
        Outcome::No
    })
}

/// A window for people: how it stands, then who had what.
fn page(proof: &Value) -> String {
    let text = |name: &str| output::cell(name, &proof[name]);
    let key = proof["key"].as_str().map_or_else(String::new, |_| {
        format!(", key {}", output::cell("", &proof["key"]))
    });
    let mut out = format!(
        "{} of {}{key}, epoch {}, {} to {}\n",
        text("limit"),
        text("tenant"),
        text("epoch"),
        text("window_start_ms"),
        text("window_end_ms"),
    );
    out.push_str(&format!(
        "quota {} (at most {}): {} used, {} free, {} withheld, {} stranded\n\n",
        text("quota"),
        text("quota_max"),
        text("used"),
        text("free"),
        text("withheld"),
        text("stranded"),
    ));
    let header: Vec<String> = std::iter::once("region")
        .chain(COLUMNS)
        .map(str::to_uppercase)
        .collect();
    let rows = proof["rows"].as_array().map(Vec::as_slice);
    let line = |row: &Value| {
        let units = COLUMNS.iter().map(|column| output::cell("", &row[*column]));
        std::iter::once(output::cell("", &row["region"]))
            .chain(units)
            .collect()
    };
    let lines: Vec<Vec<String>> = rows.unwrap_or_default().iter().map(line).collect();
    out.push_str(&output::aligned(&header, &lines));
    out.push_str(if proof["adds_up"] == true {
        "\nit adds up: granted = spent + held + returned + stranded, in every row\n"
    } else {
        "\nIT DOES NOT ADD UP: keep a backup and report this\n"
    });
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_window_is_a_page_that_can_be_added_up() {
        let mut proof = json!({
            "tenant": "demo", "limit": "billing-exports", "key": "alice", "epoch": 2,
            "window_start_ms": 1_796_000_400_000_i64, "window_end_ms": 1_796_004_000_000_i64,
            "quota": 10, "quota_max": 10, "used": 4, "free": 4, "withheld": 0, "stranded": 1,
            "rows": [
                { "region": "eu-west-1", "granted": 3, "spent": 1, "held": 1, "returned": 0, "stranded": 1,
                  "charged": 0, "refunded": 0 },
                { "region": "us-east-1", "granted": 3, "spent": 3, "held": 0, "returned": 0, "stranded": 0,
                  "charged": 0, "refunded": 0 },
            ],
            "adds_up": true,
        });
        let text = "\
billing-exports of demo, key alice, epoch 2, 2026-11-30T01:00:00Z to 2026-11-30T02:00:00Z
quota 10 (at most 10): 4 used, 4 free, 0 withheld, 1 stranded

REGION     GRANTED  SPENT  HELD  RETURNED  STRANDED  CHARGED  REFUNDED
eu-west-1  3        1      1     0         1         0        0
us-east-1  3        3      0     0         0         0        0

it adds up: granted = spent + held + returned + stranded, in every row
";
        assert_eq!(page(&proof), text);
        proof["adds_up"] = json!(false);
        assert!(page(&proof).contains("IT DOES NOT ADD UP"));
    }
}
