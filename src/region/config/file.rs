//! A region's file as it is written: every key optional, every value with its place in the text.
//!
//! An unknown key anywhere is an error, so that a misspelt bound is never silently the default.

use serde::Deserialize;
use toml::Spanned;

/// A key that may be left out.
pub type Given<T> = Option<Spanned<T>>;

/// The whole file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct File {
    pub cluster: Given<String>,
    pub region: Given<String>,
    pub data_dir: Given<String>,
    pub listen: Listen,
    pub resp: Resp,
    pub auth: Auth,
    pub store: Store,
    pub memory: Memory,
    pub idempotency: Idempotency,
    pub replication: Replication,
    pub strict: Strict,
    pub metrics: Metrics,
    pub faults: Faults,
    pub headers: Headers,
    pub peers: Vec<Peer>,
}

/// `listen.…`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Listen {
    pub check: Given<String>,
    pub admin: Given<String>,
    pub peer: Given<String>,
    pub grpc: Given<String>,
    pub resp: Given<String>,
}

/// `resp.…`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Resp {
    pub tenant: Given<String>,
}

/// `auth.…`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Auth {
    pub admin_token: Given<String>,
    pub admin_token_file: Given<String>,
    pub peer_secret: Given<String>,
    pub peer_secret_file: Given<String>,
    pub check: Given<String>,
}

/// `store.…`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Store {
    pub flush_interval: Given<String>,
}

/// `memory.…`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Memory {
    pub max_keys: Given<u64>,
    pub max_keys_per_tenant: Given<u64>,
}

/// `idempotency.…`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Idempotency {
    pub retention: Given<String>,
    pub max_keys: Given<u64>,
}

/// `replication.…`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Replication {
    pub interval: Given<String>,
}

/// `strict.…`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Strict {
    pub keep_closed: Given<String>,
}

/// `metrics.…`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Metrics {
    pub endpoints: Given<Vec<String>>,
    pub token: Given<String>,
    pub token_file: Given<String>,
}

/// `faults.…`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Faults {
    pub enabled: Given<bool>,
}

/// `headers.…`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Headers {
    pub style: Given<Vec<String>>,
}

/// One `[[peers]]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peer {
    pub region: Spanned<String>,
    pub url: Spanned<String>,
    pub latency: Given<String>,
}
