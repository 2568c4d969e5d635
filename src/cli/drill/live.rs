//! A cluster that runs anyway: its file, what can be done to it, whether it is well enough, and whether to go on.

use std::io::BufRead;
use std::io::IsTerminal;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use anyhow::bail;
use serde::Deserialize;
use serde_json::Value;

use crate::drill::record::Record;
use crate::drill::record::Sample;
use crate::drill::record::Seen;
use crate::drill::scenario::Action;
use crate::drill::scenario::Direction;
use crate::drill::scenario::Link;
use crate::drill::scenario::Scenario;
use crate::region::clock::Clock;
use crate::region::config::secret;
use crate::region::config::secret::Secret;

use super::fleet::Endpoint;
use super::fleet::Fleet;
use super::watch;

const SAY_WITHIN: Duration = Duration::from_secs(5);
/// Windows are regions' time, and calls are noted by the clock of whoever runs the drill.
const AHEAD_MS_MAX: i64 = 1_000;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClusterFile {
    token_file: Option<PathBuf>,
    regions: Vec<RegionEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RegionEntry {
    region: String,
    admin: String,
    check: Option<String>,
}

/// The cluster.
#[derive(Debug)]
pub struct Live {
    /// The cluster's file.
    pub file: PathBuf,
    /// Its name, for the report.
    pub name: String,
    /// The regions, in the scenario's order.
    pub endpoints: Vec<Arc<Endpoint>>,
    /// What is done otherwise than the scenario says, and why.
    pub notes: Vec<String>,
    addresses: Vec<String>,
}

impl Live {
    /// Reads a cluster's file and fits the scenario to it: the scenario's regions become the cluster's, and what needs a
    /// process in hand becomes what looks the same to the others.
    ///
    /// # Errors
    /// When the file is wrong, or a step cannot be done to a running cluster.
    pub fn read(path: &Path, scenario: &mut Scenario) -> anyhow::Result<Self> {
        let name = path.display().to_string();
        let text =
            std::fs::read_to_string(path).with_context(|| format!("{name} cannot be read"))?;
        let file: ClusterFile = toml::from_str(&text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            let line = 1 + text.bytes().take(at).filter(|byte| *byte == b'\n').count();
            anyhow::anyhow!("{name}:{line}: {}", error.message().trim_end())
        })?;
        let token = token(path, file.token_file.as_deref())?;
        let mut notes = Vec::new();
        let chosen = choose(&file.regions, scenario, &name, &mut notes)?;
        let mut endpoints = Vec::new();
        let mut addresses = Vec::new();
        for entry in &chosen {
            let check = entry.check.as_deref().unwrap_or(&entry.admin);
            let endpoint = Endpoint::new(&entry.region, check, &entry.admin, &token)?;
            endpoints.push(Arc::new(endpoint));
            addresses.push(entry.admin.clone());
        }
        scenario.regions = chosen.iter().map(|entry| entry.region.clone()).collect();
        translate(scenario, &mut notes)?;
        if scenario
            .links
            .iter()
            .any(|link| link.delay_ms + link.jitter_ms > 0 || link.loss_percent > 0)
        {
            notes.push(
                "the links are the cluster's own; the scenario's delays are left out".to_owned(),
            );
        }
        scenario.links.clear();
        let stem = path.file_stem().unwrap_or_default();
        Ok(Self {
            file: path.to_owned(),
            name: stem.to_string_lossy().into_owned(),
            endpoints,
            notes,
            addresses,
        })
    }

    /// Where the region number `index` is reached.
    pub fn address(&self, index: usize) -> Option<&str> {
        self.addresses.get(index).map(String::as_str)
    }

    /// Whether the cluster is well enough for a drill: every region of one cluster, ready, linked with all others, following
    /// one leader, free of faults and of other drills, willing to take faults, and with this machine's time. Gives how long
    /// a message takes from one region to another, for every two.
    ///
    /// # Errors
    /// What is wrong.
    pub async fn guard(&self, fleet: &Fleet, clock: &Clock) -> anyhow::Result<Vec<Link>> {
        let mut wrong = Vec::new();
        let (mut leaders, mut clusters, mut links) = (Vec::new(), Vec::new(), Vec::new());
        for (region, endpoint) in fleet.regions.iter().enumerate() {
            let status = match endpoint.status(SAY_WITHIN).await {
                Ok(status) => status,
                Err(error) => {
                    wrong.push(format!(
                        "{} does not say how it is: {error:#}",
                        endpoint.name
                    ));
                    continue;
                }
            };
            if status["region"] != endpoint.name.as_str() {
                wrong.push(format!(
                    "{} says that it is {}",
                    endpoint.name, status["region"]
                ));
                continue;
            }
            let ahead_ms = status["time_ms"].as_i64().unwrap_or(0) - clock.now().as_unix_ms();
            if ahead_ms.abs() > AHEAD_MS_MAX {
                wrong.push(format!(
                    "the clock of {} is {ahead_ms} ms ahead of this machine's: windows could not be judged",
                    endpoint.name
                ));
            }
            let sample = Sample {
                at_ms: 0,
                region,
                seen: Some(watch::seen(&status, fleet)),
            };
            let members = status["members"].as_array().map_or(0, Vec::len);
            if members != fleet.regions.len() {
                wrong.push(format!(
                    "the cluster has {members} regions, and the drill is about {}",
                    fleet.regions.len()
                ));
            }
            if let Some(seen) = &sample.seen
                && !Record::default().is_well(&sample, fleet.regions.len())
            {
                let why = unwell(seen, fleet.regions.len());
                wrong.push(format!("{} is not well: {why}", endpoint.name));
            }
            leaders.push(status["leader"].clone());
            clusters.push(status["cluster_id"].clone());
            links.extend(links_of(region, &status, fleet));
            if let Err(error) = endpoint.faults().await {
                wrong.push(format!("{error:#}"));
            }
            if let Ok(Some(tenant)) = endpoint.tenant_of_a_drill().await {
                wrong.push(format!(
                    "tenant {tenant} is there: another drill runs, or one was killed; if none runs: highwater tenants delete {tenant}"
                ));
            }
        }
        leaders.dedup();
        if leaders.len() > 1 {
            wrong.push("the regions do not follow the same leader".to_owned());
        }
        clusters.dedup();
        if clusters.len() > 1 {
            wrong.push("the regions do not belong to one cluster".to_owned());
        }
        wrong.sort();
        wrong.dedup();
        if wrong.is_empty() {
            return Ok(links);
        }
        bail!(
            "the cluster is not healthy, so nothing was done:\n  {}",
            wrong.join("\n  ")
        )
    }

    /// Shows what will be done and asks whether to go on.
    ///
    /// # Errors
    /// When the answer is not yes, or nobody can be asked.
    pub fn confirm(&self, plan: &str) -> anyhow::Result<()> {
        eprint!("{plan}");
        eprintln!(
            "\nThis is done to a running cluster: a tenant with the drill's limits is made and removed again, and the lead may \
             move. Every fault ends by itself; Ctrl-C lifts all of them."
        );
        if !std::io::stdin().is_terminal() {
            bail!("nobody can be asked whether to go on; give --yes");
        }
        eprint!("Type the file's name, {}, to go on: ", self.name);
        let mut answer = String::new();
        std::io::stdin().lock().read_line(&mut answer)?;
        if answer.trim() != self.name {
            bail!("nothing was done");
        }
        Ok(())
    }
}

