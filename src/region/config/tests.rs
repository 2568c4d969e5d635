//! What a region's file may say, what wins, and what an operator is told about a mistake.

use super::Above;
use super::CheckAuth;
use super::Config;
use super::HeaderStyle;

const FILE: &str = "regions/us-east-1.toml";

fn resolve(text: &str) -> Result<Config, String> {
    resolve_with(text, &[], &[])
}

fn resolve_with(
    text: &str,
    env: &[(&str, &str)],
    flags: &[(&str, &str)],
) -> Result<Config, String> {
    let owned = |pairs: &[(&str, &str)]| {
        pairs
            .iter()
            .map(|(a, b)| ((*a).to_owned(), (*b).to_owned()))
            .collect()
    };
    let above = Above {
        env: owned(env),
        flags: owned(flags),
    };
    Config::resolve(FILE, text, above).map_err(|problems| {
        problems
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join("\n")
    })
}

#[track_caller]
fn refused(text: &str, expected: &str) {
    assert_eq!(resolve(text).expect_err("invalid"), expected);
}

#[test]
fn one_line_is_a_whole_configuration() {
    let config = resolve("region = \"us-east-1\"").expect("valid");
    assert_eq!(config.cluster, "highwater");
    assert_eq!(config.data_dir.to_str(), Some("data/us-east-1"));
    assert_eq!(config.listen.check.to_string(), "127.0.0.1:7110");
    assert_eq!(config.listen.admin.to_string(), "127.0.0.1:7111");
    assert!(config.auth.admin_token.is_none());
    assert!(config.warnings[0].starts_with("auth.admin_token is not set"));
    assert_eq!(config.auth.check, CheckAuth::Open);
    assert_eq!(config.flush_interval.to_string(), "100ms");
    assert_eq!(config.memory.max_keys, 20_000_000);
    assert_eq!(config.memory.max_keys_per_tenant, 5_000_000);
    assert_eq!(config.idempotency.retention.to_string(), "1d");
    assert_eq!(config.idempotency.max_keys, 1_000_000);
    assert_eq!(config.replication_interval.to_string(), "100ms");
    assert_eq!(config.strict_keep_closed.to_string(), "35d");
    assert!(!config.faults_enabled);
    assert_eq!(
        config.header_styles,
        [HeaderStyle::Ietf, HeaderStyle::Github]
    );
}

#[test]
fn every_documented_key_is_known() {
    let text = r#"
cluster  = "prod"
region   = "us-east-1"
data_dir = "data/us-east-1"

listen.check = "127.0.0.1:0"
listen.admin = "127.0.0.1:0"
listen.peer  = "127.0.0.1:0"

auth.admin_token      = "dev"
auth.peer_secret      = "s"
auth.check            = "token"

store.flush_interval  = "250ms"
memory.max_keys       = 2000
memory.max_keys_per_tenant = 500
idempotency.retention = "1h"
idempotency.max_keys  = 10
replication.interval  = "50ms"
strict.keep_closed    = "1d"
metrics.endpoints     = ["GET /a"]
metrics.token         = "m"
faults.enabled        = true
headers.style         = ["none"]

[[peers]]
region = "eu-west-1"
url    = "http://127.0.0.1:7122/"
"#;
    let config = resolve(text).expect("valid");
    assert_eq!(config.auth.check, CheckAuth::Token);
    assert_eq!(config.peers.len(), 1);
    assert_eq!(config.peers[0].url, "http://127.0.0.1:7122");
    assert!(config.header_styles.is_empty());
    assert!(config.auth.admin_token.expect("given").matches("dev"));
}

#[test]
fn an_unknown_key_is_named_with_its_line() {
    let text = "region = \"a\"\nlisten.chek = \"127.0.0.1:1\"\n";
    refused(
        text,
        "regions/us-east-1.toml:2: listen.chek: unknown key `chek`, expected one of `check`, `admin`, `peer`, `grpc`, `resp`",
    );
    let text = "region = \"a\"\n[[peers]]\nregion = \"b\"\nurl = \"http://x:1\"\nvoter = true\n";
    refused(
        text,
        "regions/us-east-1.toml:5: peers.voter: unknown key `voter`, expected one of `region`, `url`, `latency`",
    );
}

#[test]
fn a_value_of_the_wrong_kind_is_named_with_its_line() {
    refused(
        "region = \"a\"\nmemory.max_keys = \"many\"\n",
        "regions/us-east-1.toml:2: memory.max_keys: invalid type: string \"many\", expected a whole number, 0 or more",
    );
    refused(
        "region = \"a\"\nmemory.max_keys = -1\n",
        "regions/us-east-1.toml:2: memory.max_keys: invalid value: integer `-1`, expected a whole number, 0 or more",
    );
    refused(
        "region = \n",
        "regions/us-east-1.toml:1: not TOML: string values must be quoted, expected literal string",
    );
}

