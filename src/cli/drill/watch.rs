//! Looks at every region, several times a second, and keeps what it says of itself.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::Value;
use tokio::task::JoinSet;

use crate::drill::record::Sample;
use crate::drill::record::Seen;
use crate::drill::scenario::Scenario;

use super::fleet::Fleet;

/// Between two looks at a region.
const LOOK_EVERY: Duration = Duration::from_millis(150);
/// A region that does not say how it is within this does not answer.
const SAY_WITHIN: Duration = Duration::from_millis(1_000);

/// What was seen so far.
#[derive(Debug, Default)]
pub struct Watched {
    /// Looks, in the order of time.
    pub samples: Mutex<Vec<Sample>>,
}

impl Watched {
    /// The newest look at every region.
    pub fn newest(&self, regions: usize) -> Vec<Option<Sample>> {
        let samples = self.samples.lock();
        (0..regions)
            .map(|region| {
                let of_region = samples.iter().rfind(|sample| sample.region == region);
                of_region.cloned()
            })
            .collect()
    }
}

/// Watches until the set is dropped.
pub fn start(scenario: &Arc<Scenario>, fleet: &Arc<Fleet>, watched: &Arc<Watched>) -> JoinSet<()> {
    let mut looking = JoinSet::new();
    for region in 0..scenario.regions.len() {
        let (fleet, watched) = (Arc::clone(fleet), Arc::clone(watched));
        looking.spawn(async move {
            loop {
                let Some(endpoint) = fleet.regions.get(region) else {
                    return;
                };
                let status = endpoint.status(SAY_WITHIN).await;
                let seen = status.ok().map(|status| seen(&status, &fleet));
                let at_ms = fleet.now_ms();
                watched.samples.lock().push(Sample {
                    at_ms,
                    region,
                    seen,
                });
                tokio::time::sleep(LOOK_EVERY).await;
            }
        });
    }
    looking
}

/// The number of a region by its name in the cluster.
fn number(fleet: &Fleet, name: &Value) -> Option<usize> {
    let name = name.as_str()?;
    fleet
        .regions
        .iter()
        .position(|endpoint| endpoint.name == name)
}

/// A status as the record keeps it.
pub fn seen(status: &Value, fleet: &Fleet) -> Seen {
    let peers = status["peers"].as_array().map(Vec::as_slice);
    let peers = peers.unwrap_or_default();
    let is_up = |peer: &&Value| peer["connected"] == true && peer["connected_to_us"] == true;
    Seen {
        is_ready: status["ready"] == true,
        is_draining: status["draining"] == true,
        is_enrolled: status["enrolled"] == true,
        leads: status["role"] == "leader",
        leader: number(fleet, &status["leader"]),
        term: status["term"].as_u64().unwrap_or(0),
        is_store_ok: status["store"] == "ok",
        faults: status["faults"]
            .as_u64()
            .and_then(|faults| usize::try_from(faults).ok())
            .unwrap_or(0),
        links: peers
            .iter()
            .filter(is_up)
            .filter_map(|peer| number(fleet, &peer["region"]))
            .collect(),
        lag_ms: peers
            .iter()
            .filter_map(|peer| peer["usage_lag_ms"].as_u64())
            .max()
            .unwrap_or(0),
    }
}
