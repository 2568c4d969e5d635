//! Gateways: what a proxy in front of a service is told, and whom it believes.

use std::io::Read;
use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use reqwest::Method;
use serde_json::Value;
use serde_json::json;

use crate::answer::Answer;
use crate::server::Server;

/// A tenant with limits by address, by user and by path, and the profiles given.
fn server(profiles: &Value) -> Server {
    let server = Server::start();
    server.catalogue(&json!({
        "limits": {
            "per-ip": { "algorithm": "fixed_window", "quota": 2, "window": "60s", "key": "ip", "actions": ["api"] },
            "per-user": { "algorithm": "fixed_window", "quota": 1, "window": "60s", "key": "user", "actions": ["api"] },
            "per-path": { "algorithm": "fixed_window", "quota": 1, "window": "60s", "key": "path", "actions": ["path"] },
        },
        "tenants": { "acme": {} },
        "profiles": profiles,
    }));
    server
}

fn ask(server: &Server, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
    let method = Method::from_bytes(method.as_bytes()).expect("a method");
    let url = format!("{}/v1/gateway/{path}", server.check_url());
    server.send(method, &url, headers, &Value::Null)
}

fn decision(answer: &Answer) -> (u16, &str, &str) {
    let header = |name| answer.header(name).unwrap_or_default();
    (
        answer.status,
        header("x-quota-decision"),
        header("x-quota-status"),
    )
}

/// GW-1.
#[test]
fn a_body_less_question_is_allowed_with_200_and_refused_with_429() {
    let server = server(&json!({
        "edge": { "tenant": "acme", "action": "api", "keys": { "ip": "client_ip" } },
    }));
    for remaining in [1, 0] {
        let allowed = ask(&server, "GET", "edge", &[]);
        assert_eq!(decision(&allowed), (200, "allow", "200"), "{allowed:?}");
        assert_eq!(allowed.text, "");
        assert_eq!(allowed.rate_limit(), ("per-ip".to_owned(), remaining, 60));
        assert_eq!(allowed.header("content-length"), Some("0"));
    }
    let refused = ask(&server, "GET", "edge", &[]);
    assert_eq!(decision(&refused), (429, "deny", "429"), "{refused:?}");
    assert_eq!(refused.header("retry-after"), Some("60"));
    assert_eq!(
        refused.header("content-type"),
        Some("application/problem+json")
    );
    assert_eq!(refused.body["violated-policies"], json!(["per-ip"]));
    let nginx = ask(&server, "GET", "edge?deny_status=403", &[]);
    assert_eq!(decision(&nginx), (403, "deny", "429"), "{nginx:?}");
    assert_eq!(nginx.body["status"], 403);
    assert_eq!(nginx.header("retry-after"), Some("60"));
    assert!(nginx.header("ratelimit").is_some() && nginx.header("ratelimit-policy").is_some());
    server.advance(60_000);
    assert_eq!(ask(&server, "GET", "edge", &[]).status, 200);
}

#[test]
fn any_method_asks_and_a_head_has_the_same_headers() {
    let server = server(&json!({
        "edge": { "tenant": "acme", "action": "literal:path", "keys": { "path": "path" } },
    }));
    for method in [
        "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PURGE",
    ] {
        let path = format!("edge/{method}");
        let allowed = ask(&server, method, &path, &[]);
        assert_eq!(decision(&allowed), (200, "allow", "200"), "{method}");
        let refused = ask(&server, method, &path, &[]);
        assert_eq!(decision(&refused), (429, "deny", "429"), "{method}");
        assert_eq!(refused.header("retry-after"), Some("60"), "{method}");
        assert_eq!(refused.text.is_empty(), method == "HEAD", "{method}");
    }
    // The root path asks too.
    assert_eq!(ask(&server, "GET", "edge/", &[]).status, 200);
    assert_eq!(ask(&server, "GET", "edge/", &[]).status, 429);
}

/// A gateway that announces a body and never sends it is answered all the same.
#[test]
fn a_body_is_not_waited_for() {
    let server = server(&json!({ "edge": { "tenant": "acme", "action": "api" } }));
    let address = server.check_url().trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).expect("connects");
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .expect("a deadline");
    stream
        .write_all(
            b"POST /v1/gateway/edge/upload HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n",
        )
        .expect("sends");
    let mut answer = [0; 15];
    stream.read_exact(&mut answer).expect("an answer");
    assert_eq!(&answer, b"HTTP/1.1 200 OK");
}

