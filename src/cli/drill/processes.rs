//! Regions of a drill's own: one process each, in one directory, on ports that nobody uses.

use std::fs::OpenOptions;
use std::io::Write;
use std::net::Ipv4Addr;
use std::net::TcpListener;
use std::ops::Range;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use anyhow::bail;
use serde_json::Value;
use serde_json::json;
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::cli::client::DEV_TOKEN;
use crate::cli::dev::region::Running;
use crate::cli::dev::region::Start;
use crate::cli::operate::private_file;
use crate::drill::scenario::Scenario;
use crate::region::config::secret::Secret;
use crate::store;

use super::fleet::Endpoint;
use super::fleet::Fleet;

/// The ports that a drill picks from.
const PORTS: Range<u16> = 10_000..32_000;
/// As many as the largest drill has listeners.
const PORTS_OF_A_DRILL: u32 = 24;
/// How long the regions may take to be one cluster.
const FORMED_WITHIN: Duration = Duration::from_secs(60);
/// How long a region that is asked to stop may take.
const STOP_WITHIN: Duration = Duration::from_secs(20);
/// Faults that stand for the links themselves outlive the drill by this.
const LINK_FAULTS_TTL: &str = "15m";

/// The processes.
#[derive(Debug)]
pub struct Processes {
    program: PathBuf,
    regions: Vec<Process>,
}

#[derive(Debug)]
struct Process {
    name: String,
    file: PathBuf,
    data_dir: PathBuf,
    log: PathBuf,
    backup: PathBuf,
    /// Jitter and loss of its links.
    link_faults: Vec<Value>,
    running: Mutex<Option<Running>>,
}

