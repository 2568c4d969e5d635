//! What every region counts at the end, counter by counter.
//!
//! Of strict limits the ledger of each window in which callers were allowed something; of others the window that runs.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use anyhow::Context;
use reqwest::Method;
use serde_json::Value;
use serde_json::json;

use crate::domain::limit::Mode;
use crate::drill::record::Answer;
use crate::drill::record::Call;
use crate::drill::record::Counted;
use crate::drill::scenario::Scenario;

use super::fleet::Fleet;
use super::load::key_name;

/// Strict windows of one limit that are compared: the newest ones.
const WINDOWS_MAX: usize = 60;
/// Counters that are asked for in one call.
const BATCH: usize = 500;

/// A strict window: tenant, key, epoch, start.
type Window = (String, u32, u64, i64);

/// Counters that callers have used, and what each region counts of them now.
///
/// # Errors
/// When a region does not tell.
pub async fn count(
    scenario: &Scenario,
    fleet: &Fleet,
    calls: &[Call],
) -> anyhow::Result<Vec<Counted>> {
    let mut all = Vec::new();
    for (at, limit) in scenario.limits.iter().enumerate() {
        if limit.window().is_none() {
            continue;
        }
        match limit.mode() {
            Mode::Strict => strict(scenario, fleet, calls, at, &mut all).await?,
            Mode::Approximate => approximate(scenario, fleet, calls, at, &mut all).await?,
            // Every region counts its own.
            Mode::Regional => {}
        }
    }
    Ok(all)
}

/// Units that callers were told as allowed, by strict window.
fn used_windows(scenario: &Scenario, calls: &[Call], limit: usize) -> BTreeMap<Window, u64> {
    let mut used = BTreeMap::new();
    for call in calls {
        let Some(load) = scenario.loads.get(call.load) else {
            continue;
        };
        if let Answer::Allowed(said) = &call.answer
            && load.limit == limit
            && let Some(start) = said.window_start_ms
        {
            *used
                .entry((load.tenant.clone(), call.key, said.epoch, start))
                .or_default() += call.cost;
        }
    }
    used
}

async fn strict(
    scenario: &Scenario,
    fleet: &Fleet,
    calls: &[Call],
    at: usize,
    all: &mut Vec<Counted>,
) -> anyhow::Result<()> {
    let Some(limit) = scenario.limits.get(at) else {
        return Ok(());
    };
    let used = used_windows(scenario, calls, at);
    let mut windows: Vec<&Window> = used.keys().collect();
    windows.sort_by_key(|(.., start)| std::cmp::Reverse(*start));
    windows.truncate(WINDOWS_MAX);
    for (word, key, epoch, start) in windows {
        let tenant = fleet.tenant(word);
        let path = [
            "admin",
            "v1",
            "tenants",
            &tenant,
            "limits",
            &limit.name,
            "ledger",
        ];
        let (start_text, key_text) = (start.to_string(), key_name(*key));
        let mut query = vec![("at", start_text.as_str())];
        if limit.has_key() {
            query.push(("key", &key_text));
        }
        let mut counted = Counted {
            limit: at,
            tenant: word.clone(),
            key: *key,
            epoch: *epoch,
            window_start_ms: *start,
            used: Vec::new(),
            stranded: 0,
            held: 0,
        };
        for endpoint in &fleet.regions {
            let told = endpoint.admin(Method::GET, &path, &query, None).await?;
            let is_it = told.is_success() && told.body["epoch"] == *epoch;
            let used = told.body["used"].as_u64().filter(|_| is_it);
            let stranded = told.body["stranded"].as_u64().filter(|_| is_it);
            counted.used.push(used);
            counted.stranded = counted.stranded.max(stranded.unwrap_or(0));
            let rows = told.body["rows"].as_array().into_iter().flatten();
            let held: u64 = rows.filter_map(|row| row["held"].as_u64()).sum();
            if is_it {
                counted.held = counted.held.max(held);
            }
        }
        all.push(counted);
    }
    Ok(())
}

async fn approximate(
    scenario: &Scenario,
    fleet: &Fleet,
    calls: &[Call],
    at: usize,
    all: &mut Vec<Counted>,
) -> anyhow::Result<()> {
    let Some(limit) = scenario.limits.get(at) else {
        return Ok(());
    };
    let mut counters: BTreeSet<(&str, u32)> = BTreeSet::new();
    for call in calls {
        let load = scenario.loads.get(call.load);
        if let Some(load) = load.filter(|load| load.limit == at) {
            counters.insert((&load.tenant, call.key));
        }
    }
    let counters: Vec<(&str, u32)> = counters.into_iter().collect();
    for some in counters.chunks(BATCH) {
        let look = |(word, key): &(&str, u32)| {
            let mut item = json!({ "tenant": fleet.tenant(word), "limit": limit.name, "cost": 0 });
            if limit.has_key() {
                item["key"] = key_name(*key).into();
            }
            item
        };
        let items: Vec<Value> = some.iter().map(look).collect();
        let body = json!({ "items": items });
        let mut told = Vec::new();
        for endpoint in &fleet.regions {
            let answer = endpoint.ask("/v1/check/batch", None, &body).await;
            let (_, answer) = answer
                .ok()
                .filter(|(status, _)| *status == 200)
                .with_context(|| format!("region {} does not tell its counters", endpoint.name))?;
            told.push(answer);
        }
        for (number, (word, key)) in some.iter().enumerate() {
            let results = told
                .iter()
                .map(|answer| &answer["results"][number]["results"][0]);
            let places: Vec<(Option<u64>, Option<i64>)> = results
                .clone()
                .map(|result| (result["epoch"].as_u64(), result["window_start_ms"].as_i64()))
                .collect();
            let Some(&(Some(epoch), Some(window_start_ms))) = places.first() else {
                continue;
            };
            let used = results.zip(&places).map(|(result, place)| {
                let is_it = *place == (Some(epoch), Some(window_start_ms));
                result["used"].as_u64().filter(|_| is_it)
            });
            all.push(Counted {
                limit: at,
                tenant: (*word).to_owned(),
                key: *key,
                epoch,
                window_start_ms,
                used: used.collect(),
                stranded: 0,
                held: 0,
            });
        }
    }
    Ok(())
}

/// The first counter that the regions do not count alike, or of which units that callers were told have not been told to
/// the leader yet; `None`: all is settled.
pub fn difference(scenario: &Scenario, calls: &[Call], counted: &[Counted]) -> Option<String> {
    let told: Vec<BTreeMap<Window, u64>> = scenario
        .limits
        .iter()
        .enumerate()
        .map(|(at, limit)| match limit.mode() {
            Mode::Strict => used_windows(scenario, calls, at),
            Mode::Approximate | Mode::Regional => BTreeMap::new(),
        })
        .collect();
    counted.iter().find_map(|one| {
        let first = one.used.first().copied().flatten();
        let place = (one.tenant.clone(), one.key, one.epoch, one.window_start_ms);
        let least = told.get(one.limit).and_then(|told| told.get(&place));
        let least = least.copied().unwrap_or(0);
        let is_same = first.is_some() && one.used.iter().all(|used| *used == first);
        let most = first.unwrap_or(0) + one.stranded + one.held;
        let is_settled = is_same && most >= least;
        let name = scenario.limits.get(one.limit).map_or("?", |limit| &limit.name);
        (!is_settled).then(|| {
            format!(
                "{name}, tenant {}, key {}: the regions count {:?}, {} stranded, {} held, where callers were told {least}",
                one.tenant, one.key, one.used, one.stranded, one.held
            )
        })
    })
}
