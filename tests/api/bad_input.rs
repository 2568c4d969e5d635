//! Bad input: whatever is sent, the answer is a clear 4xx problem in bounded time, and nothing is charged.

use reqwest::Method;
use serde_json::Value;
use serde_json::json;

use crate::counter::Counter;
use crate::counter::percent_encoded;
use crate::server::Server;
use crate::sockets::post_bytes;

/// Bytes in a KiB.
pub const KIB: usize = 1024;
/// Routes that read a JSON body from anyone. What a check takes has fields that the last four do not know.
const ROUTES: [&str; 6] = [
    "/v1/check",
    "/v1/holds",
    "/v1/check/batch",
    "/v1/refund",
    "/v1/holds/us-east-1.0a/settle",
    "/v1/holds/us-east-1.0a/renew",
];

/// A server of which one unit of one limit is used; [`unchanged`] holds as long as nothing was charged.
pub fn charged_once() -> Server {
    let server = Server::start();
    server.catalogue(&json!({
        "limits": {
            "plain": { "algorithm": "fixed_window", "quota": 10, "window": "1h" },
            "keyed": { "algorithm": "fixed_window", "quota": 10, "window": "1h", "key": "user" },
        },
        "tenants": { "t": {} },
    }));
    assert!(Counter::new(&server, "t", "plain").take(1).allowed());
    server
}

/// Fails when anything was charged since [`charged_once`].
pub fn unchanged(server: &Server, after: &str) {
    assert_eq!(Counter::new(server, "t", "plain").used(), 1, "{after}");
    assert_eq!(
        Counter::keyed(server, "t", "keyed", "k").used(),
        0,
        "{after}"
    );
}

/// Text that is not JSON at all, or JSON of another kind.
#[test]
fn bodies_that_are_not_the_right_json_are_malformed() {
    let server = charged_once();
    let deep = "[".repeat(30 * KIB);
    let deep_object = "{\"tenant\":".repeat(5 * KIB);
    let deep_value = format!(
        "{{\"tenant\":\"t\",\"limit\":\"plain\",\"cost\":{}1{}}}",
        "[".repeat(20 * KIB),
        "]".repeat(20 * KIB)
    );
    let texts = [
        "",
        " ",
        "{",
        "}",
        "[",
        "]",
        "[]",
        "[\"t\",\"plain\"]",
        "[\"t\",\"plain\",null,1]",
        "null",
        "true",
        "1",
        "\"text\"",
        "nothing",
        "NaN",
        "Infinity",
        "{\"tenant\"",
        "{\"tenant\":",
        "{\"tenant\":\"t\"",
        "{\"tenant\":\"t\",",
        "{\"tenant\":\"t\",}",
        "{tenant:\"t\"}",
        "{'tenant':'t'}",
        "{\"tenant\":\"t\"}{}",
        "{\"tenant\":\"t\",\"limit\":\"plain\"} x",
        "// comment\n{}",
        "\u{feff}{\"tenant\":\"t\",\"limit\":\"plain\"}",
        "{\"tenant\":\"t\u{1}\"}",
        deep.as_str(),
        deep_object.as_str(),
        deep_value.as_str(),
    ];
    for text in texts {
        for route in ROUTES {
            if text.is_empty() && route.ends_with("/renew") {
                continue; // A renewal needs no body.
            }
            let answer = post_bytes(&server, route, text.as_bytes());
            answer.problem_with_status(400);
            let code = answer.body["code"].as_str().unwrap_or_default();
            let right = code == "malformed" || (code == "unknown_field" && text.contains("tenant"));
            assert!(right, "{route} {text:.60}: {answer:?}");
        }
        unchanged(&server, text.get(..60).unwrap_or(text));
    }
}

/// A body cut off anywhere.
#[test]
fn truncated_bodies_are_malformed() {
    let server = charged_once();
    let whole = r#"{"tenant":"t","checks":[{"limit":"plain","cost":1},{"limit":"keyed","key":"k\u00e9","cost":2}]}"#;
    for end in 1..whole.len() {
        post_bytes(&server, "/v1/check", &whole.as_bytes()[..end]).problem(400, "malformed");
    }
    unchanged(&server, "every prefix");
    assert!(post_bytes(&server, "/v1/check", whole.as_bytes()).allowed());
}

