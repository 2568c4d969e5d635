//! Gateway profiles: which check a request means that a gateway asks about.
//!
//! A gateway asks with the headers, method and path of the request that it holds back, and with no body of
//! ours. A profile says where the tenant, the action, the keys and the cost are found in it, so a team changes
//! a limit's key in the catalogue and not in its gateways.
//!
//! [`Profile`] is what is written, [`Gateway`] what checks use; [`request`] finds the values. All of it is pure.

pub mod network;
pub mod request;
mod template;

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::Serialize;
use utoipa::ToSchema;

use crate::catalogue::change::FieldError;
use crate::catalogue::path::FieldPath;
use crate::catalogue::profile::network::Network;
use crate::catalogue::profile::template::Template;
use crate::domain::limit::AMOUNT_MAX;

/// The status of a refusal where a profile names none.
pub const DENY_STATUS: u16 = 429;
/// Most keys of one profile.
const KEYS_MAX: usize = 64;
/// Most networks of trusted hops of one profile.
const TRUSTED_HOPS_MAX: usize = 64;
/// Hops are trusted on the machine itself where a profile names none.
const LOOPBACK: [&str; 2] = ["127.0.0.0/8", "::1"];

/// What a gateway asks. `tenant`, `action`, `cost` and the values of `keys` are `header:NAME`, `query:NAME`,
/// `path`, `method`, `client_ip`, `client_ip/64` (an IPv6 address cut to its network), `literal:TEXT`, or any
/// other text, which stands for itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Whose limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, example = "header:X-Tenant")]
    pub tenant: Option<String>,
    /// Which of them: those whose `actions` have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, example = "api")]
    pub action: Option<String>,
    /// By the key label of a limit, where its key is found. Limits whose key is absent are skipped.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(example = json!({ "ip": "client_ip/64", "user": "header:X-User" }))]
    pub keys: BTreeMap<String, String>,
    /// Units: a number, or where one is found. Absent: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
    /// The status of a refusal, 400 to 599. Absent: 429. nginx passes on 401 and 403 only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = 403)]
    pub deny_status: Option<u16>,
    /// What a gateway is told when this region cannot decide. Absent: `deny`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_error: Option<OnError>,
    /// Where the gateway tells of the request that it holds back. Absent: `auto`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub original: Option<Original>,
    /// Networks whose word on the original request and on client addresses is taken. Absent: the machine itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = json!(["127.0.0.0/8", "10.0.0.0/8"]))]
    pub trusted_hops: Option<Vec<String>>,
}

/// How many units a request costs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Cost {
    /// Always so many.
    Units(u64),
    /// As many as stand there.
    From(String),
}

/// What a gateway is told when this region cannot decide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnError {
    /// 200, and `X-Quota-Decision: error`.
    Allow,
    /// 503.
    #[default]
    Deny,
}

/// Where a gateway tells of the request that it holds back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Original {
    /// Below the profile's path: the request itself. At the path: in whichever of the two families of headers is
    /// there; a request with both is refused, since one of them is the client's.
    #[default]
    Auto,
    /// The request to this region is the original one, with its path below the profile's (Envoy, Istio).
    Request,
    /// In `X-Forwarded-Method` and `X-Forwarded-Uri` (Traefik, Caddy, APISIX).
    XForwarded,
    /// In `X-Original-Method`, and `X-Original-URI` or `X-Original-URL` (nginx).
    XOriginal,
}

/// A profile as checks use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gateway {
    tenant: Template,
    action: Template,
    keys: Vec<(String, Template)>,
    cost: Units,
    /// The status of a refusal.
    pub deny_status: u16,
    /// What a gateway is told when this region cannot decide.
    pub on_error: OnError,
    original: Original,
    trusted_hops: Vec<Network>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Units {
    Fixed(u64),
    From(Template),
}

