//! One drill from the first call to the last look: callers, steps and watchers side by side, then the settling.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::bail;
use parking_lot::Mutex;
use serde_json::Value;

use crate::drill::record::Answer;
use crate::drill::record::Record;
use crate::drill::scenario::Scenario;
use crate::drill::settled::Settling;
use crate::region::clock::Clock;

use super::counters;
use super::fleet::Endpoint;
use super::fleet::Fleet;
use super::load::Callers;
use super::processes::Processes;
use super::progress::Progress;
use super::steps::Hands;
use super::watch;
use super::watch::Watched;

/// Between two looks at how things stand.
const STANDING_EVERY: Duration = Duration::from_millis(500);
/// Between two comparisons of the regions' counters.
const COMPARE_EVERY: Duration = Duration::from_millis(100);
/// So long all regions must have been well before it counts.
const WELL_MS: u64 = 1_000;

/// What a drill runs on.
#[derive(Debug)]
pub struct Stage {
    /// What is rehearsed.
    pub scenario: Arc<Scenario>,
    /// The regions, in its order.
    pub endpoints: Vec<Arc<Endpoint>>,
    /// Their processes, when they are the drill's own.
    pub processes: Option<Arc<Processes>>,
    /// Goes before the words from which tenants are made.
    pub tenant_prefix: String,
    /// What calls follow from.
    pub seed: u64,
    /// Whom to tell.
    pub progress: Arc<Progress>,
}

impl Stage {
    /// The regions, with a watch that starts now.
    pub fn fleet(&self, clock: &Clock) -> Fleet {
        Fleet::new(
            self.endpoints.clone(),
            clock.stopwatch(),
            self.tenant_prefix.clone(),
        )
    }

    /// The scenario's limits as a catalogue has them.
    ///
    /// # Errors
    /// When one cannot be written down.
    pub fn limits(&self) -> anyhow::Result<Value> {
        let mut limits = serde_json::Map::new();
        for limit in &self.scenario.limits {
            limits.insert(limit.name.clone(), serde_json::to_value(&limit.spec)?);
        }
        Ok(Value::Object(limits))
    }

    /// Runs the drill. The regions are one cluster and the limits are made. `fleet` is what was used, for whoever
    /// must lift faults when this is broken off.
    ///
    /// # Errors
    /// When a step cannot be carried out, or a region cannot be asked.
    pub async fn run(&self, clock: &Clock, fleet: &Arc<Fleet>) -> anyhow::Result<Record> {
        let scenario = &self.scenario;
        let began_unix_ms = clock.now().as_unix_ms();
        let watched = Arc::new(Watched::default());
        let callers = Callers::new(scenario, fleet, self.seed);
        let hands = Arc::new(Hands {
            scenario: Arc::clone(scenario),
            fleet: Arc::clone(fleet),
            processes: self.processes.clone(),
            callers: Arc::clone(&callers),
            watched: Arc::clone(&watched),
            progress: Arc::clone(&self.progress),
            done: Mutex::new(Vec::new()),
        });
        let stall_ms_max = Arc::new(AtomicU64::new(0));
        let mut looking = watch::start(scenario, fleet, &watched);
        looking.spawn(measure_stalls(clock.clone(), Arc::clone(&stall_ms_max)));
        let mut asking = callers.start();
        let mut steps = hands.start();
        let both = async {
            let load = async {
                while asking.join_next().await.is_some() {}
                anyhow::Ok(())
            };
            let work = async {
                while let Some(done) = steps.join_next().await {
                    done??;
                }
                anyhow::Ok(())
            };
            // A step that cannot be carried out ends the drill at once, and the callers with it.
            tokio::try_join!(load, work).map(drop)
        };
        let standing = self.tell_standing(fleet, &callers, &watched);
        tokio::select! {
            finished = both => finished?,
            () = standing => {}
        }
        let load_ended_ms = fleet.now_ms();
        self.progress
            .event(load_ended_ms, "callers and steps are done; settling");
        let mut record = Record {
            began_unix_ms,
            load_ended_ms,
            calls: callers.calls.lock().clone(),
            steps: hands.done.lock().clone(),
            faults_of_links: self
                .processes
                .as_ref()
                .map(|processes| processes.faults_of_links())
                .unwrap_or_default(),
            ..Record::default()
        };
        self.settle(fleet, &watched, &mut record).await;
        drop(looking);
        record.stall_ms_max = stall_ms_max.load(Ordering::Relaxed);
        record.samples = watched.samples.lock().clone();
        record.samples.sort_by_key(|sample| sample.at_ms);
        record.ended_ms = fleet.now_ms();
        self.progress.end();
        if record.calls.is_empty() {
            bail!("no call was made");
        }
        Ok(record)
    }

