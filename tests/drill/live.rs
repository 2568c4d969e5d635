//! Drills against regions that run anyway.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use reqwest::Method;
use serde_json::Value;

use crate::clock::Clock;
use crate::cluster::Cluster;
use crate::command::drill;
use crate::command::highwater;
use crate::command::said;
use crate::command::told;
use crate::command::turn;
use crate::command::write;

const SCENARIO: &str = r#"title = "A cut"
regions = ["us-east-1", "eu-west-1", "ap-south-1"]
links = { delay = "40ms" }
duration = "9s"
steps = [ { at = "2s", do = "kill", on = "follower", for = "3s" }, { at = "2s", do = "drain", on = "leader", for = "3s" } ]
expect = [
  { that = "never-exceeded", limit = "exports" },
  { that = "detected", within = "3s" },
  { that = "converged", within = "15s" },
  { that = "healed", within = "20s" },
]
[limits]
exports = { algorithm = "fixed_window", quota = 40, window = "2s", mode = "strict" }
[[load]]
limit = "exports"
rate = 10
"#;

/// Three regions and a file that names them.
async fn cluster(directory: &Path) -> (Arc<Cluster>, String) {
    let cluster = Arc::new(Cluster::new(directory, 3, "20ms", Clock::start()));
    for region in &cluster.regions {
        region.start().await;
    }
    let deadline = cluster.clock.now() + 60_000;
    while let Err(why) = plan(&cluster).await {
        assert!(cluster.clock.now() < deadline, "{why}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    cluster.wait_whole(Duration::from_secs(60)).await;
    let mut text = "token_file = \"token\"\n".to_owned();
    for region in &cluster.regions {
        text.push_str(&format!(
            "[[regions]]\nregion = \"{}\"\nadmin = \"{}\"\ncheck = \"{}\"\n",
            region.name,
            region.address(1),
            region.address(0)
        ));
    }
    write(directory, "token", "dev\n");
    let file = write(directory, "prod.toml", &text);
    (cluster, file)
}

/// The plan that `wait_whole` writes tenants with.
async fn plan(cluster: &Cluster) -> Result<(), String> {
    let catalogue = serde_json::json!({ "plans": { "all": {} } });
    let written = cluster.regions[0]
        .admin(Method::PATCH, "/admin/v1/catalogue", &catalogue)
        .await?;
    if written.is_success() {
        Ok(())
    } else {
        Err(format!("{written:?}"))
    }
}

async fn faults(cluster: &Cluster) -> usize {
    let mut count = 0;
    for region in &cluster.regions {
        let faults = region
            .admin(Method::GET, "/admin/v1/faults", &Value::Null)
            .await
            .expect("an answer");
        count += faults.body["faults"].as_array().map_or(0, Vec::len);
    }
    count
}

async fn tenants(cluster: &Cluster) -> String {
    let tenants = cluster.regions[0]
        .admin(Method::GET, "/admin/v1/tenants", &Value::Null)
        .await;
    tenants.expect("an answer").body.to_string()
}

/// `drill` on a thread of its own, so that the regions can be asked meanwhile.
async fn ran(arguments: &[&str]) -> std::process::Output {
    let arguments: Vec<String> = arguments.iter().map(|one| (*one).to_owned()).collect();
    let run = move || drill(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    tokio::task::spawn_blocking(run).await.expect("it ends")
}

async fn walk(directory: &Path) {
    let (cluster, file) = cluster(directory).await;
    let scenario = write(directory, "cut.toml", SCENARIO);

    // What would be done, and what becomes of what cannot be done to a running cluster.
    let output = ran(&["run", &scenario, "--cluster", &file, "--dry-run"]).await;
    assert_eq!(output.status.code(), Some(0), "{}", told(&output));
    let plan = said(&output);
    assert!(
        plan.contains("at 2 s: cut follower off from all others, for 3 s"),
        "{plan}"
    );
    assert!(plan.contains("line 5: kill becomes a cut"), "{plan}");
    assert!(
        plan.contains("The cluster is well: the drill would begin."),
        "{plan}"
    );
    assert_eq!(faults(&cluster).await, 0);

    // Nobody can be asked.
    let output = ran(&["run", &scenario, "--cluster", &file]).await;
    assert_eq!(output.status.code(), Some(2));
    assert!(told(&output).contains("give --yes"), "{}", told(&output));

    let output = ran(&["run", "wiped-region", "--cluster", &file, "--yes"]).await;
    assert_eq!(output.status.code(), Some(2));
    assert!(
        told(&output).contains("wipe needs the region's process"),
        "{}",
        told(&output)
    );

    let output = ran(&["run", &scenario, "--cluster", &file, "--yes"]).await;
    assert_eq!(
        output.status.code(),
        Some(0),
        "{}{}",
        said(&output),
        told(&output)
    );
    assert_eq!(faults(&cluster).await, 0);
    let left = tenants(&cluster).await;
    assert!(!left.contains("drill-"), "{left}");

    killed_half_way(&cluster, &scenario, &file).await;
    for signal in [rustix::process::Signal::INT, rustix::process::Signal::HUP] {
        broken_off(&cluster, &scenario, &file, signal).await;
    }

    // A cluster that is not healthy is left alone.
    cluster.regions[2].kill().await;
    let output = ran(&["run", &scenario, "--cluster", &file, "--yes"]).await;
    assert_eq!(output.status.code(), Some(2));
    assert!(
        told(&output).contains("is not healthy"),
        "{}",
        told(&output)
    );
    assert!(
        told(&output).contains("ap-south-1 does not say how it is"),
        "{}",
        told(&output)
    );
    let output = ran(&["run", &scenario, "--cluster", &file, "--dry-run"]).await;
    assert!(
        said(&output).contains("The drill would not begin: the cluster is not healthy"),
        "{}",
        said(&output)
    );
    without_majority(&cluster).await;
}

/// One region is left of three: it does not say that anybody leads.
async fn without_majority(cluster: &Cluster) {
    cluster.regions[1].kill().await;
    let server = cluster.regions[0].address(1).to_string();
    let leader = |what: [&str; 2]| {
        let mut command = highwater();
        command.args(["leader", what[0]]);
        command.args(Some(what[1]).filter(|region| !region.is_empty()));
        command
            .args(["--server", &server])
            .env("HIGHWATER_TOKEN", "dev");
        command.output().expect("it runs")
    };
    let deadline = cluster.clock.now() + 15_000;
    loop {
        let shown = leader(["show", ""]);
        if shown.status.code() == Some(1) {
            break;
        }
        assert!(
            cluster.clock.now() < deadline,
            "{}{}",
            said(&shown),
            told(&shown)
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let moved = leader(["transfer", "us-east-1"]);
    assert!(!moved.status.success(), "{}", said(&moved));
}

/// Starts a drill and waits until its fault runs.
async fn started(cluster: &Cluster, scenario: &str, file: &str) -> std::process::Child {
    let mut child = highwater()
        .args(["drill", "run", scenario, "--cluster", file, "--yes"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let deadline = cluster.clock.now() + 20_000;
    while faults(cluster).await == 0 || !draining(cluster).await {
        let ended = child.try_wait().expect("the child is ours");
        assert!(
            ended.is_none() && cluster.clock.now() < deadline,
            "no fault"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    child
}

async fn draining(cluster: &Cluster) -> bool {
    let mut any = false;
    for region in &cluster.regions {
        let status = region
            .admin(Method::GET, "/admin/v1/cluster", &Value::Null)
            .await;
        any |= status.expect("an answer").body["draining"] == true;
    }
    any
}

/// The drill is killed: what it did ends by itself, and what it made keeps others off until it is removed.
async fn killed_half_way(cluster: &Cluster, scenario: &str, file: &str) {
    let mut child = started(cluster, scenario, file).await;
    child.kill().expect("the child is ours");
    child.wait().expect("the child is ours");
    let deadline = cluster.clock.now() + 10_000;
    while faults(cluster).await > 0 || draining(cluster).await {
        assert!(cluster.clock.now() < deadline, "the fault does not end");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    cluster.wait_whole(Duration::from_secs(30)).await;
    let output = ran(&["run", scenario, "--cluster", file, "--yes"]).await;
    assert_eq!(output.status.code(), Some(2));
    let why = told(&output);
    let tenant = why.split("highwater tenants delete ").nth(1);
    let tenant = tenant.and_then(|rest| rest.split_whitespace().next());
    let path = format!("/admin/v1/tenants/{}", tenant.expect("a command"));
    let deleted = cluster.regions[0].admin(Method::DELETE, &path, &Value::Null);
    assert!(deleted.await.expect("an answer").is_success(), "{why}");
}

/// Ctrl-C, and a lost terminal, lift the faults at once.
async fn broken_off(
    cluster: &Cluster,
    scenario: &str,
    file: &str,
    signal: rustix::process::Signal,
) {
    let child = started(cluster, scenario, file).await;
    let id = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(id, signal).expect("the child is ours");
    let output = tokio::task::spawn_blocking(move || child.wait_with_output())
        .await
        .expect("it ends")
        .expect("its output");
    assert_eq!(output.status.code(), Some(2));
    assert!(
        told(&output).contains("2 faults and drains were lifted"),
        "{}",
        told(&output)
    );
    assert_eq!(faults(cluster).await, 0);
    assert!(!draining(cluster).await);
    let left = tenants(cluster).await;
    assert!(!left.contains("drill-"), "{left}");
    cluster.wait_whole(Duration::from_secs(30)).await;
}

#[test]
fn a_running_cluster_is_drilled_and_is_as_it_was_afterwards() {
    let _turn = turn();
    let directory = tempfile::tempdir().expect("a directory");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(walk(directory.path()));
}
