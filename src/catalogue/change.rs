//! What is appended to the log: one change, who makes it, and the version that it was made against.
//!
//! An [`Entry`] is written as JSON, kept for ever and applied again at every start and on every region,
//! so it holds all that the outcome depends on: no clock, no random source and no other state is asked.

use std::fmt;

use serde::Deserialize;
use serde::Serialize;
use thiserror::Error;
use utoipa::ToSchema;

use crate::catalogue::path::FieldPath;
use crate::catalogue::profile::Profile;
use crate::catalogue::token::NewToken;
use crate::catalogue::tree::KeySpec;
use crate::catalogue::tree::Plan;
use crate::catalogue::tree::Tenant;
use crate::catalogue::tree::Tree;
use crate::domain::limit::LimitSpec;
use crate::domain::name::Key;
use crate::domain::name::LimitName;
use crate::domain::name::PlanName;
use crate::domain::name::ProfileName;
use crate::domain::name::TenantName;

/// Most faults that one answer lists.
pub const FAULTS_MAX: usize = 100;

/// Who makes a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Author {
    /// An administrator.
    Operator {
        /// Id of the token, or a word for the configured one.
        token: String,
    },
    /// A tenant, on its own behalf.
    Tenant {
        /// Which tenant.
        tenant: TenantName,
        /// Id of the token.
        token: String,
    },
}

impl fmt::Display for Author {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Operator { token } => write!(f, "{token}"),
            Self::Tenant { tenant, token } => write!(f, "{token} of tenant {tenant}"),
        }
    }
}

/// One entry of the log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Who.
    pub author: Author,
    /// The catalogue's version that the author has seen; another one refuses the entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_version: Option<u64>,
    /// What.
    pub change: Change,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Change {
    /// The catalogue becomes exactly this.
    Replace {
        /// The whole catalogue.
        tree: Tree,
    },
    /// What is named is created or changed; nothing is deleted.
    Patch {
        /// The named parts.
        tree: Tree,
    },
    /// A limit that holds for every tenant.
    PutLimit {
        /// Which.
        limit: LimitName,
        /// Its definition.
        spec: LimitSpec,
    },
    /// The opposite.
    DeleteLimit {
        /// Which.
        limit: LimitName,
    },
    /// A plan as a whole.
    PutPlan {
        /// Which.
        plan: PlanName,
        /// Its definition.
        definition: Plan,
    },
    /// The opposite; refused while the plan is in use.
    DeletePlan {
        /// Which.
        plan: PlanName,
    },
    /// A tenant as a whole, with its overrides and its own choices.
    PutTenant {
        /// Which.
        tenant: TenantName,
        /// Its definition.
        definition: Tenant,
    },
    /// The opposite.
    DeleteTenant {
        /// Which.
        tenant: TenantName,
    },
    /// A gateway profile as a whole.
    PutProfile {
        /// Which.
        profile: ProfileName,
        /// Its definition.
        definition: Profile,
    },
    /// The opposite.
    DeleteProfile {
        /// Which.
        profile: ProfileName,
    },
    /// What differs for a tenant in one limit; by a tenant itself: its own choice of amounts.
    PutTenantLimit {
        /// Whose.
        tenant: TenantName,
        /// Which.
        limit: LimitName,
        /// The fields that differ.
        spec: LimitSpec,
    },
    /// The opposite, with the overrides of the limit; by a tenant itself: its own choices only.
    DeleteTenantLimit {
        /// Whose.
        tenant: TenantName,
        /// Which.
        limit: LimitName,
    },
    /// What differs for one key.
    PutOverride {
        /// Whose.
        tenant: TenantName,
        /// Of which limit.
        limit: LimitName,
        /// Which key.
        key: Key,
        /// The fields that differ.
        spec: KeySpec,
    },
    /// The opposite; by a tenant itself: its own override only.
    DeleteOverride {
        /// Whose.
        tenant: TenantName,
        /// Of which limit.
        limit: LimitName,
        /// Which key.
        key: Key,
    },
    /// Use goes back to zero.
    Reset {
        /// Whose.
        tenant: TenantName,
        /// Of which limit.
        limit: LimitName,
        /// Of which key; absent: all of the limit.
        key: Option<Key>,
    },
    /// A new access token.
    CreateToken {
        /// The token without its secret.
        token: NewToken,
    },
    /// The end of an access token.
    RevokeToken {
        /// Which.
        id: String,
    },
}

impl Change {
    /// Whether the catalogue's version moves: tokens are kept with it but are not part of the document.
    pub const fn moves_version(&self) -> bool {
        !matches!(self, Self::CreateToken { .. } | Self::RevokeToken { .. })
    }