#[test]
fn all_mistakes_are_told_at_once() {
    let text = r#"
listen.check = "localhost"
store.flush_interval = "0ms"
memory.max_keys = 10
memory.max_keys_per_tenant = 11
headers.style = ["ietf", "none"]
auth.check = "maybe"
"#;
    refused(
        text,
        "\
regions/us-east-1.toml: region: is missing; name this region, as in region = \"us-east-1\"
regions/us-east-1.toml:2: listen.check: \"localhost\" is not an address; write IP:PORT, as in \"127.0.0.1:7110\" or \"0.0.0.0:7110\"
regions/us-east-1.toml:7: auth.check: \"maybe\" is neither \"open\" nor \"token\"
regions/us-east-1.toml:3: store.flush_interval: 0ms is out of range; give 1ms to 1m
regions/us-east-1.toml:5: memory.max_keys_per_tenant: 11 is more than memory.max_keys (10); lower it or raise the other
regions/us-east-1.toml:6: headers.style: \"none\" stands alone; remove it or the others",
    );
}

#[test]
fn listeners_and_peers_must_differ() {
    refused(
        "region = \"a\"\nlisten.admin = \"127.0.0.1:7110\"\n",
        "regions/us-east-1.toml:2: listen.admin: is the address of listen.check too; give each listener its own port",
    );
    let peer =
        |region: &str, url: &str| format!("[[peers]]\nregion = \"{region}\"\nurl = \"{url}\"\n");
    let text = format!(
        "region = \"a\"\nauth.peer_secret = \"s\"\n{}{}{}",
        peer("a", "http://x:1"),
        peer("b", "https://x:1"),
        peer("b", "http://y:1/p")
    );
    refused(
        &text,
        "\
regions/us-east-1.toml:4: peers.region: a is this region; list only the others
regions/us-east-1.toml:8: peers.url: \"https://x:1\" is not a peer's address; write http://HOST:PORT
regions/us-east-1.toml:11: peers.url: \"http://y:1/p\" is not a peer's address; write http://HOST:PORT",
    );
}

#[test]
fn regions_on_several_machines_share_a_secret() {
    let peer = |url: &str| format!("region = \"a\"\n[[peers]]\nregion = \"b\"\nurl = \"{url}\"\n");
    for url in [
        "http://127.0.0.1:7122",
        "http://localhost:7122",
        "http://[::1]:7122",
    ] {
        let config = resolve(&peer(url)).expect("valid");
        let warned = |warning: &String| warning.starts_with("auth.peer_secret is not set");
        assert!(config.warnings.iter().any(warned), "{:?}", config.warnings);
    }
    refused(
        &peer("http://10.0.0.2:7122"),
        "regions/us-east-1.toml: auth.peer_secret: is missing, and b is on another machine; give all regions the same \
         auth.peer_secret_file",
    );
    refused(
        &format!(
            "listen.peer = \"0.0.0.0:7112\"\n{}",
            peer("http://127.0.0.1:1")
        ),
        "regions/us-east-1.toml: auth.peer_secret: is missing, and listen.peer (0.0.0.0:7112) is open to other machines; give all \
         regions the same auth.peer_secret_file",
    );
    let alone = resolve("region = \"a\"\nlisten.peer = \"0.0.0.0:7112\"").expect("valid");
    assert!(alone.peers.is_empty());
}

#[test]
fn latency_between_regions_is_for_development_alone() {
    let text = |faults: bool, latency: &str| {
        format!(
            "region = \"a\"\nauth.peer_secret = \"s\"\nfaults.enabled = {faults}\n\
             [[peers]]\nregion = \"b\"\nurl = \"http://x:1\"\nlatency = \"{latency}\"\n"
        )
    };
    let config = resolve(&text(true, "40ms")).expect("valid");
    assert_eq!(config.peers[0].latency.to_string(), "40ms");
    assert!(config.to_toml().contains("latency = \"40ms\""));
    assert!(resolve(&text(false, "0s")).is_ok());
    refused(
        &text(false, "40ms"),
        "regions/us-east-1.toml:7: peers.latency: is for development alone; remove it, or set faults.enabled = true",
    );
    refused(
        &text(true, "3s"),
        "regions/us-east-1.toml:7: peers.latency: 3s is out of range; give 0s to 2s",
    );
    refused(
        &text(true, "slow"),
        "regions/us-east-1.toml:7: peers.latency: \"slow\" is not a duration; write one integer and ms, s, m, h or d, \
         as in \"30s\"",
    );
}

#[test]
fn flag_beats_environment_beats_file_beats_default() {
    let text = "region = \"a\"\nmemory.max_keys = 1000\nfaults.enabled = false\nmetrics.endpoints = [\"x\"]\n";
    let env = [
        ("HIGHWATER_MEMORY__MAX_KEYS", "2000"),
        ("HIGHWATER_REGION", "b"),
        ("HIGHWATER_FAULTS__ENABLED", "true"),
        ("HIGHWATER_METRICS__ENDPOINTS", "GET /a, POST /b"),
        ("HIGHWATER_TOKEN", "for the client commands"),
        ("HIGHWATER_SERVICE_HOST", "10.0.0.1"),
        ("PATH", "/bin"),
    ];
    let config = resolve_with(text, &env, &[]).expect("valid");
    assert_eq!(config.memory.max_keys, 2000);
    assert_eq!(config.region.as_str(), "b");
    assert!(config.faults_enabled);
    assert_eq!(config.metrics.endpoints, ["GET /a", "POST /b"]);
    let config = resolve_with(text, &env, &[("memory.max_keys", "3000")]).expect("valid");
    assert_eq!(config.memory.max_keys, 3000);
    assert_eq!(config.memory.max_keys_per_tenant, 3000);
}

