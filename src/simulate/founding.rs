//! What makes a cluster of regions: its name, and the limits that callers ask for.

use serde_json::json;

use crate::drill::scenario::Scenario;
use crate::machine::command::Command;

use super::process::Process;

/// The tenant of a word of the scenario.
pub fn tenant(word: &str) -> String {
    format!("drill-{word}")
}

/// The commands, in order.
///
/// # Errors
/// When a limit cannot be written down.
pub fn commands(scenario: &Scenario, seed: u64) -> Result<Vec<Command>, String> {
    let mut limits = serde_json::Map::new();
    for limit in &scenario.limits {
        let spec = serde_json::to_value(&limit.spec).map_err(|error| error.to_string())?;
        limits.insert(limit.name.clone(), spec);
    }
    let mut tenants = serde_json::Map::new();
    for word in scenario.tenants() {
        tenants.insert(tenant(word), json!({ "limits": limits }));
    }
    let change = json!({
        "author": { "operator": { "token": "drill" } },
        "change": { "patch": { "tree": { "tenants": tenants } } },
    });
    let found = Command::Found {
        cluster: seed,
        adopted: None,
    };
    Ok(vec![
        found,
        Command::Change(change.to_string().into_bytes()),
    ])
}

/// How many of the commands a process knows to be carried out.
pub fn done(process: &Process) -> usize {
    let has_limits = process.machine.catalogue().version() > 0;
    usize::from(process.machine.cluster().is_some()) + usize::from(has_limits)
}
