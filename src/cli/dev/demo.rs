//! The demo limits of `dev`, and the lines that say how to try them.

use std::path::Path;

use serde_json::Value;
use serde_json::json;

use crate::cli::client::DEV_SERVER;
use crate::cli::client::DEV_TOKEN;
use crate::cli::output;

use super::plan::Plan;
use super::plan::RegionPlan;

/// The demo tenant's limits.
pub fn catalogue() -> Value {
    json!({
        "tenants": { "demo": { "limits": {
            "regional-api": {
                "algorithm": "token_bucket", "capacity": 100, "refill": 10, "per": "1s", "key": "user", "mode": "regional",
            },
            "global-api": {
                "algorithm": "sliding_window", "quota": 100, "window": "1m", "key": "user", "mode": "approximate",
            },
            "billing-exports": {
                "algorithm": "calendar_window", "quota": 10, "period": "day", "key": "user", "mode": "strict",
            },
        } } },
    })
}

/// What is printed when all regions are ready.
pub fn welcome(plan: &Plan, kept: Option<&Path>) -> String {
    let header = ["REGION", "CHECK", "ADMIN", "GRPC", "REDIS"].map(str::to_owned);
    let line = |region: &RegionPlan| {
        vec![
            region.name.to_owned(),
            format!("http://{}", region.check()),
            format!("http://{}", region.admin()),
            region.grpc().to_string(),
            region.resp().to_string(),
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
    text.push_str(LIMITS);
    if let [first, ..] = plan.regions.as_slice() {
        text.push_str(&curl_lines(first, plan.regions.get(1).unwrap_or(first)));
    }
    if let [first, ..] = plan.regions.as_slice() {
        text.push_str(&commands(first));
    }
    text.push_str("\nCtrl-C stops all regions.\n");
    text
}

const LIMITS: &str = "\n\
Limits of tenant demo, each for every user:
  regional-api     bucket of 100, 10 a second     each region counts alone
  global-api       100 a minute, approximate      one limit for all regions, and no check waits
  billing-exports  10 a day, strict               one limit for all regions, never exceeded
";

/// Commands to try; where the regions are not where commands look for them, what tells where they are.
fn commands(first: &RegionPlan) -> String {
    let server = format!("http://{}", first.admin());
    let mut text = "\n".to_owned();
    if server != DEV_SERVER {
        text.push_str(&format!(
            "export HIGHWATER_SERVER={server} HIGHWATER_TOKEN={DEV_TOKEN}\n"
        ));
    }
    text.push_str(&format!(
        "\
highwater status                                  regions, leader, lag
highwater ledger demo billing-exports alice       who was granted and spent how much
highwater leader transfer {name:<22}  hand the lead over
",
        name = first.name
    ));
    text
}

/// Three lines that work as they are: a check, a strict check in `other`, and a limit of one's own.
fn curl_lines(first: &RegionPlan, other: &RegionPlan) -> String {
    let (check, admin) = (first.check(), first.admin());
    let (other_check, other_name) = (other.check(), other.name);
    format!(
        "\n\
# one check, counted in {name}
curl -si http://{check}/v1/check -d '{{\"tenant\":\"demo\",\"limit\":\"regional-api\",\"key\":\"alice\"}}'

# one of alice's 10 exports a day, the same 10 in every region; asked in {other_name}
curl -s http://{other_check}/v1/check -d '{{\"tenant\":\"demo\",\"limit\":\"billing-exports\",\"key\":\"alice\"}}'

# a limit of your own, in force in all regions: 5 an hour
curl -s -X PUT http://{admin}/admin/v1/tenants/demo/limits/hourly -H 'authorization: Bearer {DEV_TOKEN}' -d '{{\"algorithm\":\"fixed_window\",\"quota\":5,\"window\":\"1h\"}}'
",
        name = first.name
    )
}

#[cfg(test)]
mod tests {
    use crate::domain::duration;
    use crate::domain::limit::LimitSpec;
    use crate::domain::limit::Mode;

    use super::*;

    fn plan() -> Plan {
        let latency = duration::parse("40ms").expect("a duration");
        Plan::new(3, 7100, Path::new("/d"), latency, "s".to_owned()).expect("fits")
    }

    #[test]
    fn the_demo_limits_are_limits() {
        let limits = catalogue()["tenants"]["demo"]["limits"].clone();
        let of = |name: &str| -> LimitSpec {
            serde_json::from_value(limits[name].clone()).expect("a limit")
        };
        assert_eq!(of("regional-api").capacity, Some(100));
        assert_eq!(of("global-api").mode, Some(Mode::Approximate));
        let exports = of("billing-exports");
        assert_eq!(
            (exports.quota, exports.mode),
            (Some(10), Some(Mode::Strict))
        );
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
            text.contains(
                "us-east-1   http://127.0.0.1:7110  http://127.0.0.1:7111  127.0.0.1:7113  127.0.0.1:7114\n"
            ),
            "{text}"
        );
    }

    #[test]
    fn the_strict_limit_is_spent_in_another_region() {
        let text = welcome(&plan(), None);
        let line = text
            .lines()
            .find(|line| line.contains("\"billing-exports\""));
        assert!(
            line.expect("a line").contains("http://127.0.0.1:7120/"),
            "{text}"
        );
    }

    #[test]
    fn the_delay_and_which_limits_are_shared_are_said() {
        let text = welcome(&plan(), None);
        assert!(text.contains("approximate      one limit for all regions, and no check waits"));
        assert!(text.contains("take 40ms one way"));
    }
}
