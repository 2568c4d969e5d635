//! Every setting of a region: its default, how it is read, its bounds, and what it must agree with.

use std::net::IpAddr;
use std::net::SocketAddr;
use std::path::Path;
use std::path::PathBuf;

use toml::Spanned;

use crate::domain::duration;
use crate::domain::name::InvalidName;
use crate::domain::name::RegionName;
use crate::domain::name::TenantName;
use crate::domain::time::Span;
use crate::peer::PEERS_MAX;
use crate::peer::faults::DELAY_MAX;

use super::Auth;
use super::CheckAuth;
use super::Config;
use super::ENDPOINTS_MAX;
use super::HeaderStyle;
use super::Idempotency;
use super::Listen;
use super::Memory;
use super::Metrics;
use super::Peer;
use super::document::Document;
use super::file;
use super::file::File;
use super::file::Given;
use super::resolve::Origin;
use super::resolve::Overlay;
use super::resolve::Problem;
use super::resolve::Resolver;
use super::secret;
use super::secret::Secret;

/// Resolves every setting of the file `written`, of which `document` is the text.
///
/// # Errors
/// Everything that is wrong.
pub fn settle(
    file: &str,
    document: &Document<'_>,
    written: File,
    overlay: Overlay,
) -> Result<Config, Vec<Problem>> {
    let mut resolver = Resolver::new(file, document, overlay);
    let mut warnings = Vec::new();
    let r = &mut resolver;
    let cluster = r.text("cluster", written.cluster, Some("highwater"), cluster_name);
    let region = r.text("region", written.region, Some(""), region_name);
    let default_dir = region
        .as_ref()
        .map_or_else(|| "data".to_owned(), |region| format!("data/{region}"));
    let data_dir = r.text("data_dir", written.data_dir, Some(&default_dir), directory);
    let listen = listen(r, written.listen);
    let resp_tenant = r.text("resp.tenant", written.resp.tenant, None, tenant_name);
    let auth = auth(r, written.auth, &mut warnings);
    let flush_interval = span(
        r,
        "store.flush_interval",
        written.store.flush_interval,
        "100ms",
        ("1ms", "1m"),
    );
    let memory = memory(r, written.memory);
    let retention = span(
        r,
        "idempotency.retention",
        written.idempotency.retention,
        "24h",
        ("1s", "30d"),
    );
    let idempotency_keys = r.integer(
        "idempotency.max_keys",
        written.idempotency.max_keys,
        1_000_000,
        1..=1_000_000_000,
    );
    let interval = span(
        r,
        "replication.interval",
        written.replication.interval,
        "100ms",
        ("10ms", "10s"),
    );
    let keep_closed = span(
        r,
        "strict.keep_closed",
        written.strict.keep_closed,
        "35d",
        ("0s", "3650d"),
    );
    let metrics = metrics(r, written.metrics, &mut warnings);
    let faults_enabled = r.switch("faults.enabled", written.faults.enabled, false);
    let styles = header_styles(r, written.headers.style);
    let peers = peers(r, written.peers, region.as_ref(), faults_enabled);
    if let (Some(listen), Some(auth)) = (&listen, &auth)
        && auth.peer_secret.is_none()
        && !peers.is_empty()
    {
        without_secret(r, listen, &peers, &mut warnings);
    }
    let resolved = resolver.finish()?;
    Ok(Config {
        cluster: settled(cluster),
        region: settled(region),
        data_dir: settled(data_dir),
        listen: settled(listen),
        resp_tenant,
        auth: settled(auth),
        flush_interval: settled(flush_interval),
        memory: settled(memory),
        idempotency: Idempotency {
            retention: settled(retention),
            max_keys: settled(idempotency_keys),
        },
        replication_interval: settled(interval),
        strict_keep_closed: settled(keep_closed),
        metrics: settled(metrics),
        faults_enabled,
        header_styles: settled(styles),
        peers,
        warnings,
        resolved,
    })
}

fn settled<T>(setting: Option<T>) -> T {
    setting.expect("invariant: a setting that could not be resolved left a problem, and problems end before here")
}

