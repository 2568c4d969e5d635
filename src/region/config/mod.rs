//! A region's configuration: its file, the environment and the flags, resolved into one value.
//!
//! Precedence is flag > environment > file > default. Unknown settings are errors wherever they stand, and
//! every error names the setting, the file and the line (or the variable), and says what to do. Relative
//! paths are relative to the working directory. Port 0 lets the system choose.
//!
//! - [`document`]: a TOML text and where its keys stand.
//! - `file`: the file as it is written.
//! - [`resolve`]: who wins, and what is wrong.
//! - `settle`: every setting with its default and its bounds.
//! - [`secret`]: what is never printed.

pub mod document;
mod file;
pub mod resolve;
pub mod secret;
mod settle;

#[cfg(test)]
mod tests;

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::path::PathBuf;

use thiserror::Error;

use crate::domain::name::RegionName;
use crate::domain::name::TenantName;
use crate::domain::time::Span;

use document::Document;
use file::File;
use resolve::Problem;
use resolve::Resolved;
use secret::Secret;

pub use settle::peer_address;

/// The most values of the label `endpoint` that a region lets through.
pub const ENDPOINTS_MAX: usize = 100;
/// The most bytes of a region's file.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A region's configuration, resolved and checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// The cluster's name: regions of different clusters never speak to each other.
    pub cluster: String,
    /// This region.
    pub region: RegionName,
    /// Where everything that must survive a restart is kept.
    pub data_dir: PathBuf,
    /// The listeners' addresses.
    pub listen: Listen,
    /// The tenant of Redis clients that name none.
    pub resp_tenant: Option<TenantName>,
    /// Who may do what.
    pub auth: Auth,
    /// How long a charge of an `async` limit may be in memory only.
    pub flush_interval: Span,
    /// Bounds on live keys.
    pub memory: Memory,
    /// How long, and how many, answers are remembered.
    pub idempotency: Idempotency,
    /// How often regions tell each other what they counted.
    pub replication_interval: Span,
    /// How long closed windows of strict limits are kept.
    pub strict_keep_closed: Span,
    /// What `/metrics` shows, and to whom.
    pub metrics: Metrics,
    /// Whether faults can be injected.
    pub faults_enabled: bool,
    /// The rate-limit headers of an answer, in order; empty: none.
    pub header_styles: Vec<HeaderStyle>,
    /// Every other region, by address.
    pub peers: Vec<Peer>,
    /// What the operator should know though it is no error.
    pub warnings: Vec<String>,
    resolved: Vec<Resolved>,
}

/// The listeners' addresses.
#[derive(Clone, Debug)]
pub struct Listen {
    /// The check API.
    pub check: SocketAddr,
    /// The admin API; serves the check routes too.
    pub admin: SocketAddr,
    /// The other regions.
    pub peer: SocketAddr,
    /// Redis clients; `None`: they are not served.
    pub resp: Option<SocketAddr>,
    /// The rate limit service over gRPC; `None`: there is none.
    pub grpc: Option<SocketAddr>,
}

/// Who may do what.
#[derive(Clone, Debug)]
pub struct Auth {
    /// The token of full scope. `None`: only tokens that were made before are accepted.
    pub admin_token: Option<Secret>,
    /// What regions prove their membership with.
    pub peer_secret: Option<Secret>,
    /// Who may check.
    pub check: CheckAuth,
}

/// Who may check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckAuth {
    /// Whoever reaches the listener.
    Open,
    /// Whoever has a token of scope `check`.
    Token,
}

/// Bounds on live keys.
#[derive(Clone, Debug)]
pub struct Memory {
    /// In all.
    pub max_keys: u64,
    /// Of one tenant.
    pub max_keys_per_tenant: u64,
}

/// How long, and how many, answers are remembered.
#[derive(Clone, Debug)]
pub struct Idempotency {
    /// How long.
    pub retention: Span,
    /// How many.
    pub max_keys: u64,
}

/// What `/metrics` shows, and to whom.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Values of the label `endpoint` that are let through; all others become `other`.
    pub endpoints: Vec<String>,
    /// Who may read; `None`: whoever reaches the admin listener.
    pub token: Option<Secret>,
}

/// One family of rate-limit headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderStyle {
    /// `RateLimit-Policy`, `RateLimit`.
    Ietf,
    /// `X-RateLimit-Limit`, `-Remaining`, `-Reset` (Unix seconds).
    Github,
    /// `RateLimit-Limit`, `-Remaining`, `-Reset` (seconds from now).
    Legacy,
}

