//! `status`, `leader`, `region`: how the cluster is, and planned moves.

use clap::Args;
use clap::Subcommand;
use reqwest::Method;
use serde_json::Value;
use serde_json::json;

use super::Outcome;
use super::Session;
use super::output;
use super::output::OutputFormat;

/// Arguments of `status`.
#[derive(Debug, Args)]
#[command(
    about = "Show the cluster: regions, roles, lag, clocks, leader; and the region asked: its store, its log"
)]
#[command(after_help = STATUS_EXAMPLES)]
pub struct StatusArgs {}

const STATUS_EXAMPLES: &str = "\
Examples:
  highwater status
  highwater status --server http://127.0.0.1:7121 --output json

LAG is in entries of the log, as the leader knew it a second ago. CLOCK is the region's clock minus that of the
region asked.";

/// Arguments of `leader`.
#[derive(Debug, Args)]
#[command(about = "Who leads: show it, hand the lead over, say who should", after_help = LEADER_EXAMPLES)]
pub struct LeaderArgs {
    #[command(subcommand)]
    command: LeaderCommand,
}

const LEADER_EXAMPLES: &str = "\
Examples:
  highwater leader show
  highwater leader transfer eu-west-1      now; nothing is lost
  highwater leader prefer eu-west-1        whenever it is up and has everything
  highwater leader prefer --none";