    /// Waits until all regions are well and count the same, or the scenario's patience is at its end.
    async fn settle(&self, fleet: &Fleet, watched: &Watched, record: &mut Record) {
        let deadline_ms = record.load_ended_ms + self.scenario.settle_ms;
        let regions = self.scenario.regions.len();
        let mut settling = Settling::new(&self.scenario, &record.calls);
        while fleet.now_ms() < deadline_ms {
            if record.converged_ms.is_none() {
                let asked_ms = fleet.now_ms();
                let counted = counters::count(&self.scenario, fleet, &record.calls).await;
                if let Ok(counted) = counted {
                    match settling.compare(asked_ms, &self.scenario, &counted) {
                        Ok(settled_ms) => {
                            record.converged_ms = Some(settled_ms);
                            let said = "all regions count the same";
                            self.progress.event(settled_ms, said);
                        }
                        Err(why) => self.progress.standing(asked_ms, &why),
                    }
                    record.counted = counted;
                }
            }
            record.samples.clone_from(&watched.samples.lock());
            let well_from = record.well_from(record.steps_ended_ms(), regions);
            let is_well = well_from.is_some_and(|from| fleet.now_ms() >= from + WELL_MS);
            if is_well && record.converged_ms.is_some() {
                return;
            }
            tokio::time::sleep(COMPARE_EVERY).await;
        }
    }

    /// Tells how things stand, for ever.
    async fn tell_standing(&self, fleet: &Fleet, callers: &Callers, watched: &Watched) {
        let mut before = 0;
        loop {
            tokio::time::sleep(STANDING_EVERY).await;
            let (all, allowed, decided) = {
                let calls = callers.calls.lock();
                let count = |is_it: fn(&Answer) -> bool| {
                    calls.iter().filter(|call| is_it(&call.answer)).count()
                };
                (
                    calls.len(),
                    count(|answer| matches!(answer, Answer::Allowed(_))),
                    count(|answer| answer.said().is_some()),
                )
            };
            let newest = watched.newest(self.scenario.regions.len());
            let up = newest
                .iter()
                .flatten()
                .filter(|sample| sample.seen.as_ref().is_some_and(|seen| seen.is_ready));
            let leader = newest.iter().flatten().find_map(|sample| {
                let seen = sample.seen.as_ref().filter(|seen| seen.leads)?;
                Some(format!(
                    "{} leads in term {}",
                    self.scenario.region(sample.region),
                    seen.term
                ))
            });
            // Every half second.
            let standing = format!(
                "{all} calls, {} a second, {allowed} allowed, {} not answered; {} of {} regions ready; {}",
                2 * (all - before),
                all - decided,
                up.count(),
                self.scenario.regions.len(),
                leader.unwrap_or_else(|| "no leader".to_owned()),
            );
            before = all;
            self.progress.standing(fleet.now_ms(), &standing);
        }
    }
}

/// Between two looks at whether this process goes on.
const GO_ON_EVERY: Duration = Duration::from_millis(50);

/// Notes for how long this process stood still, for ever.
async fn measure_stalls(clock: Clock, longest_ms: Arc<AtomicU64>) {
    loop {
        let watch = clock.stopwatch();
        tokio::time::sleep(GO_ON_EVERY).await;
        let took_ms = watch.elapsed().as_nanos() / 1_000_000;
        let late_ms = took_ms.saturating_sub(u64::try_from(GO_ON_EVERY.as_millis()).unwrap_or(0));
        longest_ms.fetch_max(late_ms, Ordering::Relaxed);
    }
}