/// Encodings other than UTF-8, and text that no string can hold.
#[test]
fn wrong_encodings_are_malformed() {
    let server = charged_once();
    let good = r#"{"tenant":"t","limit":"plain"}"#;
    let utf_16 = |mark: u16, order: fn(u16) -> [u8; 2]| -> Vec<u8> {
        std::iter::once(mark)
            .chain(good.encode_utf16())
            .flat_map(order)
            .collect()
    };
    let bodies: Vec<Vec<u8>> = vec![
        utf_16(0xfeff, u16::to_le_bytes),
        utf_16(0xfeff, u16::to_be_bytes),
        good.encode_utf16().flat_map(u16::to_le_bytes).collect(),
        b"{\"tenant\":\"t\",\"limit\":\"keyed\",\"key\":\"\xff\"}".to_vec(),
        b"{\"tenant\":\"t\",\"limit\":\"keyed\",\"key\":\"\xc3\"}".to_vec(),
        b"{\"tenant\":\"t\",\"limit\":\"keyed\",\"key\":\"\xc0\x80\"}".to_vec(),
        b"{\"tenant\":\"t\",\"limit\":\"keyed\",\"key\":\"\xed\xa0\x80\"}".to_vec(),
        b"{\"tenant\":\"t\",\"limit\":\"keyed\",\"key\":\"\xf4\x90\x80\x80\"}".to_vec(),
        br#"{"tenant":"t","limit":"keyed","key":"\ud800"}"#.to_vec(),
        br#"{"tenant":"t","limit":"keyed","key":"\udc00"}"#.to_vec(),
        br#"{"tenant":"t","limit":"keyed","key":"\udc00\ud800"}"#.to_vec(),
        br#"{"tenant":"t","limit":"keyed","key":"\ud800x"}"#.to_vec(),
        br#"{"tenant":"t","limit":"keyed","key":"\x41"}"#.to_vec(),
        br#"{"tenant":"t","limit":"keyed","key":"\u00"}"#.to_vec(),
        b"{\"tenant\":\"t\",\"limit\":\"keyed\",\"key\":\"a\x00b\"}".to_vec(),
        b"\x00".to_vec(),
        b"\x1f\x8b\x08\x00\x00\x00\x00\x00".to_vec(),
    ];
    for body in bodies {
        post_bytes(&server, "/v1/check", &body).problem(400, "malformed");
        unchanged(&server, &String::from_utf8_lossy(&body));
    }
    let pair = post_bytes(
        &server,
        "/v1/check",
        br#"{"tenant":"t","limit":"keyed","key":"\ud83d\ude00"}"#,
    );
    assert_eq!(
        pair.only()["key"],
        "\u{1f600}",
        "a pair of surrogates is one character"
    );
}

/// Values of the wrong type, in every place; null too, for a field is either absent or right.
#[test]
fn wrong_types_are_malformed() {
    let server = charged_once();
    let good = json!({ "tenant": "t", "limit": "keyed", "key": "k", "cost": 1, "endpoint": "/e", "ip": "203.0.113.9", "max_wait_ms": 0 });
    let odd = [
        json!(null),
        json!(true),
        json!(1),
        json!(-1),
        json!(1.5),
        json!("text"),
        json!([]),
        json!({}),
        json!(["k"]),
        json!({ "k": 1 }),
    ];
    for (field, value) in good.as_object().expect("an object") {
        for odd in &odd {
            let same_kind = value.is_string() == odd.is_string() && value.is_u64() == odd.is_u64();
            if same_kind {
                continue;
            }
            let mut body = good.clone();
            body[field] = odd.clone();
            let answer = server.check(&body);
            assert_eq!(
                (answer.status, &answer.body["code"]),
                (400, &json!("malformed")),
                "{body}: {answer:?}"
            );
        }
    }
    for body in [
        json!({ "tenant": "t", "checks": {} }),
        json!({ "tenant": "t", "checks": "plain" }),
        json!({ "tenant": "t", "checks": ["plain"] }),
        json!({ "tenant": "t", "checks": [[]] }),
        json!({ "tenant": "t", "checks": [["plain"]] }),
        json!(["t", "plain"]),
        json!({ "tenant": "t", "action": 1 }),
        json!({ "tenant": "t", "action": "api", "keys": [] }),
        json!({ "tenant": "t", "action": "api", "keys": { "ip": 1 } }),
        json!({ "tenant": ["t"], "limit": "plain" }),
    ] {
        server.check(&body).problem(400, "malformed");
    }
    unchanged(&server, "wrong types");
}

