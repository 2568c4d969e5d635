//! Waits until the regions of `dev` are one cluster, and makes its demo limits.

use std::time::Duration;

use anyhow::Context;
use reqwest::Method;
use serde_json::Value;
use tokio::time::sleep;
use tokio::time::timeout;

use crate::cli::client::Client;
use crate::cli::client::DEV_TOKEN;
use crate::region::config::secret::Secret;

use super::demo;
use super::plan::Plan;
use super::plan::RegionPlan;

/// How long the regions may take to find each other and to elect a leader.
const FORMED_WITHIN: Duration = Duration::from_secs(60);
const LOOK_STEP: Duration = Duration::from_millis(50);

/// Waits until every region belongs to the cluster, knows the leader and can be granted units.
///
/// # Errors
/// When that takes too long.
pub async fn formed(plan: &Plan) -> anyhow::Result<()> {
    let is_in = |status: &Value| {
        status["ready"] == true && status["enrolled"] == true && !status["leader"].is_null()
    };
    for region in &plan.regions {
        wait(region, is_in, "has no leader to follow").await?;
    }
    Ok(())
}

/// Makes the demo limits, once, and waits until every region has them. They stay as they are when they are
/// made already.
///
/// # Errors
/// When they are refused, or a region does not get them.
pub async fn with_demo_limits(plan: &Plan) -> anyhow::Result<()> {
    let Some(first) = plan.regions.first() else {
        return Ok(());
    };
    let path = ["admin", "v1", "catalogue"];
    let made = client(first)?
        .call(Method::PATCH, &path, &[], Some(&demo::catalogue()), None)
        .await?
        .success()
        .context("the demo limits cannot be made")?;
    let version = made.version.unwrap_or(0);
    let has_them = |status: &Value| status["catalogue_version"].as_u64() >= Some(version);
    for region in &plan.regions {
        wait(region, has_them, "has not got the demo limits").await?;
    }
    Ok(())
}

fn client(region: &RegionPlan) -> anyhow::Result<Client> {
    Client::to(
        &format!("http://{}", region.admin()),
        Some(&Secret::new(DEV_TOKEN)),
    )
}

async fn wait(
    region: &RegionPlan,
    is_there: impl Fn(&Value) -> bool,
    lacks: &str,
) -> anyhow::Result<()> {
    let client = client(region)?;
    let seen = async {
        loop {
            let path = ["admin", "v1", "cluster"];
            let status = client.get(&path, &[]).await?.success()?.body;
            if is_there(&status) {
                return anyhow::Ok(());
            }
            sleep(LOOK_STEP).await;
        }
    };
    timeout(FORMED_WITHIN, seen).await.with_context(|| {
        format!(
            "region {} {lacks} after {} s; data of other regions than these? Give --data-dir a new directory, or \
             --regions as many as it was made with",
            region.name,
            FORMED_WITHIN.as_secs()
        )
    })?
}