impl Gateway {
    /// What `profile`, which stands at `path`, means.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn compile(path: &FieldPath, profile: &Profile) -> Result<Self, Vec<FieldError>> {
        let mut faults = Vec::new();
        let mut fault = |path: &FieldPath, message: String| {
            faults.push(FieldError::new(path, message));
        };
        let mut template = |path: &FieldPath, text: &str| match Template::parse(text) {
            Ok(template) => template,
            Err(message) => {
                fault(path, message);
                Template::Path
            }
        };
        let mut needed = |name: &str, text: Option<&String>| {
            template(&path.with(name), text.map_or("", String::as_str))
        };
        let tenant = needed("tenant", profile.tenant.as_ref());
        let action = needed("action", profile.action.as_ref());
        let keys = profile
            .keys
            .iter()
            .map(|(label, text)| {
                (
                    label.clone(),
                    template(&path.with("keys").with(label), text),
                )
            })
            .collect();
        let cost = match &profile.cost {
            None => Units::Fixed(1),
            Some(Cost::Units(units)) => Units::Fixed(*units),
            Some(Cost::From(text)) => Units::From(template(&path.with("cost"), text)),
        };
        if matches!(cost, Units::Fixed(units) if units > AMOUNT_MAX) {
            fault(
                &path.with("cost"),
                format!("must be at most {AMOUNT_MAX} (2^53 - 1)"),
            );
        }
        if let Units::From(Template::Literal(text)) = &cost {
            fault(
                &path.with("cost"),
                format!(
                    "{text:?} is neither a number nor a place in the request, as in \"header:X-Cost\""
                ),
            );
        }
        if profile.keys.len() > KEYS_MAX {
            fault(
                &path.with("keys"),
                format!("must have at most {KEYS_MAX} keys"),
            );
        }
        let deny_status = profile.deny_status.unwrap_or(DENY_STATUS);
        if !(400..=599).contains(&deny_status) {
            fault(
                &path.with("deny_status"),
                format!("must be 400 to 599, as 429 or 403, not {deny_status}"),
            );
        }
        let mut trusted_hops = Vec::new();
        match &profile.trusted_hops {
            None => trusted_hops.extend(LOOPBACK.iter().filter_map(|text| Network::parse(text))),
            Some(texts) => {
                let path = path.with("trusted_hops");
                if texts.len() > TRUSTED_HOPS_MAX {
                    fault(
                        &path,
                        format!("must have at most {TRUSTED_HOPS_MAX} networks"),
                    );
                }
                for text in texts {
                    match Network::parse(text) {
                        Some(network) => trusted_hops.push(network),
                        None => fault(
                            &path,
                            format!("{text:?} is not a network, as in \"10.0.0.0/8\""),
                        ),
                    }
                }
            }
        }
        if !faults.is_empty() {
            return Err(faults);
        }
        Ok(Self {
            tenant,
            action,
            keys,
            cost,
            deny_status,
            on_error: profile.on_error.unwrap_or_default(),
            original: profile.original.unwrap_or_default(),
            trusted_hops,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn compile(value: &serde_json::Value) -> Result<Gateway, Vec<String>> {
        let profile: Profile = serde_json::from_value(value.clone()).expect("of the form");
        Gateway::compile(&FieldPath::root().with("profiles").with("p"), &profile).map_err(
            |faults| {
                faults
                    .into_iter()
                    .map(|fault| fault.path)
                    .collect::<Vec<_>>()
            },
        )
    }

    #[test]
    fn a_short_profile_has_safe_defaults() {
        let gateway = compile(&json!({ "tenant": "acme", "action": "api" })).expect("a profile");
        assert_eq!(gateway.deny_status, 429);
        assert_eq!(gateway.on_error, OnError::Deny);
        assert_eq!(gateway.original, Original::Auto);
        assert_eq!(gateway.cost, Units::Fixed(1));
        let trusts = |text: &str| {
            let address = text.parse().expect("an address");
            gateway.trusted_hops.iter().any(|net| net.contains(address))
        };
        assert!(trusts("127.0.0.1") && trusts("::1"));
        assert!(!trusts("10.0.0.1"));
    }

    #[test]
    fn every_fault_is_told_with_its_field() {
        let faults = compile(&json!({
            "action": "header:",
            "keys": { "ip": "client_ip/129", "user": "header:a b", "doc": "query:" },
            "cost": "many",
            "deny_status": 200,
            "trusted_hops": ["10.0.0.0/33", "proxy"],
        }))
        .expect_err("faults");
        assert_eq!(
            faults,
            [
                "profiles.p.tenant",
                "profiles.p.action",
                "profiles.p.keys.doc",
                "profiles.p.keys.ip",
                "profiles.p.keys.user",
                "profiles.p.cost",
                "profiles.p.deny_status",
                "profiles.p.trusted_hops",
                "profiles.p.trusted_hops",
            ]
        );
    }
}
