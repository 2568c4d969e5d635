//! After the faults: the regions come together, agree, and lose no unit.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use reqwest::Method;
use serde_json::Value;
use serde_json::json;

use crate::audit;
use crate::audit::Place;
use crate::cluster::Cluster;
use crate::limits::KEYS;
use crate::limits::Kind;
use crate::limits::TENANTS;
use crate::limits::limit;
use crate::record::Record;

/// How long coming together may take: a wiped region fetches everything, breakers may be open for a while.
const WHOLE_WITHIN: Duration = Duration::from_secs(120);
/// Windows that ended and that a region keeps the proof of.
const CLOSED_MAX: usize = 10_000;
/// Windows whose proof is asked for.
const PROOFS_MAX: usize = 300;
/// The amount of the limit that is made for the end, and its window.
const QUOTA: u64 = 300;
const WINDOW_MS: i64 = 20_000;

/// What is wrong at the end.
pub async fn come_together(
    cluster: &Arc<Cluster>,
    record: &Record,
    sums: &BTreeMap<Place, u64>,
) -> Vec<String> {
    let began = cluster.clock.now();
    cluster.wait_whole(WHOLE_WITHIN).await;
    println!("whole again after {} ms", cluster.clock.now() - began);
    let mut wrong = Vec::new();
    same_everywhere(cluster, "/admin/v1/catalogue", &mut wrong).await;
    same_everywhere(cluster, "/admin/v1/audit?page_size=1000", &mut wrong).await;
    counted_once(cluster, record, &mut wrong).await;
    proven(cluster, sums, &mut wrong).await;
    used_up(cluster, &mut wrong).await;
    wrong
}

