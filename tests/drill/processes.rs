//! Drills with regions of their own.

use serde_json::Value;

use crate::command::drill;
use crate::command::said;
use crate::command::told;
use crate::command::turn;
use crate::command::write;

/// Short: the leader is killed, and another leads.
const SHORT: &str = r#"title = "Short"
regions = ["us-east-1", "eu-west-1", "ap-south-1"]
links = { delay = "20ms" }
duration = "11s"
steps = [ { at = "2s", do = "kill", on = "leader", for = "4s" } ]
expect = [
  { that = "never-exceeded", limit = "exports" },
  { that = "charged-once", limit = "invoices" },
  { that = "new-leader", within = "8s" },
  { that = "converged", within = "15s" },
  { that = "healed", within = "25s" },
]
[limits]
exports = { algorithm = "fixed_window", quota = 20, window = "2s", mode = "strict", key = "user" }
invoices = { algorithm = "fixed_window", quota = 1000, window = "1d", mode = "strict" }
[[load]]
limit = "exports"
rate = 10
keys = 2
[[load]]
limit = "invoices"
rate = 1
idempotent = true
"#;

fn read(path: &std::path::Path) -> String {
    std::fs::read_to_string(path).expect("a report")
}

/// The page tells the figures of the JSON.
#[test]
fn a_killed_leader_end_to_end_and_the_page_tells_the_figures_of_the_json() {
    let _turn = turn();
    let directory = tempfile::tempdir().expect("a directory");
    let scenario = write(directory.path(), "short.toml", SHORT);
    let (json, html) = (
        directory.path().join("r.json"),
        directory.path().join("r.html"),
    );
    let output = drill(&[
        "run",
        &scenario,
        "--seed",
        "5",
        "--report",
        &json.display().to_string(),
        "--report",
        &html.display().to_string(),
    ]);
    let said = said(&output);
    assert_eq!(output.status.code(), Some(0), "{said}{}", told(&output));
    assert!(
        said.contains("short: passed, 5 of 5 expectations met"),
        "{said}"
    );
    assert!(
        told(&output).contains("kill leader, for 4 s ("),
        "{}",
        told(&output)
    );

    let report: Value = serde_json::from_str(&read(&json)).expect("JSON");
    assert_eq!(report["is_passed"], true);
    assert_eq!(report["seed"], 5);
    assert_eq!(report["findings"].as_array().map(Vec::len), Some(5));
    let page = read(&html);
    let has = |text: &str| assert!(page.contains(text), "{text}\n{page}");
    for finding in report["findings"].as_array().expect("findings") {
        for field in ["expectation", "wanted", "found", "note"] {
            has(finding[field].as_str().expect("text"));
        }
    }
    for row in report["figures"]["availability"].as_array().expect("rows") {
        let cells: Vec<String> = [
            "calls",
            "allowed",
            "refused",
            "unavailable",
            "unanswered",
            "degraded",
        ]
        .iter()
        .map(|field| format!("<td class=\"n\">{}</td>", row[field]))
        .collect();
        has(&format!(
            "<td>{}</td><td>{}</td>{}",
            row["region"].as_str().expect("a name"),
            row["mode"].as_str().expect("a mode"),
            cells.concat()
        ));
    }
    for row in report["figures"]["admitted"].as_array().expect("rows") {
        has(&format!(
            "<td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>",
            row["windows"], row["full"], row["allowed"]
        ));
    }
    // Every call is in the figures, and what the curves are drawn from is there for every region.
    let calls: u64 = report["figures"]["availability"]
        .as_array()
        .expect("rows")
        .iter()
        .filter_map(|row| row["calls"].as_u64())
        .sum();
    assert_eq!(report["figures"]["calls"], calls);
    assert!(calls > 200, "{calls}");
    assert_eq!(
        report["timeline"]["curves"].as_array().map(Vec::len),
        Some(3)
    );
    assert_eq!(page.matches("<svg viewBox=\"0 0 720").count(), 6);
    assert_eq!(page.matches("class=\"fault\"").count(), 6);
    assert!(!page.contains("http"), "nothing comes from a network");
}

/// What cannot be met is told, and the exit status says no.
#[test]
fn a_drill_says_no() {
    let _turn = turn();
    let directory = tempfile::tempdir().expect("a directory");
    let text = r#"title = "No"
regions = ["us-east-1"]
duration = "3s"
expect = [
  { that = "allowed", at_least = 100 },
  { that = "never-exceeded", limit = "few" },
]
[limits]
few = { algorithm = "fixed_window", quota = 5, window = "1m", mode = "strict" }
[[load]]
limit = "few"
rate = 10
"#;
    let scenario = write(directory.path(), "no.toml", text);
    let kept = directory.path().join("kept");
    let output = drill(&["run", &scenario, "--data-dir", &kept.display().to_string()]);
    let said = said(&output);
    assert_eq!(output.status.code(), Some(1), "{said}{}", told(&output));
    let line = |number: &str| {
        said.lines()
            .find(|line| line.split_whitespace().nth(1) == Some(number))
            .unwrap_or_default()
    };
    assert!(line("5").starts_with("NO "), "{said}");
    assert!(line("6").starts_with("yes"), "{said}");
    assert!(kept.join("record.json").exists() && kept.join("us-east-1/log").exists());
}

/// Those that every run of the tests goes through: a burst, a planned hand-over, a leader that dies, and a cut.
const FEW: &str = "burst-everywhere,leader-transfer,leader-loss,partition-minority";

/// Four of the shipped drills; with `HIGHWATER_DRILL_ALL` those that it names, or all, which takes ten minutes.
#[test]
fn shipped_drills_pass() {
    let wanted = std::env::var("HIGHWATER_DRILL_ALL");
    let wanted = wanted.unwrap_or_else(|_| FEW.to_owned());
    let _turn = turn();
    let list = drill(&["list", "--output", "json"]);
    let rows: Value = serde_json::from_slice(&list.stdout).expect("JSON");
    let directory = std::env::temp_dir().join(format!("highwater-drills-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    println!("reports are in {}", directory.display());
    let (mut failed, mut ran) = (Vec::new(), 0);
    for row in rows.as_array().expect("rows") {
        let name = row["drill"].as_str().expect("a name");
        let is_random = name == "chaos" && wanted == "1";
        if is_random {
            continue;
        }
        if wanted != "1" && !wanted.split(',').any(|one| one == name) {
            continue;
        }
        ran += 1;
        let report = directory.join(format!("{name}.html")).display().to_string();
        let output = drill(&["run", name, "--report", &report]);
        println!("{}", said(&output));
        if !output.status.success() {
            failed.push(format!("{name}: {}", told(&output)));
        }
    }
    assert!(ran > 0, "{wanted} names no drill");
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    std::fs::remove_dir_all(&directory).expect("the reports go");
}
