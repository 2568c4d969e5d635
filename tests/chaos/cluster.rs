//! Regions as real processes on loopback: their files, their deaths, what they are asked.

use std::fs;
use std::path::Path;
use std::path::PathBuf;
use std::process::Child;
use std::process::Command;
use std::process::Stdio;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering;
use std::time::Duration;

use reqwest::Client;
use reqwest::Method;
use rustix::process::Pid;
use rustix::process::Signal;
use serde_json::Value;
use serde_json::json;
use tokio::sync::Mutex;

use self::ports::free_ports;
use crate::clock::Clock;

#[allow(dead_code, reason = "each test binary uses its part of the harness")]
#[path = "../api/ports.rs"]
mod ports;

/// The admin token of every region.
const TOKEN: &str = "dev";
/// The regions' names; the first founds the cluster once it sorts first.
const NAMES: [&str; 5] = [
    "us-east-1",
    "eu-west-1",
    "ap-south-1",
    "sa-east-1",
    "ap-northeast-1",
];
/// How long a start may take: a debug build on a busy machine.
const LIVE_WITHIN: Duration = Duration::from_secs(30);
/// A call that has no answer after this has none.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(4);

/// An answer: its status, and its body as JSON (null when it is none).
#[derive(Clone, Debug)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The body.
    pub body: Value,
}

impl Answer {
    /// Whether the status is 2xx.
    pub const fn is_success(&self) -> bool {
        self.status >= 200 && self.status < 300
    }
}

/// One region.
pub struct Region {
    /// Its name.
    pub name: &'static str,
    directory: PathBuf,
    ports: [u16; 3],
    child: Mutex<Option<Child>>,
    client: Client,
    /// Starts so far.
    pub starts: AtomicU32,
}

/// All regions.
pub struct Cluster {
    /// In order of founding.
    pub regions: Vec<Region>,
    /// The harness's clock.
    pub clock: Clock,
}

fn new_client() -> Client {
    Client::builder()
        .no_proxy()
        .timeout(ANSWER_WITHIN)
        .connect_timeout(Duration::from_secs(2))
        .tcp_nodelay(true)
        .build()
        .expect("a client")
}

impl Cluster {
    /// `count` regions in `root`, whose messages take `latency` one way, not started.
    pub fn new(root: &Path, count: usize, latency: &str, clock: Clock) -> Self {
        Self::with_settings(root, count, latency, clock, "")
    }

    /// The same with more lines of every region's file.
    pub fn with_settings(
        root: &Path,
        count: usize,
        latency: &str,
        clock: Clock,
        settings: &str,
    ) -> Self {
        assert!((1..=NAMES.len()).contains(&count), "1 to 5 regions");
        let ports = free_ports(3 * count);
        let place = |index: usize| [ports[3 * index], ports[3 * index + 1], ports[3 * index + 2]];
        let regions: Vec<Region> = NAMES[..count]
            .iter()
            .enumerate()
            .map(|(index, name)| {
                let directory = root.join(name);
                fs::create_dir_all(&directory).expect("a directory");
                let [check, admin, peer] = place(index);
                let mut text = format!(
                    "cluster = \"chaos\"\nregion = \"{name}\"\ndata_dir = {:?}\nlisten.check = \"127.0.0.1:{check}\"\n\
                     listen.admin = \"127.0.0.1:{admin}\"\nlisten.peer = \"127.0.0.1:{peer}\"\nauth.admin_token = \"{TOKEN}\"\n\
                     auth.peer_secret = \"between regions\"\nfaults.enabled = true\n{settings}",
                    directory.join("data").display().to_string(),
                );
                for (other, other_name) in NAMES[..count].iter().enumerate() {
                    if other != index {
                        text.push_str(&format!(
                            "\n[[peers]]\nregion = \"{other_name}\"\nurl = \"http://127.0.0.1:{}\"\nlatency = \"{latency}\"\n",
                            place(other)[2]
                        ));
                    }
                }
                fs::write(directory.join("region.toml"), text).expect("the configuration");
                Region {
                    name,
                    directory,
                    ports: place(index),
                    child: Mutex::new(None),
                    client: new_client(),
                    starts: AtomicU32::new(0),
                }
            })
            .collect();
        Self { regions, clock }
    }