fn listen(r: &mut Resolver<'_>, written: file::Listen) -> Option<Listen> {
    let check = r.text(
        "listen.check",
        written.check,
        Some("127.0.0.1:7110"),
        address,
    );
    let admin = r.text(
        "listen.admin",
        written.admin,
        Some("127.0.0.1:7111"),
        address,
    );
    let peer = r.text("listen.peer", written.peer, Some("127.0.0.1:7112"), address);
    let grpc = optional_address(r, "listen.grpc", written.grpc);
    let resp = optional_address(r, "listen.resp", written.resp);
    let listen = Listen {
        check: check?,
        admin: admin?,
        peer: peer?,
        grpc: grpc?,
        resp: resp?,
    };
    let same = |a: SocketAddr, b: SocketAddr| a == b && a.port() != 0;
    if same(listen.admin, listen.check) {
        r.problem_of(
            "listen.admin",
            "is the address of listen.check too; give each listener its own port",
        );
    }
    if same(listen.peer, listen.check) || same(listen.peer, listen.admin) {
        r.problem_of(
            "listen.peer",
            "is another listener's address too; give each listener its own port",
        );
    }
    let others = [listen.check, listen.admin, listen.peer];
    if let Some(resp) = listen.resp
        && others
            .into_iter()
            .chain(listen.grpc)
            .any(|other| same(resp, other))
    {
        r.problem_of(
            "listen.resp",
            "is another listener's address too; give each listener its own port",
        );
    }
    if let Some(grpc) = listen.grpc
        && others.into_iter().any(|other| same(grpc, other))
    {
        r.problem_of(
            "listen.grpc",
            "is another listener's address too; give each listener its own port",
        );
    }
    Some(listen)
}

/// A listener that there need not be: empty, or left out, is none.
fn optional_address(
    r: &mut Resolver<'_>,
    key: &'static str,
    written: Given<String>,
) -> Option<Option<SocketAddr>> {
    r.text(key, written, Some(""), |text| match text {
        "" => Ok(None),
        text => address(text).map(Some),
    })
}

fn auth(r: &mut Resolver<'_>, written: file::Auth, warnings: &mut Vec<String>) -> Option<Auth> {
    let admin_token = secret(
        r,
        ["auth.admin_token", "auth.admin_token_file"],
        [written.admin_token, written.admin_token_file],
        warnings,
    );
    if matches!(admin_token, Some(None)) {
        let message =
            "auth.admin_token is not set: the admin API accepts only tokens that were made before";
        warnings.push(message.to_owned());
    }
    let peer_secret = secret(
        r,
        ["auth.peer_secret", "auth.peer_secret_file"],
        [written.peer_secret, written.peer_secret_file],
        warnings,
    );
    let check = r.text("auth.check", written.check, Some("open"), check_auth);
    Some(Auth {
        admin_token: admin_token?,
        peer_secret: peer_secret?,
        check: check?,
    })
}

fn memory(r: &mut Resolver<'_>, written: file::Memory) -> Option<Memory> {
    let max_keys = r.integer(
        "memory.max_keys",
        written.max_keys,
        20_000_000,
        1..=10_000_000_000,
    );
    // The smaller of the two, so that lowering `max_keys` alone is enough.
    let per_tenant_default = max_keys.unwrap_or(u64::MAX).min(5_000_000);
    let per_tenant = r.integer(
        "memory.max_keys_per_tenant",
        written.max_keys_per_tenant,
        per_tenant_default,
        1..=10_000_000_000,
    );
    let memory = Memory {
        max_keys: max_keys?,
        max_keys_per_tenant: per_tenant?,
    };
    if memory.max_keys_per_tenant > memory.max_keys {
        let message = format!(
            "{} is more than memory.max_keys ({}); lower it or raise the other",
            memory.max_keys_per_tenant, memory.max_keys
        );
        r.problem_of("memory.max_keys_per_tenant", message);
    }
    Some(memory)
}

fn metrics(
    r: &mut Resolver<'_>,
    written: file::Metrics,
    warnings: &mut Vec<String>,
) -> Option<Metrics> {
    let endpoints = r.list("metrics.endpoints", written.endpoints, &[], endpoint);
    let token = secret(
        r,
        ["metrics.token", "metrics.token_file"],
        [written.token, written.token_file],
        warnings,
    );
    let endpoints = endpoints?;
    if endpoints.len() > ENDPOINTS_MAX {
        let message = format!(
            "has {} values; at most {ENDPOINTS_MAX} are let through",
            endpoints.len()
        );
        r.problem_of("metrics.endpoints", message);
    }
    Some(Metrics {
        endpoints,
        token: token?,
    })
}

