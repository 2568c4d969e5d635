//! Carries out the steps of a scenario, each at its time, and notes when it began and ended.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Context;
use anyhow::bail;
use parking_lot::Mutex;
use serde_json::Value;
use serde_json::json;
use tokio::task::JoinSet;

use crate::drill::record::Done;
use crate::drill::scenario::Action;
use crate::drill::scenario::Scenario;
use crate::drill::scenario::Target;

use super::fleet::Fleet;
use super::load::Callers;
use super::processes::Processes;
use super::progress::Progress;
use super::watch::Watched;

/// How long a step that needs to know who leads waits for it.
const LEADER_WITHIN_MS: u64 = 10_000;

/// What steps work with.
#[derive(Debug)]
pub struct Hands {
    /// What is to be done.
    pub scenario: Arc<Scenario>,
    /// The regions.
    pub fleet: Arc<Fleet>,
    /// Their processes, when they are the drill's own.
    pub processes: Option<Arc<Processes>>,
    /// The callers.
    pub callers: Arc<Callers>,
    /// Who leads.
    pub watched: Arc<Watched>,
    /// Whom to tell.
    pub progress: Arc<Progress>,
    /// What was done.
    pub done: Mutex<Vec<Done>>,
}

impl Hands {
    /// Carries out all steps; each task ends when its step is over and the region, if it was ended, serves again.
    pub fn start(self: &Arc<Self>) -> JoinSet<anyhow::Result<()>> {
        let mut running = JoinSet::new();
        for step in 0..self.scenario.steps.len() {
            let hands = Arc::clone(self);
            running.spawn(async move {
                let line = hands.scenario.steps.get(step).map_or(0, |step| step.line);
                let done = hands.step(step).await;
                done.with_context(|| format!("{}: line {line}", hands.scenario.name))
            });
        }
        running
    }

    async fn step(&self, number: usize) -> anyhow::Result<()> {
        let Some(step) = self.scenario.steps.get(number) else {
            return Ok(());
        };
        let wait_ms = step.at_ms.saturating_sub(self.fleet.now_ms());
        tokio::time::sleep(Duration::from_millis(wait_ms)).await;
        let region = self.target(step.target).await?;
        let began_ms = self.fleet.now_ms();
        let place = {
            let mut done = self.done.lock();
            done.push(Done {
                step: number,
                region,
                began_ms,
                ended_ms: None,
            });
            done.len() - 1
        };
        let named = match step.target {
            Target::Region(_) => String::new(),
            Target::Leader | Target::Follower => format!(" ({})", self.scenario.region(region)),
        };
        let what = step.describe(&self.scenario);
        self.progress.event(began_ms, &format!("{what}{named}"));
        let lasts = Duration::from_millis(step.lasts_ms);
        if step.action.is_of_process() {
            self.to_process(&step.action, region, lasts, place).await?;
        } else {
            self.to_cluster(&step.action, region, lasts).await?;
            self.ended(place);
        }
        if step.lasts_ms > 0 {
            self.progress
                .event(self.fleet.now_ms(), &format!("over: {what}{named}"));
        }
        Ok(())
    }

    fn ended(&self, place: usize) {
        if let Some(done) = self.done.lock().get_mut(place) {
            done.ended_ms = Some(self.fleet.now_ms());
        }
    }