/// Why a region is not well.
fn unwell(seen: &Seen, regions: usize) -> &'static str {
    if seen.is_draining {
        "it drains; see `highwater region resume`"
    } else if !seen.is_ready {
        "it is not ready"
    } else if seen.faults > 0 {
        "faults run in it"
    } else if seen.links.len() + 1 < regions {
        "it is not linked with all others"
    } else if !seen.is_enrolled {
        "it is not enrolled"
    } else {
        "see `highwater status`"
    }
}

/// The links of a region to those behind it, as its status measured them.
fn links_of(region: usize, status: &Value, fleet: &Fleet) -> Vec<Link> {
    let members = status["members"].as_array().into_iter().flatten();
    members
        .filter_map(|member| {
            let name = member["region"].as_str()?;
            let to = fleet.regions.iter().position(|one| one.name == name)?;
            let rtt_ms = Duration::try_from_secs_f64(member["rtt_ms"].as_f64()? / 1_000.0).ok()?;
            let link = Link {
                between: (region, to),
                delay_ms: u64::try_from(rtt_ms.as_micros().div_ceil(2_000)).ok()?,
                jitter_ms: 0,
                loss_percent: 0,
            };
            (to > region).then_some(link)
        })
        .collect()
}

fn token(cluster: &Path, file: Option<&Path>) -> anyhow::Result<Secret> {
    if let Some(file) = file {
        // As in a region's file: beside the file that names it, unless it is absolute.
        let path = cluster.parent().unwrap_or(Path::new("")).join(file);
        let read =
            secret::read(&path).map_err(|message| anyhow::anyhow!("token_file: {message}"))?;
        return Ok(read.secret);
    }
    match std::env::var("HIGHWATER_TOKEN") {
        Ok(text) if !text.trim().is_empty() => Ok(Secret::new(text.trim())),
        _ => bail!(
            "{}: say token_file, or set HIGHWATER_TOKEN",
            cluster.display()
        ),
    }
}

/// The cluster's regions that play the scenario's: those of the same names, else in order.
fn choose<'a>(
    entries: &'a [RegionEntry],
    scenario: &Scenario,
    name: &str,
    notes: &mut Vec<String>,
) -> anyhow::Result<Vec<&'a RegionEntry>> {
    if entries.len() != scenario.regions.len() {
        bail!(
            "{name}: has {} regions, and the drill {} is about {}",
            entries.len(),
            scenario.name,
            scenario.regions.len()
        );
    }
    let by_name: Option<Vec<&RegionEntry>> = scenario
        .regions
        .iter()
        .map(|region| entries.iter().find(|entry| entry.region == *region))
        .collect();
    if let Some(found) = by_name {
        return Ok(found);
    }
    for (region, entry) in scenario.regions.iter().zip(entries) {
        notes.push(format!("{} plays the drill's {region}", entry.region));
    }
    Ok(entries.iter().collect())
}

/// Replaces what needs a process in hand.
fn translate(scenario: &mut Scenario, notes: &mut Vec<String>) -> anyhow::Result<()> {
    for step in &mut scenario.steps {
        match step.action {
            Action::Kill | Action::Pause => {
                notes.push(format!(
                    "line {}: {} becomes a cut from all other regions: a running region is not ended by a drill, and its \
                     own callers still reach it",
                    step.line,
                    step.action.name()
                ));
                step.action = Action::Cut {
                    peers: Vec::new(),
                    direction: Direction::Both,
                };
            }
            Action::Stop | Action::Wipe | Action::Restore => bail!(
                "{}: line {}: {} needs the region's process and data in hand, and cannot be done to a running cluster",
                scenario.name,
                step.line,
                step.action.name()
            ),
            _ => {}
        }
    }
    Ok(())
}
