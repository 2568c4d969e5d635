//! What every region counts at the end, counter by counter.
//!
//! Of strict limits the ledger of each window in which callers were allowed something; of others the window that runs.

use anyhow::Context;
use reqwest::Method;
use serde_json::Value;
use serde_json::json;

use crate::domain::limit::Mode;
use crate::drill::record::Call;
use crate::drill::record::Counted;
use crate::drill::scenario::DrillLimit;
use crate::drill::scenario::Scenario;
use crate::drill::settled;
use crate::drill::settled::Told;
use crate::drill::settled::key_name;

use super::fleet::Fleet;

/// Counters that are asked for in one call.
const BATCH: usize = 500;

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
            Mode::Strict => strict(scenario, fleet, calls, (at, limit), &mut all).await?,
            Mode::Approximate => approximate(scenario, fleet, calls, (at, limit), &mut all).await?,
            // Every region counts its own.
            Mode::Regional => {}
        }
    }
    Ok(all)
}

async fn strict(
    scenario: &Scenario,
    fleet: &Fleet,
    calls: &[Call],
    (at, limit): (usize, &DrillLimit),
    all: &mut Vec<Counted>,
) -> anyhow::Result<()> {
    for (word, key, epoch, start) in &settled::strict_windows(scenario, calls, at) {
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
    (at, limit): (usize, &DrillLimit),
    all: &mut Vec<Counted>,
) -> anyhow::Result<()> {
    let counters = settled::counters(scenario, calls, at);
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
            let of_region = |answer: &Value| {
                let result = &answer["results"][number]["results"][0];
                Some((
                    result["epoch"].as_u64()?,
                    result["window_start_ms"].as_i64()?,
                    result["used"].as_u64()?,
                ))
            };
            let told: Vec<Told> = told.iter().map(of_region).collect();
            let (epoch, window_start_ms, used) = settled::one_window(&told);
            all.push(Counted {
                limit: at,
                tenant: (*word).to_owned(),
                key: *key,
                epoch,
                window_start_ms,
                used,
                stranded: 0,
                held: 0,
            });
        }
    }
    Ok(())
}