async fn same_everywhere(cluster: &Cluster, path: &str, wrong: &mut Vec<String>) {
    let deadline = cluster.clock.now() + 20_000;
    loop {
        let mut all = Vec::new();
        for region in &cluster.regions {
            let answer = region.admin(Method::GET, path, &Value::Null).await;
            all.push(answer.map(|answer| answer.body).unwrap_or_default());
        }
        let are_equal = all.iter().all(|one| *one == all[0] && !one.is_null());
        if are_equal {
            return;
        }
        if cluster.clock.now() > deadline {
            wrong.push(format!("{path} differs between the regions: {all:?}"));
            return;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// The use of every counter of keyed calls is the sum of what was allowed, in every region.
async fn counted_once(cluster: &Cluster, record: &Record, wrong: &mut Vec<String>) {
    let (mut sure, mut doubtful) = (0, 0);
    for tenant in TENANTS {
        for key in 0..KEYS {
            let key = format!("user {key}");
            let (least, most) = audit::once(record, tenant, &key);
            sure += least;
            doubtful += most - least;
            let path = format!(
                "/v1/usage?tenant={tenant}&limit=once&key={}",
                key.replace(' ', "%20")
            );
            for region in &cluster.regions {
                let used = region
                    .get(&path)
                    .await
                    .map(|answer| answer.body["results"][0]["used"].as_u64());
                match used {
                    Ok(Some(used)) if (least..=most).contains(&used) => {}
                    used => wrong.push(format!(
                        "{} counts {used:?} of {tenant} {key}, where {least} to {most} were allowed under keys",
                        region.name
                    )),
                }
            }
        }
    }
    println!("{sure} units were allowed under keys, {doubtful} more may have been");
}

/// Every region tells the same proof of a window; it adds up, and covers what callers were told.
async fn proven(cluster: &Cluster, sums: &BTreeMap<Place, u64>, wrong: &mut Vec<String>) {
    let now = cluster.clock.now();
    // Of windows that have ended nothing is told any more.
    let ended = |place: &&Place| {
        let kind = limit(&place.limit).map(|limit| limit.kind);
        let length = match kind {
            Some(Kind::Windowed(length)) => length,
            _ => 0,
        };
        place.start + length + 15_000 < now && place.limit != "slide"
    };
    let mut places: Vec<&Place> = sums.keys().filter(ended).collect();
    // Older ones may be forgotten.
    places.sort_by_key(|place| std::cmp::Reverse(place.start));
    places.truncate(CLOSED_MAX / 2);
    let step = places.len().div_ceil(PROOFS_MAX).max(1);
    let mut compared = 0;
    for place in places.into_iter().step_by(step) {
        let path = format!(
            "/admin/v1/tenants/{}/limits/{}/ledger?key={}&at={}",
            place.tenant,
            place.limit,
            place.key.replace(' ', "%20"),
            place.start
        );
        let mut proofs = Vec::new();
        for region in &cluster.regions {
            let answer = region.admin(Method::GET, &path, &Value::Null).await;
            proofs.push(answer.map_or((0, Value::Null), |answer| (answer.status, answer.body)));
        }
        if proofs.iter().any(|proof| *proof != proofs[0]) {
            wrong.push(format!(
                "the proof of {place:?} differs between the regions: {proofs:?}"
            ));
            continue;
        }
        let (status, proof) = &proofs[0];
        if *status != 200 {
            wrong.push(format!("there is no proof of {place:?}: {status} {proof}"));
            continue;
        }
        compared += 1;
        let sum = |fields: &[&str]| -> u64 {
            let rows = proof["rows"].as_array().into_iter().flatten();
            rows.flat_map(|row| fields.iter().filter_map(|field| row[*field].as_u64()))
                .sum()
        };
        let covered = sum(&["spent", "held", "stranded", "charged"]);
        let is_of_epoch = proof["epoch"].as_u64() == Some(place.epoch);
        if proof["adds_up"] != true || (is_of_epoch && sums[place] > covered) {
            wrong.push(format!(
                "{} units were allowed of {place:?}: {proof}",
                sums[place]
            ));
        }
    }
    println!("{compared} proofs are the same in all regions and cover what was allowed");
}

/// A new limit's whole amount can be used from all regions in its next window.
async fn used_up(cluster: &Arc<Cluster>, wrong: &mut Vec<String>) {
    let limit = json!({
        "algorithm": "fixed_window", "quota": QUOTA, "window": format!("{WINDOW_MS}ms"), "mode": "strict",
    });
    let written = cluster.regions[0]
        .admin(Method::PUT, "/admin/v1/limits/afterwards", &limit)
        .await;
    if !written
        .as_ref()
        .is_ok_and(crate::cluster::Answer::is_success)
    {
        wrong.push(format!("a limit cannot be made: {written:?}"));
        return;
    }
    // The first window may be nearly over.
    let next = (cluster.clock.now() / WINDOW_MS + 1) * WINDOW_MS;
    while cluster.clock.now() < next {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let callers: Vec<_> = (0..cluster.regions.len())
        .map(|region| {
            let cluster = Arc::clone(cluster);
            tokio::spawn(async move { take_all(&cluster, region, next).await })
        })
        .collect();
    let mut by_window = BTreeMap::<i64, u64>::new();
    for (region, caller) in callers.into_iter().enumerate() {
        let taken = caller.await.expect("a caller ends");
        if taken.values().sum::<u64>() == 0 {
            wrong.push(format!(
                "{} was granted nothing of a new limit",
                cluster.regions[region].name
            ));
        }
        for (window, units) in taken {
            *by_window.entry(window).or_default() += units;
        }
    }
    let used = by_window.get(&next).copied().unwrap_or(0);
    println!("{used} of {QUOTA} units of a new limit were used from all regions: {by_window:?}");
    if by_window.values().any(|used| *used > QUOTA) || used != QUOTA {
        wrong.push(format!(
            "{by_window:?} units of a new limit were used, of {QUOTA} per window"
        ));
    }
}

/// Asks until the window's answers are refusals; units by window.
async fn take_all(cluster: &Cluster, region: usize, window: i64) -> BTreeMap<i64, u64> {
    let mut taken = BTreeMap::new();
    let body = json!({ "tenant": "acme", "limit": "afterwards" });
    // The last seconds are left out: the clocks may differ by as much.
    while cluster.clock.now() < window + WINDOW_MS - 4_000 {
        if let Ok(answer) = cluster.regions[region].post("/v1/check", None, &body).await
            && answer.status == 200
            && let Some(start) = answer.body["results"][0]["window_start_ms"].as_i64()
        {
            *taken.entry(start).or_default() += 1;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    taken
}