#[test]
fn an_absent_key_skips_the_limits_that_need_it() {
    let server = server(&json!({
        "edge": { "tenant": "header:X-Tenant", "action": "api", "keys": { "user": "header:X-User", "ip": "query:ip" } },
    }));
    let tenant = ("x-tenant", "acme");
    for _ in 0..3 {
        let nothing = ask(&server, "GET", "edge/", &[tenant]);
        assert_eq!(decision(&nothing), (200, "allow", "200"));
        assert_eq!(nothing.header("ratelimit"), None);
    }
    let user = [tenant, ("x-user", "ann")];
    assert_eq!(ask(&server, "GET", "edge/", &user).status, 200);
    assert_eq!(ask(&server, "GET", "edge/?ip=192.0.2.1", &user).status, 429);
    // All or nothing: the address was not charged by the refusal.
    for _ in 0..2 {
        let other = ask(&server, "GET", "edge/?ip=192.0.2.1", &[tenant]);
        assert_eq!(other.status, 200);
    }
    assert_eq!(
        ask(&server, "GET", "edge/?ip=192.0.2.1", &[tenant]).status,
        429
    );
}

#[test]
fn hostile_headers_choose_no_counter() {
    let keys = json!({ "ip": "client_ip" });
    let server = server(&json!({
        "far": { "tenant": "acme", "action": "api", "keys": keys, "trusted_hops": ["192.0.2.0/24"] },
        "near": { "tenant": "acme", "action": "api", "keys": keys },
        "user": { "tenant": "acme", "action": "api", "keys": { "user": "header:X-User" }, "on_error": "allow" },
    }));
    // This client is no trusted hop of "far": what it says of other addresses is not believed.
    for (spoofed, status) in [("1.1.1.1", 200), ("2.2.2.2", 200), ("3.3.3.3", 429)] {
        let answer = ask(&server, "GET", "far", &[("x-forwarded-for", spoofed)]);
        assert_eq!(answer.status, status, "{spoofed}");
    }
    // Through a trusted hop only what it wrote itself counts, at the end of the list.
    for (spoofed, status) in [
        ("1.1.1.1, 203.0.113.9", 200),
        ("2.2.2.2, 203.0.113.9", 200),
        ("3.3.3.3, 203.0.113.9", 429),
    ] {
        let answer = ask(&server, "GET", "near", &[("x-forwarded-for", spoofed)]);
        assert_eq!(answer.status, status, "{spoofed}");
    }
    let huge = "x".repeat(60_000);
    for headers in [
        vec![("x-user", "a"), ("x-user", "b")],
        vec![("x-user", huge.as_str())],
    ] {
        let refused = ask(&server, "GET", "user", &headers);
        assert_eq!(decision(&refused), (400, "error", "400"), "{refused:?}");
        let nginx = ask(&server, "GET", "user?deny_status=403", &headers);
        assert_eq!(decision(&nginx), (403, "error", "400"));
    }
    assert_eq!(ask(&server, "GET", "user", &[]).status, 200);
}

#[test]
fn a_region_that_cannot_decide_follows_the_profile() {
    let server = Server::start();
    server.catalogue(&json!({
        "limits": { "closed": { "algorithm": "fixed_window", "quota": 9, "window": "60s", "on_unavailable": "closed",
            "actions": ["api"] } },
        "tenants": { "acme": {} },
        "profiles": {
            "open": { "tenant": "acme", "action": "api", "on_error": "allow" },
            "shut": { "tenant": "acme", "action": "api" },
            "nobody": { "tenant": "nobody", "action": "api", "on_error": "allow" },
        },
    }));
    let fault = server.inject("store_full");
    crate::server::wait_until("the store fails", Duration::from_secs(20), || {
        ask(&server, "GET", "shut", &[]).status == 503
    });
    let open = ask(&server, "GET", "open", &[]);
    assert_eq!(decision(&open), (200, "error", "503"), "{open:?}");
    assert_eq!(open.text, "");
    let shut = ask(&server, "GET", "shut", &[]);
    assert_eq!(decision(&shut), (503, "error", "503"), "{shut:?}");
    assert_eq!(shut.body["status"], 503);
    assert!(shut.header("retry-after").is_some());
    // A tenant that does not exist is no failure of this region's.
    let nobody = ask(&server, "GET", "nobody", &[]);
    assert_eq!(decision(&nobody), (404, "error", "404"), "{nobody:?}");
    server.heal(&fault);
    let unknown = ask(&server, "GET", "no-such-profile", &[]);
    assert_eq!(decision(&unknown), (404, "error", "404"), "{unknown:?}");
    let told_403 = ask(&server, "GET", "no-such-profile?deny_status=403", &[]);
    assert_eq!(decision(&told_403), (403, "error", "404"), "{told_403:?}");
    let patient = ask(&server, "GET", "no-such-profile?max_wait_ms=9", &[]);
    assert_eq!(decision(&patient), (404, "error", "404"), "{patient:?}");
    let odd = ask(&server, "GET", "shut?max_wait_ms=soon", &[]);
    assert_eq!(decision(&odd), (400, "error", "400"), "{odd:?}");
}