    /// Which region is meant.
    async fn target(&self, target: Target) -> anyhow::Result<usize> {
        if let Target::Region(region) = target {
            return Ok(region);
        }
        let deadline_ms = self.fleet.now_ms() + LEADER_WITHIN_MS;
        loop {
            if let Some(leader) = self.leader() {
                let follower = (0..self.scenario.regions.len()).find(|region| *region != leader);
                return match target {
                    Target::Follower => follower.context("there is no other region"),
                    Target::Leader | Target::Region(_) => Ok(leader),
                };
            }
            if self.fleet.now_ms() > deadline_ms {
                bail!("no region leads");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The region that leads in the newest term, by its own newest word.
    fn leader(&self) -> Option<usize> {
        let newest = self.watched.newest(self.scenario.regions.len());
        let leading = newest.into_iter().flatten().filter_map(|sample| {
            let seen = sample.seen.filter(|seen| seen.leads)?;
            Some((seen.term, sample.region))
        });
        leading.max().map(|(_, region)| region)
    }

    async fn to_process(
        &self,
        action: &Action,
        region: usize,
        lasts: Duration,
        place: usize,
    ) -> anyhow::Result<()> {
        let processes = self
            .processes
            .as_ref()
            .context("the process is not the drill's own")?;
        match action {
            Action::Pause => {
                processes.freeze(region, true).await?;
                tokio::time::sleep(lasts).await;
                processes.freeze(region, false).await?;
                self.ended(place);
                return Ok(());
            }
            Action::Stop => processes.stop(region).await?,
            Action::Kill | Action::Wipe | Action::Restore => processes.kill(region).await?,
            other => bail!("{} is not done to a process", other.name()),
        }
        match action {
            Action::Wipe => processes.wipe(region)?,
            Action::Restore => processes.restore(region)?,
            _ => {}
        }
        tokio::time::sleep(lasts).await;
        processes.start(region).await?;
        self.ended(place);
        processes.back(&self.fleet, region).await
    }

    async fn to_cluster(
        &self,
        action: &Action,
        region: usize,
        lasts: Duration,
    ) -> anyhow::Result<()> {
        match action {
            Action::Backup => match &self.processes {
                Some(processes) => return processes.backup(&self.fleet, region).await,
                None => self.fleet.region(region)?.backup().await.map(drop)?,
            },
            Action::Transfer => {
                let endpoint = self.fleet.region(region)?;
                let path = ["admin", "v1", "cluster", "leader"];
                let body = json!({ "region": endpoint.name });
                // A move that is refused is no reason to end the drill: the verdict tells what came of it.
                if let Err(error) = endpoint
                    .must(reqwest::Method::POST, &path, Some(&body))
                    .await
                {
                    let what = format!("the lead was not handed over: {error:#}");
                    self.progress.event(self.fleet.now_ms(), &what);
                }
            }
            Action::Drain => {
                self.fleet.drain(region, lasts).await?;
                tokio::time::sleep(lasts).await;
                self.fleet.resume(region).await?;
            }
            Action::Move { to } => {
                if let Some(route) = self.callers.routes.get(region) {
                    route.store(*to, Ordering::Relaxed);
                    tokio::time::sleep(lasts).await;
                    route.store(region, Ordering::Relaxed);
                }
            }
            Action::Flap { peers, every_ms } => self.flap(region, peers, *every_ms, lasts).await?,
            other => {
                for fault in self.faults(other, lasts) {
                    self.fleet.inject(region, &fault).await?;
                }
                tokio::time::sleep(lasts).await;
            }
        }
        Ok(())
    }

    /// The faults to inject, each of which ends by itself.
    fn faults(&self, action: &Action, lasts: Duration) -> Vec<Value> {
        let ttl = format!("{}ms", lasts.as_millis());
        match action {
            Action::Cut { peers, direction } => self.to_peers(
                peers,
                &json!({ "kind": "partition", "direction": direction.name(), "ttl": ttl }),
            ),
            Action::Slow {
                peers,
                delay_ms,
                jitter_ms,
            } => self.to_peers(
                peers,
                &json!({
                    "kind": "latency", "delay": format!("{delay_ms}ms"), "jitter": format!("{jitter_ms}ms"), "ttl": ttl,
                }),
            ),
            Action::Lose {
                peers,
                loss_percent,
            } => self.to_peers(
                peers,
                &json!({ "kind": "loss", "loss_percent": loss_percent, "ttl": ttl }),
            ),
            Action::Clock { offset_ms } => {
                vec![json!({ "kind": "clock_offset", "offset_ms": offset_ms, "ttl": ttl })]
            }
            Action::DiskFull => vec![json!({ "kind": "store_full", "ttl": ttl })],
            Action::DiskErrors => vec![json!({ "kind": "store_errors", "ttl": ttl })],
            _ => Vec::new(),
        }
    }

    fn to_peers(&self, peers: &[usize], fault: &Value) -> Vec<Value> {
        if peers.is_empty() {
            return vec![fault.clone()];
        }
        peers
            .iter()
            .filter_map(|peer| {
                let mut fault = fault.clone();
                fault["peer"] = self.fleet.regions.get(*peer)?.name.clone().into();
                Some(fault)
            })
            .collect()
    }

    async fn flap(
        &self,
        region: usize,
        peers: &[usize],
        every_ms: u64,
        lasts: Duration,
    ) -> anyhow::Result<()> {
        let ends_ms = self.fleet.now_ms() + u64::try_from(lasts.as_millis()).unwrap_or(0);
        loop {
            let left_ms = ends_ms.saturating_sub(self.fleet.now_ms());
            if left_ms == 0 {
                return Ok(());
            }
            let ttl = format!("{}ms", every_ms.min(left_ms).max(1));
            let fault = json!({ "kind": "partition", "direction": "both", "ttl": ttl });
            for fault in self.to_peers(peers, &fault) {
                self.fleet.inject(region, &fault).await?;
            }
            tokio::time::sleep(Duration::from_millis((2 * every_ms).min(left_ms))).await;
        }
    }
}