#[test]
fn mistakes_in_the_environment_name_the_variable() {
    let env = [
        ("HIGHWATER_LISTEN__CHEK", "127.0.0.1:1"),
        ("HIGHWATER_MEMORY__MAX_KEYS", "many"),
        ("HIGHWATER_PEERS__0__URL", "http://x:1"),
    ];
    let flags = [("faults.enabeld", "true")];
    let told = resolve_with("region = \"a\"", &env, &flags).expect_err("invalid");
    assert_eq!(
        told,
        "\
HIGHWATER_MEMORY__MAX_KEYS: memory.max_keys: \"many\" is not a whole number
--set: faults.enabeld: unknown setting; see `highwater check-config FILE` for the known ones
HIGHWATER_LISTEN__CHEK: listen.chek: unknown setting; see `highwater check-config FILE` for the known ones
HIGHWATER_PEERS__0__URL: peers.0.url: can only be given in the file",
    );
}

#[test]
fn a_secret_has_one_place() {
    let text = "region = \"a\"\nauth.admin_token = \"x\"\nauth.admin_token_file = \"y\"\n";
    refused(
        text,
        "regions/us-east-1.toml:2: auth.admin_token: is given twice, as auth.admin_token (line 2) and as \
         auth.admin_token_file (line 3); keep one of them",
    );
    let env = [("HIGHWATER_AUTH__ADMIN_TOKEN", "z")];
    let told = resolve_with("region = \"a\"\nauth.admin_token_file = \"y\"\n", &env, &[])
        .expect_err("invalid");
    assert_eq!(
        told,
        "HIGHWATER_AUTH__ADMIN_TOKEN: auth.admin_token: is given twice, as auth.admin_token \
         (HIGHWATER_AUTH__ADMIN_TOKEN) and as auth.admin_token_file (line 2); keep one of them",
    );
}

#[cfg(unix)]
#[test]
fn a_secret_is_read_from_its_file_with_a_warning_when_others_can_read_it() {
    use std::os::unix::fs::PermissionsExt;

    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("admin");
    std::fs::write(&path, "hunter2\n").expect("written");
    let text = format!(
        "region = \"a\"\nauth.admin_token_file = {:?}\n",
        path.to_str().expect("UTF-8")
    );
    for (mode, warnings) in [(0o600, 0), (0o640, 1), (0o644, 1)] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("set");
        let config = resolve(&text).expect("valid");
        assert!(config.auth.admin_token.expect("given").matches("hunter2"));
        assert_eq!(config.warnings.len(), warnings, "{mode:o}");
    }
    std::fs::write(&path, "\n").expect("written");
    assert!(
        resolve(&text)
            .expect_err("invalid")
            .ends_with("admin is empty; write the secret into it")
    );
    std::fs::remove_file(&path).expect("removed");
    assert!(
        resolve(&text)
            .expect_err("invalid")
            .contains(":2: auth.admin_token_file: ")
    );
}

#[test]
fn what_is_shown_is_toml_without_secrets_and_says_where_each_value_comes_from() {
    let text = "region = \"a\"\nauth.admin_token = \"hunter2\"\nfaults.enabled = true\n[[peers]]\nregion = \"b\"\n\
                url = \"http://[::1]:1\"\nlatency = \"40ms\"\n";
    let env = [
        ("HIGHWATER_METRICS__TOKEN", "hunter3"),
        ("HIGHWATER_STORE__FLUSH_INTERVAL", "1s"),
    ];
    let config = resolve_with(text, &env, &[]).expect("valid");
    let shown = config.to_toml();
    assert!(!shown.contains("hunter"), "{shown}");
    assert!(!format!("{config:?}").contains("hunter"));
    assert!(
        shown.contains("# auth.admin_token is set (line 2)"),
        "{shown}"
    );
    assert!(
        shown.contains("# metrics.token is set (HIGHWATER_METRICS__TOKEN)"),
        "{shown}"
    );
    let flush = shown
        .lines()
        .find(|line| line.starts_with("store.flush_interval"))
        .expect("shown");
    assert!(
        flush.starts_with("store.flush_interval = \"1s\" "),
        "{flush}"
    );
    assert!(
        flush.ends_with("# HIGHWATER_STORE__FLUSH_INTERVAL"),
        "{flush}"
    );
    let again = resolve(&shown).expect("what is shown is a valid file");
    assert_eq!(again.flush_interval, config.flush_interval);
    assert_eq!(again.peers, config.peers);
}