/// Which families of headers answers carry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeaderStyles {
    /// [`HeaderStyle::Ietf`].
    pub ietf: bool,
    /// [`HeaderStyle::Github`].
    pub github: bool,
    /// [`HeaderStyle::Legacy`].
    pub legacy: bool,
}

impl HeaderStyles {
    /// The families of a list.
    pub fn new(styles: &[HeaderStyle]) -> Self {
        let has = |style: HeaderStyle| styles.contains(&style);
        Self {
            ietf: has(HeaderStyle::Ietf),
            github: has(HeaderStyle::Github),
            legacy: has(HeaderStyle::Legacy),
        }
    }
}

/// Another region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its name.
    pub region: RegionName,
    /// Its peer listener.
    pub url: String,
    /// A delay that is added to all that is sent to it, for development; zero in production.
    pub latency: Span,
}

/// Why there is no configuration.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file cannot be read at all.
    #[error("{file} cannot be read: {reason}")]
    Unreadable {
        /// The file.
        file: String,
        /// Why.
        reason: String,
    },
    /// It can, and this is what is wrong.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Invalid(Vec<Problem>),
}

/// What stands above the file: variables of the environment, and flags as (setting, value).
#[derive(Clone, Debug, Default)]
pub struct Above {
    /// Variables of the environment.
    pub env: Vec<(String, String)>,
    /// Settings given as flags.
    pub flags: Vec<(String, String)>,
}

impl Config {
    /// Reads the file at `path` and lays `above` over it.
    ///
    /// # Errors
    /// When the file cannot be read or anything in it, the environment or the flags is wrong.
    pub fn load(path: &Path, above: Above) -> Result<Self, ConfigError> {
        let file = path.display().to_string();
        let unreadable = |reason: String| ConfigError::Unreadable {
            file: file.clone(),
            reason,
        };
        let metadata = std::fs::metadata(path).map_err(|error| unreadable(error.to_string()))?;
        if metadata.len() > FILE_BYTES_MAX {
            return Err(unreadable(format!(
                "it is larger than {FILE_BYTES_MAX} bytes"
            )));
        }
        let text = std::fs::read_to_string(path).map_err(|error| unreadable(error.to_string()))?;
        Self::resolve(&file, &text, above).map_err(ConfigError::Invalid)
    }

    /// Resolves the text of the file named `file` with `above` laid over it.
    ///
    /// # Errors
    /// Everything that is wrong.
    pub fn resolve(file: &str, text: &str, above: Above) -> Result<Self, Vec<Problem>> {
        let overlay = resolve::overlay(above.env, above.flags);
        let document = Document::parse(text).map_err(|fault| {
            vec![Problem {
                place: format!("{file}:{}", fault.line),
                key: String::new(),
                message: format!("not TOML: {}", fault.message),
            }]
        })?;
        let written: File =
            toml::from_str(text).map_err(|error| vec![refused(file, &document, &error)])?;
        settle::settle(file, &document, written, overlay)
    }

    /// The resolved configuration as TOML without secrets, each line with where it comes from.
    pub fn to_toml(&self) -> String {
        let mut lines: Vec<String> = self.resolved.iter().map(line_of).collect();
        for peer in &self.peers {
            let url = toml::Value::String(peer.url.clone());
            lines.push(format!(
                "\n[[peers]]\nregion = \"{}\"\nurl = {url}",
                peer.region
            ));
            if !peer.latency.is_zero() {
                lines.push(format!("latency = \"{}\"", peer.latency));
            }
        }
        lines.join("\n") + "\n"
    }
}

fn line_of(resolved: &Resolved) -> String {
    let Resolved { key, value, origin } = resolved;
    match value {
        Some(value) => format!("{:<60} # {origin}", format!("{key} = {value}")),
        None => format!("# {key} is set ({origin})"),
    }
}

/// What the file's reader refused: an unknown key or a value of the wrong kind.
fn refused(file: &str, document: &Document<'_>, error: &toml::de::Error) -> Problem {
    let span = error.span().unwrap_or(0..0);
    let message = error
        .message()
        .trim_end()
        .replace("expected u64", "expected a whole number, 0 or more");
    Problem {
        place: format!("{file}:{}", document.line_of_offset(span.start)),
        key: document.path_at(&span).unwrap_or_default(),
        message: message.replace("unknown field", "unknown key"),
    }
}

impl fmt::Display for HeaderStyle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ietf => "ietf",
            Self::Github => "github",
            Self::Legacy => "legacy",
        })
    }
}