/// Fields that nobody knows are named; a field that comes twice is malformed.
#[test]
fn unknown_and_repeated_fields_are_refused() {
    let server = charged_once();
    for (text, code) in [
        (
            r#"{"tenant":"t","limit":"plain","colour":"red"}"#,
            "unknown_field",
        ),
        (
            r#"{"tenant":"t","limit":"plain","Cost":1}"#,
            "unknown_field",
        ),
        (r#"{"tenant":"t","limit":"plain","":1}"#, "unknown_field"),
        (r#"{"tenant":"t","limit":"plain","now":1}"#, "unknown_field"),
        (
            r#"{"tenant":"t","checks":[{"limit":"plain","tenant":"t"}]}"#,
            "unknown_field",
        ),
        (
            r#"{"tenant":"t","tenant":"t","limit":"plain"}"#,
            "malformed",
        ),
        (
            r#"{"tenant":"t","limit":"plain","cost":1,"cost":1}"#,
            "malformed",
        ),
        (
            r#"{"tenant":"t","limit":"plain","limit":"keyed","key":"k"}"#,
            "malformed",
        ),
        (
            r#"{"tenant":"t","checks":[{"limit":"plain","cost":1,"cost":2}]}"#,
            "malformed",
        ),
        (
            r#"{"tenant":"t","action":"api","keys":{"ip":"a","ip":"b"}}"#,
            "malformed",
        ),
    ] {
        let answer = server.post_text("/v1/check", text);
        answer.problem(400, code);
        if code == "unknown_field" && text.contains("colour") {
            assert!(
                answer.body["detail"]
                    .as_str()
                    .is_some_and(|detail| detail.contains("colour")),
                "{answer:?}"
            );
        }
        unchanged(&server, text);
    }
    server
        .post(
            "/v1/holds",
            &json!({ "tenant": "t", "limit": "plain", "ttl": "1s", "colour": 1 }),
        )
        .problem(400, "unknown_field");
    server
        .post(
            "/v1/refund",
            &json!({ "tenant": "t", "limit": "plain", "cost": 1, "colour": 1 }),
        )
        .problem(400, "unknown_field");
    unchanged(&server, "holds and refunds");
}

/// Routes that are not there, and methods that a route does not have.
#[test]
fn wrong_paths_and_methods_are_problems() {
    let server = charged_once();
    for path in [
        "/",
        "/v1",
        "/v1/",
        "/v1/nothing",
        "/v1/check/",
        "/V1/check",
        "//v1/check",
        "/v1/check/extra",
        "/v1/%63heck%00",
    ] {
        let answer = server.send(
            Method::POST,
            &format!("{}{path}", server.check_url()),
            &[],
            &Counter::new(&server, "t", "plain").body(),
        );
        answer.problem(404, "not_found");
    }
    for (method, path) in [
        (Method::GET, "/v1/check"),
        (Method::PUT, "/v1/check"),
        (Method::DELETE, "/v1/check"),
        (Method::GET, "/v1/check/batch"),
        (Method::PUT, "/v1/holds"),
        (Method::POST, "/v1/usage"),
        (Method::GET, "/v1/refund"),
        (Method::PATCH, "/v1/refund"),
        (Method::POST, "/livez"),
        (Method::GET, "/v1/holds/us-east-1.0a/settle"),
        (Method::PUT, "/v1/holds/us-east-1.0a"),
    ] {
        let answer = server.send(
            method.clone(),
            &format!("{}{path}", server.check_url()),
            &[],
            &Value::Null,
        );
        answer.problem_with_status(405);
        assert!(
            answer.header("allow").is_some(),
            "{method} {path}: {answer:?}"
        );
    }
    server
        .admin(Method::POST, "/admin/v1/catalogue", &json!({}))
        .problem_with_status(405);
    server
        .admin(Method::GET, "/admin/v1/nothing", &Value::Null)
        .problem(404, "not_found");
    server.get("/admin/v1/limits").problem(404, "not_found");
    unchanged(&server, "paths and methods");
}

/// The admin API's bodies are read as carefully, and change nothing when they are wrong.
#[test]
fn bad_admin_bodies_change_nothing() {
    let server = charged_once();
    let before = server.admin(Method::GET, "/admin/v1/catalogue", &Value::Null);
    let deep = "[".repeat(30 * KIB);
    let texts = [
        "{",
        "[]",
        "1",
        "\"x\"",
        "{\"limits\":[]}",
        "{\"limits\":{\"a\":1}}",
        "{\"colour\":1}",
        "{\"limits\":{},\"limits\":{}}",
        "{\"limits\":{\"a\":{\"algorithm\":\"fixed_window\",\"quota\":1e400,\"window\":\"1s\"}}}",
        "{\"limits\":{\"A B\":{\"unlimited\":true}}}",
        "{\"limits\":{\"a\":{\"unlimited\":true},\"a\":{\"unlimited\":true}}}",
        "{\"default_plan\":\"none\"}",
        "\u{feff}{}",
        deep.as_str(),
    ];
    for text in texts {
        for method in [Method::PUT, Method::PATCH] {
            let url = format!("{}/admin/v1/catalogue", server.admin_url());
            let answer = server.send_text(method, &url, &[("authorization", "Bearer dev")], text);
            assert!(matches!(answer.status, 400 | 422), "{text:.60}: {answer:?}");
            answer.problem_with_status(answer.status);
        }
        let after = server.admin(Method::GET, "/admin/v1/catalogue", &Value::Null);
        assert_eq!(after.body, before.body, "{text:.60}");
    }
    for path in [
        "/admin/v1/tokens",
        "/admin/v1/faults",
        "/admin/v1/tenants/t/limits/plain/reset",
    ] {
        for text in ["{", "[]", "{\"colour\":1}", deep.as_str()] {
            let answer = server.send_text(
                Method::POST,
                &format!("{}{path}", server.admin_url()),
                &[("authorization", "Bearer dev")],
                text,
            );
            assert!(
                matches!(answer.status, 400 | 422),
                "{path} {text:.60}: {answer:?}"
            );
        }
    }
    for name in ["A", "-a", "a b", "", &"a".repeat(65)] {
        let path = format!("/admin/v1/limits/{}", percent_encoded(name));
        let answer = server.admin(Method::PUT, &path, &json!({ "unlimited": true }));
        assert!(
            matches!(answer.status, 400 | 404 | 405 | 422),
            "{name}: {answer:?}"
        );
    }
    unchanged(&server, "admin bodies");
}
