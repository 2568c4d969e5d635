//! A cluster that runs anyway: its file, what can be done to it, whether it is well enough, and whether to go on.

use std::io::BufRead;
use std::io::IsTerminal;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use anyhow::bail;
use reqwest::Method;
use serde::Deserialize;

use crate::drill::record::Record;
use crate::drill::record::Sample;
use crate::drill::scenario::Action;
use crate::drill::scenario::Direction;
use crate::drill::scenario::Scenario;
use crate::region::config::secret;
use crate::region::config::secret::Secret;

use super::fleet::Endpoint;
use super::fleet::Fleet;
use super::watch;

const SAY_WITHIN: Duration = Duration::from_secs(5);

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

    /// Whether the cluster is well enough for a drill: every region ready, linked with all others, following one leader,
    /// free of faults, and willing to take some.
    ///
    /// # Errors
    /// What is wrong.
    pub async fn guard(&self, fleet: &Fleet) -> anyhow::Result<()> {
        let mut wrong = Vec::new();
        let mut leaders = Vec::new();
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
            if !Record::default().is_well(&sample, fleet.regions.len()) {
                wrong.push(format!("{} is not well; see its status", endpoint.name));
            }
            leaders.push(status["leader"].clone());
            let path = ["admin", "v1", "faults"];
            let faults = endpoint.admin(Method::GET, &path, &[], None).await?;
            if !faults.is_success() {
                wrong.push(format!(
                    "{} takes no faults (HTTP {}); set faults.enabled = true",
                    endpoint.name, faults.status
                ));
            }
        }
        leaders.dedup();
        if leaders.len() > 1 {
            wrong.push("the regions do not follow the same leader".to_owned());
        }
        wrong.dedup();
        if wrong.is_empty() {
            return Ok(());
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
            "\nThis is done to a running cluster. Every fault ends by itself; Ctrl-C lifts all of them."
        );
        if !std::io::stdin().is_terminal() {
            bail!("nobody can be asked whether to go on; give --yes");
        }
        eprint!("Type the cluster's name, {}, to go on: ", self.name);
        let mut answer = String::new();
        std::io::stdin().lock().read_line(&mut answer)?;
        if answer.trim() != self.name {
            bail!("nothing was done");
        }
        Ok(())
    }
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