    /// The region that leads, as far as the others know; a leader that is cut off may think otherwise.
    pub async fn leader(&self) -> Option<usize> {
        let mut newest = None;
        for (index, region) in self.regions.iter().enumerate() {
            if region.is_running().await
                && let Some(term) = region.leads_in()
            {
                newest = newest.max(Some((term, index)));
            }
        }
        newest.map(|(_, index)| index)
    }

    /// Waits until all regions are connected, a region leads and a write is confirmed by everybody.
    pub async fn wait_whole(&self, within: Duration) {
        let deadline = self.clock.now() + i64::try_from(within.as_millis()).expect("short");
        let mut last = String::new();
        while self.clock.now() < deadline {
            match self.is_whole().await {
                Ok(()) => return,
                Err(why) => last = why,
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        panic!("the regions did not come together within {within:?}: {last}");
    }

    async fn is_whole(&self) -> Result<(), String> {
        for region in &self.regions {
            let status = region
                .admin(Method::GET, "/admin/v1/cluster", &Value::Null)
                .await?;
            let peers = status.body["peers"].as_array().cloned().unwrap_or_default();
            for peer in peers {
                if peer["connected"] != true || peer["connected_to_us"] != true {
                    return Err(format!(
                        "{} has no link with {}",
                        region.name, peer["region"]
                    ));
                }
            }
        }
        for region in &self.regions {
            let body = json!({ "plan": "all" });
            let written = region
                .admin(
                    Method::PUT,
                    &format!("/admin/v1/tenants/whole-{}", region.name),
                    &body,
                )
                .await?;
            if !written.is_success() {
                return Err(format!("{}: {written:?}", region.name));
            }
            let pending = written.body["pending_regions"]
                .as_array()
                .map_or(0, Vec::len);
            if pending > 0 {
                return Err(format!("{}", written.body));
            }
        }
        Ok(())
    }
}

impl Region {
    /// Starts the process and waits until it answers.
    pub async fn start(&self) {
        let mut child = self.child.lock().await;
        assert!(child.is_none(), "{} runs already", self.name);
        let log = || {
            let log = fs::OpenOptions::new()
                .create(true)
                .append(true)
                .open(self.directory.join("log"));
            Stdio::from(log.expect("the log is opened"))
        };
        let mut command = Command::new(env!("CARGO_BIN_EXE_highwater"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("HIGHWATER_") {
                command.env_remove(name);
            }
        }
        let mut started = command
            .arg("serve")
            .arg("--config")
            .arg(self.directory.join("region.toml"))
            // A region outlives no harness, however that ends.
            .arg("--stop-with-stdin")
            .env(
                "RUST_LOG",
                std::env::var("RUST_LOG").unwrap_or_else(|_| "info".to_owned()),
            )
            .stdin(Stdio::piped())
            .stdout(log())
            .stderr(log())
            .spawn()
            .expect("the region starts");
        self.starts.fetch_add(1, Ordering::Relaxed);
        let deadline = tokio::time::Instant::now() + LIVE_WITHIN;
        loop {
            if self
                .get("/livez")
                .await
                .is_ok_and(|answer| answer.is_success())
            {
                break;
            }
            let ended = started.try_wait().expect("the child is ours");
            let is_late = tokio::time::Instant::now() > deadline;
            if ended.is_some() || is_late {
                started.kill().ok();
                started.wait().ok();
                panic!(
                    "{} did not start ({ended:?}); its log is in {:?}",
                    self.name, self.directory
                );
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        *child = Some(started);
    }

    /// The address of a listener: check, admin, peer.
    #[allow(dead_code, reason = "for tests that let a command find the regions")]
    pub fn address(&self, listener: usize) -> String {
        format!("http://127.0.0.1:{}", self.ports[listener])
    }

    /// Whether the process runs; one that is stopped by a signal does.
    pub async fn is_running(&self) -> bool {
        self.child.lock().await.is_some()
    }

    /// The process's id, while it runs.
    pub async fn pid(&self) -> Option<u32> {
        self.child.lock().await.as_ref().map(Child::id)
    }

    async fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid().await {
            let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
            rustix::process::kill_process(pid.expect("a process id"), signal)
                .expect("the child is ours");
        }
    }

    /// SIGSTOP.
    pub async fn pause(&self) {
        self.signal(Signal::STOP).await;
    }

    /// SIGCONT.
    pub async fn resume(&self) {
        self.signal(Signal::CONT).await;
    }

    /// SIGKILL, and waits for the end.
    pub async fn kill(&self) {
        if let Some(mut child) = self.child.lock().await.take() {
            child.kill().expect("the child is ours");
            child.wait().expect("the child is ours");
        }
    }

    /// SIGTERM, and waits for the end, at most 30 s;
    /// tells whether it was an orderly one: with a failing store it is not.
    pub async fn terminate(&self) -> bool {
        self.signal(Signal::TERM).await;
        let Some(mut child) = self.child.lock().await.take() else {
            return true;
        };
        for _ in 0..1_500 {
            if let Some(status) = child.try_wait().expect("the child is ours") {
                return status.success();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        child.kill().expect("the child is ours");
        child.wait().expect("the child is ours");
        panic!("{} did not end within 30 s of SIGTERM", self.name);
    }

    /// Removes everything that the region has on disk. It must not run.
    pub async fn wipe(&self) {
        assert!(!self.is_running().await, "{} runs", self.name);
        fs::remove_dir_all(self.directory.join("data")).expect("the data goes");
    }

    /// Where it keeps its data.
    #[allow(dead_code, reason = "the fault runs do not need it")]
    pub fn data_dir(&self) -> PathBuf {
        self.directory.join("data")
    }

    /// What the region has logged.
    pub fn log(&self) -> String {
        let log = fs::read(self.directory.join("log")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    /// The term in which the newest process leads, by its log.
    fn leads_in(&self) -> Option<u64> {
        let log = self.log();
        let last = log
            .lines()
            .rev()
            .find(|line| line.contains("this region leads") || line.contains(" serving"))?;
        if !last.contains("this region leads") || last.contains("no more") {
            return None;
        }
        let term = last.split("term=").nth(1)?;
        term.chars()
            .take_while(char::is_ascii_digit)
            .collect::<String>()
            .parse()
            .ok()
    }

    /// `GET` on the check listener; an error says why no answer came.
    pub async fn get(&self, path: &str) -> Result<Answer, String> {
        let url = format!("http://127.0.0.1:{}{path}", self.ports[0]);
        send(self.client.get(url)).await
    }

    /// `POST` on the check listener.
    pub async fn post(
        &self,
        path: &str,
        key: Option<&str>,
        body: &Value,
    ) -> Result<Answer, String> {
        let url = format!("http://127.0.0.1:{}{path}", self.ports[0]);
        let mut request = self.client.post(url).json(body);
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        send(request).await
    }

    /// Releases a hold.
    pub async fn release(&self, hold: &str) -> Result<Answer, String> {
        let url = format!("http://127.0.0.1:{}/v1/holds/{hold}", self.ports[0]);
        send(self.client.delete(url)).await
    }

    /// A call of the admin listener; a null body is none.
    pub async fn admin(&self, method: Method, path: &str, body: &Value) -> Result<Answer, String> {
        let url = format!("http://127.0.0.1:{}{path}", self.ports[1]);
        let mut request = self.client.request(method, url).bearer_auth(TOKEN);
        // Planned moves may take longer than a check.
        request = request.timeout(Duration::from_secs(10));
        if !body.is_null() {
            request = request.json(body);
        }
        send(request).await
    }
}

async fn send(request: reqwest::RequestBuilder) -> Result<Answer, String> {
    let response = request.send().await.map_err(|error| format!("{error:?}"))?;
    let status = response.status().as_u16();
    let body = response
        .bytes()
        .await
        .map_err(|error| format!("{error:?}"))?;
    Ok(Answer {
        status,
        body: serde_json::from_slice(&body).unwrap_or(Value::Null),
    })
}

impl Drop for Region {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.get_mut().take() {
            // Both fail only when the child has ended by itself.
            drop(child.kill());
            drop(child.wait());
        }
    }
}