#[derive(Debug, Subcommand)]
enum LeaderCommand {
    /// Show which region leads. The exit status is 1 when none does.
    Show,
    /// Hand the lead to a region.
    Transfer {
        /// A region with a vote.
        region: String,
    },
    /// Say which region should lead.
    Prefer(PreferArgs),
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct PreferArgs {
    /// A region with a vote.
    region: Option<String>,
    /// Any region may lead.
    #[arg(long)]
    none: bool,
}

/// Arguments of `region`.
#[derive(Debug, Args)]
#[command(about = "The cluster's regions: take one in, let one go, drain and resume", after_help = REGION_EXAMPLES)]
pub struct RegionArgs {
    #[command(subcommand)]
    command: RegionCommand,
}

const REGION_EXAMPLES: &str = "\
Examples:
  highwater region add sa-east-1 --url http://10.4.0.1:7142
  highwater region remove sa-east-1
  highwater region drain --server http://127.0.0.1:7121
  highwater region drain --server http://127.0.0.1:7121 --ttl 10m
  highwater region resume --server http://127.0.0.1:7121";

#[derive(Debug, Subcommand)]
enum RegionCommand {
    /// Take a running region into the cluster. It must have the cluster's regions among its peers.
    Add {
        /// Which.
        region: String,
        /// Its peer listener; may be left out when the region asked has it among its peers.
        #[arg(long, value_name = "URL")]
        url: Option<String>,
    },
    /// Let a region go. It is granted nothing any more; stop its process afterwards.
    Remove {
        /// Which; not the one that leads.
        region: String,
    },
    /// Let the region that --server names want no more traffic; it goes on answering.
    Drain {
        /// How long, as in `10m`; then it wants traffic again by itself. Without it until `region resume`.
        #[arg(long, value_name = "DURATION")]
        ttl: Option<String>,
    },
    /// Let the region that --server names want traffic again.
    Resume,
}

const CLUSTER: [&str; 3] = ["admin", "v1", "cluster"];

/// Runs `status`.
pub async fn status(session: &Session) -> anyhow::Result<Outcome> {
    let answer = session.client.get(&CLUSTER, &[]).await?.success()?;
    match session.output {
        OutputFormat::Json => output::show(OutputFormat::Json, &answer.body)?,
        OutputFormat::Table => output::print(&overview(&answer.body))?,
    }
    Ok(Outcome::Done)
}

/// Runs `leader`.
pub async fn leader(session: &Session, args: LeaderArgs) -> anyhow::Result<Outcome> {
    match args.command {
        LeaderCommand::Show => {
            let status = session.client.get(&CLUSTER, &[]).await?.success()?.body;
            let leads = status["leader"]
                .as_str()
                .is_some_and(|leader| !is_away(&status, leader));
            match session.output {
                OutputFormat::Json => {
                    let told = json!({
                        "leader": status["leader"],
                        "term": status["term"],
                        "leader_preference": status["leader_preference"],
                    });
                    output::show(OutputFormat::Json, &told)?;
                }
                OutputFormat::Table => output::print(&format!("{}\n", leadership(&status)))?,
            }
            Ok(if leads { Outcome::Done } else { Outcome::No })
        }
        LeaderCommand::Transfer { region } => {
            let path = ["admin", "v1", "cluster", "leader"];
            let body = json!({ "region": region });
            told(session, Method::POST, &path, Some(&body)).await
        }
        LeaderCommand::Prefer(PreferArgs { region, .. }) => {
            let path = ["admin", "v1", "cluster", "leader-preference"];
            let body = json!({ "region": region });
            let answer = session
                .client
                .call(Method::PUT, &path, &[], Some(&body), None)
                .await?
                .success()?;
            match session.output {
                OutputFormat::Json => output::show(OutputFormat::Json, &answer.body)?,
                OutputFormat::Table => output::print(&match region {
                    Some(region) => format!("{region} should lead\n"),
                    None => "any region may lead\n".to_owned(),
                })?,
            }
            Ok(Outcome::Done)
        }
    }
}

/// Runs `region`.
pub async fn region(session: &Session, args: RegionArgs) -> anyhow::Result<Outcome> {
    match args.command {
        RegionCommand::Add { region, url } => {
            let body = url.map_or_else(|| json!({}), |url| json!({ "url": url }));
            let path = ["admin", "v1", "cluster", "regions", &region];
            told(session, Method::PUT, &path, Some(&body)).await
        }
        RegionCommand::Remove { region } => {
            let path = ["admin", "v1", "cluster", "regions", &region];
            told(session, Method::DELETE, &path, None).await
        }
        RegionCommand::Drain { ttl } => {
            let path = ["admin", "v1", "cluster", "drain"];
            let body = ttl.map(|ttl| json!({ "ttl": ttl }));
            told(session, Method::POST, &path, body.as_ref()).await
        }
        RegionCommand::Resume => {
            let path = ["admin", "v1", "cluster", "resume"];
            told(session, Method::POST, &path, None).await
        }
    }
}

async fn told(
    session: &Session,
    method: Method,
    path: &[&str],
    body: Option<&Value>,
) -> anyhow::Result<Outcome> {
    let answer = session
        .client
        .call(method, path, &[], body, None)
        .await?
        .success()?;
    session.show(&answer)
}

/// Whether the region that was asked has no link to that one.
fn is_away(status: &Value, region: &str) -> bool {
    let members = status["members"].as_array().map(Vec::as_slice);
    let mut all = members.unwrap_or_default().iter();
    all.any(|one| one["region"] == *region && one["connected"] == false)
}

/// Who leads, in a sentence.
fn leadership(status: &Value) -> String {
    let mut text = match status["leader"].as_str() {
        Some(leader) if is_away(status, leader) => {
            format!(
                "{leader} led last and is out of reach, term {}",
                status["term"]
            )
        }
        Some(leader) => format!("{leader} leads, term {}", status["term"]),
        None => "no region leads".to_owned(),
    };
    if let Some(preferred) = status["leader_preference"].as_str() {
        text.push_str(&format!("; {preferred} should"));
    }
    text
}

/// A region's status for people: what matters of it in lines, then a table of all regions.
fn overview(status: &Value) -> String {
    let text = |name: &str| output::cell(name, &status[name]);
    let (log, strict) = (&status["log"], &status["strict"]);
    let readiness = match (&status["ready"], &status["draining"]) {
        (_, Value::Bool(true)) => "draining",
        (Value::Bool(true), _) => "ready",
        _ => "not ready",
    };
    let mut store = text("store");
    if !status["store_failed_since_ms"].is_null() {
        store.push_str(&format!(", since {}", text("store_failed_since_ms")));
    }
    let mut entries = format!(
        "{} in force, {} committed, {} here",
        log["applied_index"], log["committed_index"], log["last_index"]
    );
    if let Some(fault) = log["fault"].as_str() {
        entries.push_str(&format!("; takes no part: {fault}"));
    }
    let enrolled = if status["enrolled"] == true {
        ""
    } else {
        "; not enrolled, granted nothing"
    };
    let lines = [
        ("region", format!("{}, {readiness}", text("region"))),
        ("version", text("version")),
        ("cluster", text("cluster_id")),
        ("leader", leadership(status)),
        (
            "catalogue",
            format!("version {}", status["catalogue_version"]),
        ),
        ("log", entries),
        ("store", store),
        (
            "started",
            format!("{}, start {}", text("started_ms"), status["start"]),
        ),
        (
            "counters",
            format!(
                "{}, refused {}; holds {}, remembered answers {}",
                status["counters"],
                status["refused_keys"],
                status["holds"],
                status["idempotency_keys"]
            ),
        ),
        (
            "strict",
            format!(
                "counters open here {}, in all regions {}{enrolled}",
                strict["reservations"], strict["counters"]
            ),
        ),
        ("faults", text("faults")),
    ];
    let mut out = String::new();
    for (name, value) in lines {
        out.push_str(&format!("{name:<9}  {value}\n"));
    }
    out.push('\n');
    out.push_str(&regions(status));
    out
}

/// The table of all regions: the members, then the peers that are none.
fn regions(status: &Value) -> String {
    let header = [
        "REGION", "ROLE", "LINK", "LAG", "COUNTS", "CLOCK", "RTT", "BREAKER",
    ]
    .map(str::to_owned);
    let list = |name: &str| {
        status[name]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default()
    };
    let peer = |name: &Value| list("peers").iter().find(|peer| peer["region"] == *name);
    let is_member = |name: &Value| list("members").iter().any(|one| one["region"] == *name);
    let line = |one: &Value| {
        let name = &one["region"];
        let link = match peer(name).and_then(|peer| peer["refused"].as_str()) {
            Some(refused) if one["connected"] != true => format!("refused: {refused}"),
            _ if *name == status["region"] => "here".to_owned(),
            _ if one["connected"] == true => "up".to_owned(),
            _ => "down".to_owned(),
        };
        vec![
            output::cell("", name),
            one["role"].as_str().unwrap_or("no member").to_owned(),
            link,
            output::cell("", &one["lag"]),
            counts(peer(name)),
            milliseconds(&one["clock_offset_ms"]),
            milliseconds(&one["rtt_ms"]),
            output::cell("", &one["breaker"]),
        ]
    };
    let strangers = list("peers")
        .iter()
        .filter(|peer| !is_member(&peer["region"]));
    let lines: Vec<Vec<String>> = list("members").iter().chain(strangers).map(line).collect();
    output::aligned(&header, &lines)
}

/// How far a peer is behind in counts: nothing is waiting longer than a round takes, or since when and how many.
fn counts(peer: Option<&Value>) -> String {
    let Some(peer) = peer.filter(|peer| peer["usage_lag_ms"].is_u64()) else {
        return "-".to_owned();
    };
    let behind = peer["usage_lag_ms"].as_u64().unwrap_or(0);
    match (
        peer["usage_caught_up"] == true,
        peer["usage_backlog"].as_u64(),
    ) {
        (false, _) => "catching up".to_owned(),
        (true, Some(waiting)) if waiting > 0 => format!("{behind}ms, {waiting} wait"),
        (true, _) => format!("{behind}ms"),
    }
}

fn milliseconds(value: &Value) -> String {
    value
        .as_f64()
        .map_or_else(|| "-".to_owned(), |ms| format!("{ms:.1}ms"))
        .replace("-0.0ms", "0.0ms")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> Value {
        json!({
            "region": "us-east-1", "version": "0.1.0", "ready": true, "draining": false,
            "cluster_id": "00000000000000ab", "role": "voter", "term": 3, "leader": "eu-west-1",
            "leader_preference": "us-east-1", "enrolled": true,
            "log": { "last_index": 12, "committed_index": 11, "applied_index": 10, "snapshot_index": 0 },
            "strict": { "reservations": 1, "counters": 2 },
            "members": [
                { "region": "eu-west-1", "role": "leader", "connected": true, "lag": 0,
                  "clock_offset_ms": -1.26, "rtt_ms": 81.0, "breaker": "closed" },
                { "region": "us-east-1", "role": "voter", "connected": true, "lag": 2 },
            ],
            "catalogue_version": 4, "time_ms": 0, "started_ms": 1_796_000_400_000_i64, "start": 2, "counters": 5,
            "refused_keys": 0, "holds": 1, "idempotency_keys": 0, "clock_steps_back": 0, "store": "ok", "faults": 0,
            "peers": [
                { "region": "ap-south-1", "connected": false, "breaker": "open", "refused": "wrong_secret" },
                { "region": "eu-west-1", "connected": true, "breaker": "closed",
                  "usage_lag_ms": 120, "usage_backlog": 0, "usage_caught_up": true },
            ],
        })
    }

    #[test]
    fn the_status_is_a_page_with_a_table_of_regions() {
        let text = "\
region     us-east-1, ready
version    0.1.0
cluster    00000000000000ab
leader     eu-west-1 leads, term 3; us-east-1 should
catalogue  version 4
log        10 in force, 11 committed, 12 here
store      ok
started    2026-11-30T01:00:00Z, start 2
counters   5, refused 0; holds 1, remembered answers 0
strict     counters open here 1, in all regions 2
faults     0

REGION      ROLE       LINK                   LAG  COUNTS  CLOCK   RTT     BREAKER
eu-west-1   leader     up                     0    120ms   -1.3ms  81.0ms  closed
us-east-1   voter      here                   2    -       -       -       -
ap-south-1  no member  refused: wrong_secret  -    -       -       -       open
";
        assert_eq!(overview(&status()), text);
    }

    #[test]
    fn what_is_wrong_is_said() {
        let mut status = status();
        status["ready"] = json!(false);
        status["enrolled"] = json!(false);
        status["leader"] = Value::Null;
        status["leader_preference"] = Value::Null;
        status["log"]["fault"] = json!("the disk is full");
        status["store"] = json!("the disk is full");
        status["store_failed_since_ms"] = json!(1_796_000_400_000_i64);
        let text = overview(&status);
        let mut away = json!({ "leader": "eu-west-1", "term": 3 });
        away["members"] = json!([{ "region": "eu-west-1", "connected": false }]);
        assert_eq!(
            leadership(&away),
            "eu-west-1 led last and is out of reach, term 3"
        );
        for line in [
            "region     us-east-1, not ready",
            "leader     no region leads",
            "log        10 in force, 11 committed, 12 here; takes no part: the disk is full",
            "store      the disk is full, since 2026-11-30T01:00:00Z",
            "strict     counters open here 1, in all regions 2; not enrolled, granted nothing",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }
}