/// The secret of the settings `keys` (itself, its file). The outer `None`: there was a problem.
fn secret(
    r: &mut Resolver<'_>,
    keys: [&'static str; 2],
    given: [Given<String>; 2],
    warnings: &mut Vec<String>,
) -> Option<Option<Secret>> {
    let Some((origin, key, text)) = r.secret(keys, given) else {
        return Some(None);
    };
    if key == keys[0] {
        return Some(Some(Secret::new(text.trim())));
    }
    match secret::read(Path::new(&text)) {
        Ok(read) => {
            if read.readable_by_others {
                warnings.push(format!(
                    "{key}: {text} can be read by other users of this machine; chmod 600 {text}"
                ));
            }
            Some(Some(read.secret))
        }
        Err(message) => {
            r.problem(&origin, key, message);
            None
        }
    }
}

fn header_styles(r: &mut Resolver<'_>, given: Given<Vec<String>>) -> Option<Vec<HeaderStyle>> {
    let styles = r.list("headers.style", given, &["ietf", "github"], header_style)?;
    if styles.contains(&None) && styles.len() > 1 {
        r.problem_of(
            "headers.style",
            "\"none\" stands alone; remove it or the others",
        );
    }
    Some(styles.into_iter().flatten().collect())
}

/// Regions that share no secret may only be on one machine.
fn without_secret(
    r: &mut Resolver<'_>,
    listen: &Listen,
    peers: &[Peer],
    warnings: &mut Vec<String>,
) {
    let far = peers.iter().find(|peer| !is_on_this_machine(&peer.url));
    let message = match far {
        Some(peer) => format!("is missing, and {} is on another machine", peer.region),
        None if !listen.peer.ip().is_loopback() => {
            format!(
                "is missing, and listen.peer ({}) is open to other machines",
                listen.peer
            )
        }
        None => {
            let message =
                "auth.peer_secret is not set: every process of this machine can pass for a region";
            return warnings.push(message.to_owned());
        }
    };
    let way_out = "give all regions the same auth.peer_secret_file";
    r.problem(
        &Origin::Default,
        "auth.peer_secret",
        format!("{message}; {way_out}"),
    );
}

fn is_on_this_machine(url: &str) -> bool {
    reqwest::Url::parse(url).is_ok_and(|url| match url.host_str() {
        Some("localhost") => true,
        Some(host) => host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .parse()
            .is_ok_and(|ip: IpAddr| ip.is_loopback()),
        None => false,
    })
}

fn peers(
    r: &mut Resolver<'_>,
    written: Vec<file::Peer>,
    own: Option<&RegionName>,
    faults_enabled: bool,
) -> Vec<Peer> {
    let mut peers: Vec<Peer> = Vec::new();
    for peer in written {
        let region_line = r.line(peer.region.span().start);
        let region = match region_name(peer.region.get_ref()) {
            Ok(region) => region,
            Err(message) => {
                r.problem(&region_line, "peers.region", message);
                continue;
            }
        };
        if own == Some(&region) {
            r.problem(
                &region_line,
                "peers.region",
                format!("{region} is this region; list only the others"),
            );
        }
        if peers.iter().any(|other| other.region == region) {
            r.problem(
                &region_line,
                "peers.region",
                format!("{region} is listed twice; list every region once"),
            );
        }
        let latency = peer_latency(r, peer.latency, faults_enabled);
        let url = peer_url(r, &peer.url);
        peers.extend(url.map(|url| Peer {
            region,
            url,
            latency,
        }));
        if peers.len() > PEERS_MAX {
            let message = format!("more than {PEERS_MAX} other regions; list fewer");
            r.problem(&region_line, "peers", message);
            break;
        }
    }
    peers
}

fn peer_latency(r: &mut Resolver<'_>, given: Given<String>, faults_enabled: bool) -> Span {
    let Some(written) = given else {
        return Span::ZERO;
    };
    let line = r.line(written.span().start);
    let read = duration::parse(written.get_ref()).map_err(|error| error.to_string());
    let message = match read {
        Ok(latency) if latency > DELAY_MAX => {
            format!("{latency} is out of range; give 0s to {DELAY_MAX}")
        }
        Ok(latency) if !latency.is_zero() && !faults_enabled => {
            "is for development alone; remove it, or set faults.enabled = true".to_owned()
        }
        Ok(latency) => return latency,
        Err(message) => message,
    };
    r.problem(&line, "peers.latency", message);
    Span::ZERO
}

fn peer_url(r: &mut Resolver<'_>, written: &Spanned<String>) -> Option<String> {
    match peer_address(written.get_ref()) {
        Ok(url) => Some(url),
        Err(message) => {
            let line = r.line(written.span().start);
            r.problem(&line, "peers.url", message);
            None
        }
    }
}

/// The address of a peer listener as it is kept.
///
/// # Errors
/// When `url` is none.
pub fn peer_address(url: &str) -> Result<String, String> {
    let is_plain = reqwest::Url::parse(url).is_ok_and(|url| {
        let has_no_more =
            matches!(url.path(), "" | "/") && url.query().is_none() && url.fragment().is_none();
        url.scheme() == "http" && url.host_str().is_some() && has_no_more
    });
    if is_plain {
        return Ok(url.trim_end_matches('/').to_owned());
    }
    Err(format!(
        "\"{url}\" is not a peer's address; write http://HOST:PORT"
    ))
}

fn span(
    r: &mut Resolver<'_>,
    key: &'static str,
    given: Given<String>,
    default: &str,
    (least, most): (&str, &str),
) -> Option<Span> {
    r.text(key, given, Some(default), |text| {
        let span = duration::parse(text).map_err(|error| error.to_string())?;
        let bound =
            |text| duration::parse(text).expect("invariant: the bounds in this file are durations");
        if (bound(least)..=bound(most)).contains(&span) {
            return Ok(span);
        }
        Err(format!("{text} is out of range; give {least} to {most}"))
    })
}

fn cluster_name(text: &str) -> Result<String, String> {
    let is_name = (1..=64).contains(&text.len()) && !text.chars().any(char::is_control);
    if is_name {
        Ok(text.to_owned())
    } else {
        Err("a cluster's name is 1 to 64 bytes without control characters".to_owned())
    }
}

fn region_name(text: &str) -> Result<RegionName, String> {
    if text.is_empty() {
        return Err("is missing; name this region, as in region = \"us-east-1\"".to_owned());
    }
    RegionName::new(text).map_err(|error| error.to_string())
}

fn directory(text: &str) -> Result<PathBuf, String> {
    if text.is_empty() {
        Err("is missing; name a directory for this region alone".to_owned())
    } else {
        Ok(PathBuf::from(text))
    }
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse()
        .map_err(|_| format!("\"{text}\" is not an address; write IP:PORT, as in \"127.0.0.1:7110\" or \"0.0.0.0:7110\""))
}

fn tenant_name(text: &str) -> Result<TenantName, String> {
    text.parse()
        .map_err(|error: InvalidName| format!("\"{text}\" is none: {error}"))
}

fn check_auth(text: &str) -> Result<CheckAuth, String> {
    match text {
        "open" => Ok(CheckAuth::Open),
        "token" => Ok(CheckAuth::Token),
        _ => Err(format!("\"{text}\" is neither \"open\" nor \"token\"")),
    }
}

fn header_style(text: &str) -> Result<Option<HeaderStyle>, String> {
    match text {
        "ietf" => Ok(Some(HeaderStyle::Ietf)),
        "github" => Ok(Some(HeaderStyle::Github)),
        "legacy" => Ok(Some(HeaderStyle::Legacy)),
        "none" => Ok(None),
        _ => Err(format!(
            "\"{text}\" is none of \"ietf\", \"github\", \"legacy\", \"none\""
        )),
    }
}

fn endpoint(text: &str) -> Result<String, String> {
    let is_label = (1..=128).contains(&text.len()) && !text.chars().any(char::is_control);
    if is_label {
        Ok(text.to_owned())
    } else {
        Err("an endpoint is 1 to 128 bytes without control characters".to_owned())
    }
}
