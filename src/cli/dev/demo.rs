//! The demo limits of `dev`, and the lines that say how to try them.

use std::path::Path;

use reqwest::Method;
use serde_json::Value;
use serde_json::json;

use crate::cli::client::Client;
use crate::cli::client::DEV_TOKEN;
use crate::cli::output;
use crate::region::config::secret::Secret;

use super::plan::Plan;
use super::plan::RegionPlan;

/// The demo tenant's limits.
pub fn catalogue() -> Value {
    json!({
        "tenants": { "demo": { "limits": {
            "regional-api": {
                "algorithm": "token_bucket", "capacity": 100, "refill": 10, "per": "1s", "key": "user", "mode": "regional",
            },
        } } },
    })
}

/// Makes the demo limits in a region. They stay as they are where they are made already.
///
/// # Errors
/// When the region refuses them.
pub async fn apply(region: &RegionPlan) -> anyhow::Result<()> {
    let client = Client::to(
        &format!("http://{}", region.admin()),
        Some(Secret::new(DEV_TOKEN)),
    )?;
    let path = ["admin", "v1", "catalogue"];
    client
        .call(Method::PATCH, &path, &[], Some(&catalogue()), None)
        .await?
        .success()?;
    Ok(())
}

/// What is printed when all regions are ready.
pub fn welcome(plan: &Plan, kept: Option<&Path>) -> String {
    let header = ["REGION", "CHECK", "ADMIN"].map(str::to_owned);
    let line = |region: &RegionPlan| {
        vec![
            region.name.to_owned(),
            format!("http://{}", region.check()),
            format!("http://{}", region.admin()),
        ]
    };
    let lines: Vec<Vec<String>> = plan.regions.iter().map(line).collect();
    let mut text = output::aligned(&header, &lines);
    let data = kept.map_or_else(|| "temporary".to_owned(), |dir| dir.display().to_string());
    text.push_str(&format!(
        "\nAdmin token: {DEV_TOKEN}   Data: {data}   Faults can be injected\n"
    ));
    if plan.regions.len() > 1 {
        text.push_str(&format!(
            "Messages between regions take {} one way\n",
            plan.latency
        ));
    }
    text.push_str("Limits that regions share (approximate, strict) are not available in this build; each region counts alone.\n");
    if let Some(first) = plan.regions.first() {
        text.push_str(&curl_lines(first));
    }
    text.push_str("\nCtrl-C stops all regions.\n");
    text
}

/// Three lines that work as they are: a check, the use of a limit, and a limit of one's own.
fn curl_lines(region: &RegionPlan) -> String {
    let (check, admin) = (region.check(), region.admin());
    format!(
        "\n\
# one check of the demo limit
curl -si http://{check}/v1/check -d '{{\"tenant\":\"demo\",\"limit\":\"regional-api\",\"key\":\"alice\"}}'

# what alice has used
curl -s 'http://{check}/v1/usage?tenant=demo&limit=regional-api&key=alice'

# a limit of your own: 5 an hour
curl -s -X PUT http://{admin}/admin/v1/tenants/demo/limits/hourly -H 'authorization: Bearer {DEV_TOKEN}' -d '{{\"algorithm\":\"fixed_window\",\"quota\":5,\"window\":\"1h\"}}'
"
    )
}

#[cfg(test)]
mod tests {
    use crate::domain::duration;
    use crate::domain::limit::LimitSpec;

    use super::*;

    fn plan() -> Plan {
        let latency = duration::parse("40ms").expect("a duration");
        Plan::new(3, 7100, Path::new("/d"), latency, "s".to_owned()).expect("fits")
    }

    #[test]
    fn the_demo_limit_is_a_limit() {
        let spec = catalogue()["tenants"]["demo"]["limits"]["regional-api"].clone();
        let spec: LimitSpec = serde_json::from_value(spec).expect("a limit");
        assert_eq!(spec.capacity, Some(100));
    }

    #[test]
    fn three_lines_can_be_copied() {
        let text = welcome(&plan(), None);
        assert_eq!(
            text.lines()
                .filter(|line| line.starts_with("curl "))
                .count(),
            3
        );
        let body = text
            .split("-d '")
            .nth(1)
            .and_then(|rest| rest.split('\'').next())
            .expect("a body");
        let body: Value = serde_json::from_str(body).expect("JSON");
        assert_eq!(body["limit"], "regional-api");
        assert!(
            text.contains("us-east-1   http://127.0.0.1:7110  http://127.0.0.1:7111\n"),
            "{text}"
        );
    }

    #[test]
    fn the_delay_and_what_this_build_lacks_are_said() {
        let text = welcome(&plan(), None);
        assert!(text.contains("not available in this build"));
        assert!(text.contains("take 40ms one way"));
    }
}