/// Ports that nobody listens on at the moment, below those that systems give to connections (from 32 768 on Linux): a
/// connection would take the port of a region that is being started again.
fn free_ports(count: usize) -> anyhow::Result<Vec<u16>> {
    // Drills that are started at once begin at different places, each with room for all its regions.
    let first =
        std::process::id().wrapping_mul(PORTS_OF_A_DRILL) % u32::from(PORTS.end - PORTS.start);
    let first = PORTS.start + u16::try_from(first).unwrap_or(0);
    let ports: Vec<u16> = (first..PORTS.end)
        .chain(PORTS.start..first)
        .filter(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .take(count)
        .collect();
    if ports.len() < count {
        bail!(
            "no {count} free ports between {} and {}",
            PORTS.start,
            PORTS.end
        );
    }
    Ok(ports)
}

impl Processes {
    /// Writes the files of the scenario's regions into `dir`; starts nothing. Also how they are reached.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn new(
        scenario: &Scenario,
        dir: &Path,
        peer_secret: &str,
    ) -> anyhow::Result<(Self, Vec<Arc<Endpoint>>)> {
        let ports = free_ports(3 * scenario.regions.len())?;
        let address = |region: usize, listener: usize| {
            let port = ports.get(3 * region + listener).copied().unwrap_or(0);
            format!("127.0.0.1:{port}")
        };
        let mut regions = Vec::new();
        let mut endpoints = Vec::new();
        for (index, name) in scenario.regions.iter().enumerate() {
            let place = dir.join(name);
            std::fs::create_dir_all(&place)
                .with_context(|| format!("{} cannot be made", place.display()))?;
            let data_dir = place.join("data");
            let file = place.join("region.toml");
            let text = region_file(scenario, index, &data_dir, peer_secret, &address);
            private_file(&file)?
                .write_all(text.as_bytes())
                .with_context(|| format!("{} cannot be written", file.display()))?;
            regions.push(Process {
                name: name.clone(),
                file,
                data_dir,
                log: place.join("log"),
                backup: place.join("backup"),
                link_faults: link_faults(scenario, index),
                running: Mutex::new(None),
            });
            endpoints.push(Arc::new(Endpoint::new(
                name,
                &format!("http://{}", address(index, 0)),
                &format!("http://{}", address(index, 1)),
                &Secret::new(DEV_TOKEN),
            )?));
        }
        let program = std::env::current_exe().context("the path of this program is unknown")?;
        Ok((Self { program, regions }, endpoints))
    }

    /// Starts all regions and waits until they are one cluster.
    ///
    /// # Errors
    /// When one does not start, or they do not come together.
    pub async fn start_all(&self, fleet: &Fleet) -> anyhow::Result<()> {
        for process in &self.regions {
            *process.running.lock().await = Some(self.spawn(process)?);
        }
        for process in &self.regions {
            if let Some(running) = &mut *process.running.lock().await {
                running
                    .ready()
                    .await
                    .with_context(|| tail_of(&process.log))?;
            }
        }
        let formed = async {
            for endpoint in &fleet.regions {
                loop {
                    let status = endpoint.status(Duration::from_secs(1)).await;
                    let is_in = status.is_ok_and(|status| {
                        status["ready"] == true
                            && status["enrolled"] == true
                            && !status["leader"].is_null()
                    });
                    if is_in {
                        break;
                    }
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        };
        timeout(FORMED_WITHIN, formed)
            .await
            .context("the regions did not become one cluster")?;
        for region in 0..self.regions.len() {
            self.fault_links(fleet, region).await?;
        }
        Ok(())
    }

    /// Faults by region that stand for its links.
    pub fn faults_of_links(&self) -> Vec<usize> {
        self.regions
            .iter()
            .map(|process| process.link_faults.len())
            .collect()
    }

    fn spawn(&self, process: &Process) -> anyhow::Result<Running> {
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&process.log)
            .with_context(|| format!("{} cannot be opened", process.log.display()))?;
        let start = Start {
            name: &process.name,
            file: &process.file,
            flags: &[],
            log: Some(log),
        };
        Running::spawn(&self.program, start)
    }

    fn process(&self, region: usize) -> anyhow::Result<&Process> {
        self.regions
            .get(region)
            .with_context(|| format!("there is no region number {region}"))
    }

    async fn fault_links(&self, fleet: &Fleet, region: usize) -> anyhow::Result<()> {
        for fault in &self.process(region)?.link_faults {
            fleet.inject(region, fault).await?;
        }
        Ok(())
    }

    /// A region that runs, to be ended. One that ended by itself is found here at the latest.
    async fn take(&self, region: usize) -> anyhow::Result<Running> {
        let process = self.process(region)?;
        let running = process.running.lock().await.take();
        let running = running.with_context(|| format!("{} does not run", process.name))?;
        if let Some(status) = running.ended() {
            bail!(
                "{} ended by itself: {status}\n{}",
                process.name,
                tail_of(&process.log)
            );
        }
        Ok(running)
    }

    /// Kills a region.
    ///
    /// # Errors
    /// When it does not run.
    pub async fn kill(&self, region: usize) -> anyhow::Result<()> {
        let running = self.take(region).await?;
        running.kill().await;
        Ok(())
    }

    /// Asks a region to end, and waits until it has.
    ///
    /// # Errors
    /// When it does not run, or takes too long.
    pub async fn stop(&self, region: usize) -> anyhow::Result<()> {
        let running = self.take(region).await?;
        running.ask_to_stop();
        running.wait_or_kill(STOP_WITHIN).await
    }

    /// Freezes a region, or lets it go on.
    ///
    /// # Errors
    /// Where processes cannot be frozen.
    pub async fn freeze(&self, region: usize, is_frozen: bool) -> anyhow::Result<()> {
        let process = self.process(region)?;
        #[cfg(unix)]
        if let Some(running) = &*process.running.lock().await {
            if is_frozen {
                running.freeze();
            } else {
                running.go_on();
            }
            return Ok(());
        }
        bail!(
            "{} cannot be {}",
            process.name,
            if is_frozen { "frozen" } else { "let go on" }
        )
    }

    /// Starts a region that was ended; it is not waited for.
    ///
    /// # Errors
    /// When it cannot be started.
    pub async fn start(&self, region: usize) -> anyhow::Result<()> {
        let process = self.process(region)?;
        let mut running = process.running.lock().await;
        if running.is_none() {
            *running = Some(self.spawn(process)?);
        }
        Ok(())
    }

    /// Waits until a region that was started serves, and makes its links what they were.
    ///
    /// # Errors
    /// When it ends instead.
    pub async fn back(&self, fleet: &Fleet, region: usize) -> anyhow::Result<()> {
        let process = self.process(region)?;
        if let Some(running) = &mut *process.running.lock().await {
            running
                .ready()
                .await
                .with_context(|| tail_of(&process.log))?;
        }
        self.fault_links(fleet, region).await
    }

    /// Removes the data of a region that does not run.
    ///
    /// # Errors
    /// When that fails.
    pub fn wipe(&self, region: usize) -> anyhow::Result<()> {
        let data_dir = &self.process(region)?.data_dir;
        std::fs::remove_dir_all(data_dir)
            .with_context(|| format!("{} cannot be removed", data_dir.display()))
    }

    /// Takes a backup of a region.
    ///
    /// # Errors
    /// When it does not come, or cannot be written.
    pub async fn backup(&self, fleet: &Fleet, region: usize) -> anyhow::Result<()> {
        let bytes = fleet.region(region)?.backup().await?;
        let path = &self.process(region)?.backup;
        private_file(path)?
            .write_all(&bytes)
            .with_context(|| format!("{} cannot be written", path.display()))
    }

    /// Puts the backup in the place of the data of a region that does not run.
    ///
    /// # Errors
    /// When the backup cannot be restored.
    pub fn restore(&self, region: usize) -> anyhow::Result<()> {
        self.wipe(region)?;
        let process = self.process(region)?;
        store::restore_backup(&process.backup, &process.data_dir)
            .map(drop)
            .with_context(|| format!("the backup of {} cannot be restored", process.name))
    }

    /// Kills everything: the data is not needed any more.
    pub async fn end(&self) {
        for process in &self.regions {
            if let Some(running) = process.running.lock().await.take() {
                running.kill().await;
            }
        }
    }

    /// Regions whose log holds a panic.
    pub fn panicked(&self) -> Vec<&str> {
        let has_panicked = |process: &&Process| {
            std::fs::read_to_string(&process.log).is_ok_and(|log| log.contains("panicked at"))
        };
        self.regions
            .iter()
            .filter(has_panicked)
            .map(|process| process.name.as_str())
            .collect()
    }
}

fn region_file(
    scenario: &Scenario,
    index: usize,
    data_dir: &Path,
    peer_secret: &str,
    address: &impl Fn(usize, usize) -> String,
) -> String {
    let data_dir = toml::Value::String(data_dir.display().to_string());
    let mut text = format!(
        "cluster = \"drill\"\nregion = \"{}\"\ndata_dir = {data_dir}\nlisten.check = \"{}\"\nlisten.admin = \"{}\"\n\
         listen.peer = \"{}\"\nauth.admin_token = \"{DEV_TOKEN}\"\nauth.peer_secret = \"{peer_secret}\"\n\
         faults.enabled = true\n",
        scenario.region(index),
        address(index, 0),
        address(index, 1),
        address(index, 2),
    );
    for (other, name) in scenario.regions.iter().enumerate() {
        if other == index {
            continue;
        }
        let delay_ms = scenario.link(index, other).map_or(0, |link| link.delay_ms);
        text.push_str(&format!(
            "\n[[peers]]\nregion = \"{name}\"\nurl = \"http://{}\"\nlatency = \"{delay_ms}ms\"\n",
            address(other, 2)
        ));
    }
    text
}

/// Jitter and loss of a region's links. The delay is in its file.
fn link_faults(scenario: &Scenario, index: usize) -> Vec<Value> {
    let mut faults = Vec::new();
    for (other, name) in scenario.regions.iter().enumerate() {
        let Some(link) = scenario.link(index, other).filter(|_| other != index) else {
            continue;
        };
        if link.jitter_ms > 0 {
            faults.push(json!({
                "kind": "latency", "peer": name, "delay": "0s", "jitter": format!("{}ms", link.jitter_ms),
                "ttl": LINK_FAULTS_TTL,
            }));
        }
        if link.loss_percent > 0 {
            faults.push(json!({
                "kind": "loss", "peer": name, "loss_percent": link.loss_percent, "ttl": LINK_FAULTS_TTL,
            }));
        }
    }
    faults
}

/// The last lines of a log, for whoever looks for the cause.
fn tail_of(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let tail = lines
        .get(lines.len().saturating_sub(10)..)
        .unwrap_or_default();
    format!("{}:\n{}", log.display(), tail.join("\n"))
}
