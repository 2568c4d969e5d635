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
steps = [ { at = "2s", do = "kill", on = "follower", for = "3s" } ]
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
    broken_off(&cluster, &scenario, &file).await;

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
    while faults(cluster).await == 0 {
        let ended = child.try_wait().expect("the child is ours");
        assert!(
            ended.is_none() && cluster.clock.now() < deadline,
            "no fault"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    child
}

/// The operator's terminal is lost: the fault ends by itself.
async fn killed_half_way(cluster: &Cluster, scenario: &str, file: &str) {
    let mut child = started(cluster, scenario, file).await;
    child.kill().expect("the child is ours");
    child.wait().expect("the child is ours");
    let deadline = cluster.clock.now() + 10_000;
    while faults(cluster).await > 0 {
        assert!(cluster.clock.now() < deadline, "the fault does not end");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    cluster.wait_whole(Duration::from_secs(30)).await;
}

/// Ctrl-C lifts the fault at once.
async fn broken_off(cluster: &Cluster, scenario: &str, file: &str) {
    let child = started(cluster, scenario, file).await;
    let id = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(id, rustix::process::Signal::INT).expect("the child is ours");
    let output = tokio::task::spawn_blocking(move || child.wait_with_output())
        .await
        .expect("it ends")
        .expect("its output");
    assert_eq!(output.status.code(), Some(2));
    assert!(
        told(&output).contains("1 faults and drains were lifted"),
        "{}",
        told(&output)
    );
    assert_eq!(faults(cluster).await, 0);
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