    /// One line for the audit trail.
    pub fn summary(&self) -> String {
        match self {
            Self::Replace { tree } => format!("replace the catalogue ({})", extent(tree)),
            Self::Patch { tree } => format!("change the catalogue ({})", extent(tree)),
            Self::PutLimit { limit, .. } => format!("set limit {limit}"),
            Self::DeleteLimit { limit } => format!("delete limit {limit}"),
            Self::PutPlan { plan, .. } => format!("set plan {plan}"),
            Self::DeletePlan { plan } => format!("delete plan {plan}"),
            Self::PutTenant { tenant, .. } => format!("set tenant {tenant}"),
            Self::DeleteTenant { tenant } => format!("delete tenant {tenant}"),
            Self::PutProfile { profile, .. } => format!("set profile {profile}"),
            Self::DeleteProfile { profile } => format!("delete profile {profile}"),
            Self::PutTenantLimit { tenant, limit, .. } => {
                format!("set limit {limit} of tenant {tenant}")
            }
            Self::DeleteTenantLimit { tenant, limit } => {
                format!("delete limit {limit} of tenant {tenant}")
            }
            Self::PutOverride {
                tenant, limit, key, ..
            } => {
                format!(
                    "set the override of {} in limit {limit} of tenant {tenant}",
                    quoted(key)
                )
            }
            Self::DeleteOverride { tenant, limit, key } => {
                let key = quoted(key);
                format!("delete the override of {key} in limit {limit} of tenant {tenant}")
            }
            Self::Reset {
                tenant,
                limit,
                key: Some(key),
            } => {
                format!("reset {} in limit {limit} of tenant {tenant}", quoted(key))
            }
            Self::Reset {
                tenant,
                limit,
                key: None,
            } => {
                format!("reset limit {limit} of tenant {tenant}")
            }
            Self::CreateToken { token } => {
                let scope = token.scope.as_str();
                format!("create {scope} token {}", token.id)
            }
            Self::RevokeToken { id } => format!("revoke token {id}"),
        }
    }
}

fn extent(tree: &Tree) -> String {
    let Tree {
        limits,
        plans,
        tenants,
        ..
    } = tree;
    format!(
        "{} limits, {} plans, {} tenants",
        limits.len(),
        plans.len(),
        tenants.len()
    )
}

/// A key as it may stand in a line of text: control characters escaped.
fn quoted(key: &Key) -> String {
    serde_json::Value::from(key.as_str()).to_string()
}

/// One fault in what was sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FieldError {
    /// Which field, as in `limits.exports.window`.
    pub path: String,
    /// What is wrong and what to do.
    pub message: String,
}

impl FieldError {
    /// A fault of the field at `path`.
    pub fn new(path: &FieldPath, message: impl Into<String>) -> Self {
        Self {
            path: path.to_string(),
            message: message.into(),
        }
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}

/// Why an entry changes nothing.
#[derive(Clone, Debug, Error, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refused {
    /// What was sent is wrong in itself or does not fit the rest; at most [`FAULTS_MAX`] faults.
    #[error("{}", first(.0))]
    Invalid(Vec<FieldError>),
    /// The thing to be changed is not there.
    #[error("{0}")]
    NotFound(String),
    /// The thing to be deleted is needed by others.
    #[error("{0}")]
    InUse(String),
    /// Somebody else was faster.
    #[error("the catalogue is at version {current} now; read it again and repeat the change")]
    VersionMismatch {
        /// The version now.
        current: u64,
    },
    /// The author may not do this.
    #[error("{0}")]
    Forbidden(String),
}

impl Refused {
    /// One fault of the field at `path`.
    pub fn field(path: &FieldPath, message: impl Into<String>) -> Self {
        Self::Invalid(vec![FieldError::new(path, message)])
    }
}

fn first(faults: &[FieldError]) -> String {
    match faults {
        [] => "invalid".to_owned(),
        [fault] => fault.to_string(),
        [fault, rest @ ..] => format!("{fault} (and {} more)", rest.len()),
    }
}

/// Counters that start from zero because of a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NewEpoch {
    /// Of which limit.
    #[schema(value_type = String)]
    pub limit: LimitName,
    /// Of all tenants of this plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub plan: Option<PlanName>,
    /// Of this tenant. Neither plan nor tenant: of all tenants without a plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub tenant: Option<TenantName>,
    /// Of this key only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub key: Option<Key>,
}

/// What a change did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Applied {
    /// The catalogue's version after it.
    pub version: u64,
    /// What the author should know.
    pub warnings: Vec<String>,
    /// Counters that start from zero; the first [`FAULTS_MAX`], a warning tells how many more.
    pub new_epochs: Vec<NewEpoch>,
}