#[test]
fn a_gateways_token_is_not_the_clients_authorization() {
    let server = Server::with(&[("auth.check", "\"token\"")]);
    server.catalogue(&json!({
        "tenants": { "acme": {}, "other": {} },
        "profiles": { "edge": { "tenant": "header:X-Tenant", "action": "api" } },
    }));
    let created = server.admin(
        Method::POST,
        "/admin/v1/tokens",
        &json!({ "scope": "check", "tenant": "acme" }),
    );
    created.succeeded();
    let token = created.body["token"].as_str().expect("shown once");
    let client = ("authorization", "Bearer of-the-clients");
    let of = |tenant, token: Option<&str>| {
        let mut headers = vec![client, ("x-tenant", tenant)];
        headers.extend(token.map(|token| ("x-quota-token", token)));
        ask(&server, "GET", "edge", &headers).status
    };
    assert_eq!(of("acme", Some(token)), 200);
    assert_eq!(of("other", Some(token)), 403);
    assert_eq!(of("acme", Some("wrong")), 401);
    assert_eq!(of("acme", None), 401);
}

#[test]
fn profiles_are_items_of_the_catalogue() {
    let server = server(&json!({}));
    let path = "/admin/v1/profiles/edge";
    let profile = json!({ "tenant": "acme", "action": "api", "deny_status": 403 });
    server.admin(Method::PUT, path, &profile).succeeded();
    assert_eq!(server.admin(Method::GET, path, &Value::Null).body, profile);
    let list = server.admin(Method::GET, "/admin/v1/profiles", &Value::Null);
    assert_eq!(list.body["items"][0]["name"], "edge");
    let wrong = json!({ "tenant": "acme", "action": "header:", "keys": { "ip": "client_ip/0" } });
    let refused = server.admin(Method::PUT, path, &wrong);
    assert_eq!(refused.status, 422, "{refused:?}");
    let paths: Vec<&str> = refused.body["errors"]
        .as_array()
        .expect("errors")
        .iter()
        .filter_map(|error| error["path"].as_str())
        .collect();
    assert_eq!(paths, ["profiles.edge.action", "profiles.edge.keys.ip"]);
    // A catalogue that was read can be put back, and a patch leaves profiles that it does not name.
    let whole = server.admin(Method::GET, "/admin/v1/catalogue", &Value::Null);
    assert_eq!(whole.body["profiles"]["edge"], profile);
    server
        .admin(
            Method::PATCH,
            "/admin/v1/catalogue",
            &json!({ "profiles": { "other": { "tenant": "acme", "action": "x" } } }),
        )
        .succeeded();
    assert_eq!(ask(&server, "GET", "edge", &[]).status, 200);
    server.admin(Method::DELETE, path, &Value::Null).succeeded();
    assert_eq!(ask(&server, "GET", "edge", &[]).status, 404);
    assert_eq!(server.admin(Method::DELETE, path, &Value::Null).status, 404);
}

/// A catalogue file has profiles too, and `diff` tells what `apply` would change of them.
#[test]
fn a_catalogue_file_and_the_command_line_have_profiles() {
    let server = server(&json!({ "old": { "tenant": "acme", "action": "api" } }));
    let file = server.directory().join("edge.toml");
    let name = file.to_string_lossy().into_owned();
    let write = |text: &str| std::fs::write(&file, text).expect("written");
    let run = |arguments: &[&str]| {
        let output = server.cli(arguments);
        let text = [output.stdout, output.stderr].concat();
        (
            output.status.code().unwrap_or(-1),
            String::from_utf8_lossy(&text).into_owned(),
        )
    };
    write("[profiles.old]\ntenant = \"acme\"\naction = \"api\"\nkeys = { ip = \"client_ip\" }\n");
    let (status, text) = run(&["diff", "-f", &name]);
    assert_eq!(status, 1);
    assert_eq!(text, "+ profiles.old.keys = { ip = \"client_ip\" }\n");
    assert_eq!(run(&["apply", "-f", &name]).0, 0);
    assert_eq!(run(&["diff", "-f", &name]), (0, String::new()));
    write("tenant = \"header:\"\naction = \"api\"\n");
    let (status, text) = run(&["profiles", "set", "edge", "-f", &name]);
    assert_eq!(status, 1);
    assert!(text.contains("edge.toml:1: profiles.edge.tenant"), "{text}");
    write("tenant = \"header:X-Tenant\"\naction = \"api\"\n");
    assert_eq!(run(&["profiles", "set", "edge", "-f", &name]).0, 0);
    let (status, text) = run(&["profiles", "get", "edge"]);
    assert!(status == 0 && text.contains("header:X-Tenant"), "{text}");
    assert!(run(&["profiles", "list"]).1.contains("edge"));
    assert_eq!(run(&["profiles", "delete", "edge"]).0, 0);
    assert_eq!(ask(&server, "GET", "edge", &[]).status, 404);
}
