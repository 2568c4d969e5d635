//! Bad input: whatever is sent, the answer is a clear 4xx problem in bounded time, and nothing is charged.

use std::io::Read;
use std::io::Write;
use std::net::Shutdown;
use std::net::TcpStream;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use rand::RngExt;
use rand::SeedableRng;
use rand::rngs::StdRng;
use reqwest::Method;
use serde_json::Value;
use serde_json::json;

use crate::answer::Answer;
use crate::counter::Counter;
use crate::counter::percent_encoded;
use crate::server::Server;

const KIB: usize = 1024;
/// A slow sender is cut off within this time.
const PATIENCE: Duration = Duration::from_secs(60);

/// Routes that read a JSON body from anyone.
const ROUTES: [&str; 6] = [
    "/v1/check",
    "/v1/check/batch",
    "/v1/holds",
    "/v1/refund",
    "/v1/holds/us-east-1.0a/settle",
    "/v1/holds/us-east-1.0a/renew",
];

/// A server of which one unit of one limit is used; [`unchanged`] holds as long as nothing was charged.
fn charged_once() -> Server {
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

fn unchanged(server: &Server, after: &str) {
    assert_eq!(Counter::new(server, "t", "plain").used(), 1, "{after}");
    assert_eq!(
        Counter::keyed(server, "t", "keyed", "k").used(),
        0,
        "{after}"
    );
}

/// Sends bytes as they are and reads until the server closes or has answered `answers` requests.
fn raw(address: &str, bytes: &[u8]) -> Vec<Answer> {
    let mut stream = TcpStream::connect(address.trim_start_matches("http://")).expect("connected");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    // The server may have answered and closed before all was sent.
    drop(stream.write_all(bytes));
    drop(stream.shutdown(Shutdown::Write));
    read_answers(&mut stream)
}

fn read_answers(stream: &mut TcpStream) -> Vec<Answer> {
    let mut received = Vec::new();
    let mut buffer = [0; 4096];
    let deadline = Instant::now() + PATIENCE;
    loop {
        assert!(
            Instant::now() < deadline,
            "the server neither closed nor ended: {}",
            String::from_utf8_lossy(&received)
        );
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(length) => received.extend_from_slice(&buffer[..length]),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break,
            Err(error) => panic!("{error}; so far: {}", String::from_utf8_lossy(&received)),
        }
    }
    parse_answers(&received)
}

/// Splits what came into answers; every one must have a length.
fn parse_answers(mut received: &[u8]) -> Vec<Answer> {
    let mut answers = Vec::new();
    while let Some(head_end) = received.windows(4).position(|window| window == b"\r\n\r\n") {
        let head = String::from_utf8_lossy(&received[..head_end]).into_owned();
        let mut lines = head.lines();
        let status = lines
            .next()
            .and_then(|line| line.split(' ').nth(1))
            .and_then(|status| status.parse().ok());
        let headers: Vec<(String, String)> = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        let length = headers
            .iter()
            .find(|(name, _)| name == "content-length")
            .and_then(|(_, value)| value.parse().ok());
        let body_start = head_end + 4;
        let body_end = (body_start + length.unwrap_or(0)).min(received.len());
        let text = String::from_utf8_lossy(&received[body_start..body_end]).into_owned();
        answers.push(Answer::new(status.expect("a status"), headers, text));
        received = &received[body_end..];
    }
    answers
}

fn post_bytes(server: &Server, path: &str, body: &[u8]) -> Answer {
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let mut answers = raw(server.check_url(), &[head.as_bytes(), body].concat());
    assert_eq!(answers.len(), 1, "{path}: {answers:?}");
    answers.remove(0)
}

/// Text that is not JSON at all, or JSON of another kind.
#[test]
fn bodies_that_are_not_the_right_json_are_malformed() {
    let server = charged_once();
    let deep = "[".repeat(30 * KIB);
    let deep_object = "{\"a\":".repeat(10 * KIB);
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
            let answer = post_bytes(&server, route, text.as_bytes());
            let told = format!("{route} {:.60}", text);
            assert_eq!(answer.status, 400, "{told}: {answer:?}");
            answer.problem(400, "malformed");
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

/// Values of the wrong type, in every place.
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
            let absent = odd.is_null()
                && matches!(field.as_str(), "key" | "endpoint" | "ip" | "max_wait_ms");
            if same_kind || absent {
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

/// A check's body is at most 64 KiB, a batch's at most 1 MiB, told by a length or sent in chunks.
#[test]
fn a_body_of_one_byte_too_many_is_refused() {
    let server = charged_once();
    let batch = json!({ "items": [{ "tenant": "t", "limit": "plain", "cost": 0 }] }).to_string();
    let check = json!({ "tenant": "t", "limit": "plain", "cost": 0 }).to_string();
    for (path, body, most) in [
        ("/v1/check", check, 64 * KIB),
        ("/v1/check/batch", batch, KIB * KIB),
    ] {
        let padded = |length: usize| format!("{body}{}", " ".repeat(length - body.len()));
        assert_eq!(
            post_bytes(&server, path, padded(most).as_bytes()).status,
            200,
            "{path}"
        );
        assert_eq!(
            post_chunked(&server, path, padded(most).as_bytes()).status,
            200,
            "{path}, in chunks"
        );
        post_bytes(&server, path, padded(most + 1).as_bytes()).problem(413, "body_too_large");
        post_chunked(&server, path, padded(most + 1).as_bytes()).problem(413, "body_too_large");
        post_bytes(&server, path, padded(4 * most).as_bytes()).problem(413, "body_too_large");
    }
    let promised = b"POST /v1/check HTTP/1.1\r\nHost: test\r\nContent-Length: 99999999999\r\nConnection: close\r\n\r\n{";
    let answers = raw(server.check_url(), promised);
    assert!(
        answers
            .iter()
            .all(|answer| matches!(answer.status, 400 | 408 | 413)),
        "{answers:?}"
    );
    unchanged(&server, "large bodies");
}

fn post_chunked(server: &Server, path: &str, body: &[u8]) -> Answer {
    let mut request =
        format!("POST {path} HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n").into_bytes();
    for chunk in body.chunks(10_000) {
        request.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        request.extend_from_slice(chunk);
        request.extend_from_slice(b"\r\n");
    }
    request.extend_from_slice(b"0\r\n\r\n");
    let mut answers = raw(server.check_url(), &request);
    assert_eq!(answers.len(), 1, "{answers:?}");
    answers.remove(0)
}

/// Who sends slowly, or stops sending, is cut off in bounded time: while the body is awaited with a 408.
#[test]
fn slow_senders_are_cut_off() {
    let server = charged_once();
    let head = b"POST /v1/check HTTP/1.1\r\nHost: test\r\nContent-Length: 30\r\n\r\n";
    let body = br#"{"tenant":"t","limit":"plain"}"#;
    let address = server.check_url();
    thread::scope(|scope| {
        let stalls_in_head = scope.spawn(|| trickle(address, &head[..40], &[]));
        let trickles_head = scope.spawn(|| trickle(address, &head[..20], &head[20..]));
        let stalls_in_body =
            scope.spawn(|| trickle(address, &[&head[..], &body[..10]].concat(), &[]));
        let long_head = b"POST /v1/check HTTP/1.1\r\nHost: test\r\nContent-Length: 10000\r\n\r\n";
        let trickles_body = scope.spawn(|| trickle(address, long_head, &b" ".repeat(10_000)));
        let says_nothing = scope.spawn(|| trickle(address, b"", b""));
        for in_head in [stalls_in_head, trickles_head, says_nothing] {
            let answers = in_head.join().expect("cut off");
            assert!(
                answers.iter().all(|answer| answer.status == 408),
                "{answers:?}"
            );
        }
        for (name, in_body) in [("stalls", stalls_in_body), ("trickles", trickles_body)] {
            let answers = in_body.join().expect("cut off");
            assert_eq!(
                answers
                    .iter()
                    .map(|answer| answer.status)
                    .collect::<Vec<_>>(),
                [408],
                "{name}: {answers:?}"
            );
        }
    });
    unchanged(&server, "slow senders");
    assert_eq!(server.get("/livez").status, 200);
}

/// Sends `first`, then `rest` a byte per second, and gives what came until the server closed.
fn trickle(address: &str, first: &[u8], rest: &[u8]) -> Vec<Answer> {
    let mut stream = TcpStream::connect(address.trim_start_matches("http://")).expect("connected");
    stream
        .set_read_timeout(Some(Duration::from_secs(1)))
        .expect("a timeout");
    stream.write_all(first).expect("sent");
    let started = Instant::now();
    let mut received = Vec::new();
    let mut buffer = [0; 4096];
    for byte in rest.iter().map(Some).chain(std::iter::repeat(None)) {
        assert!(
            started.elapsed() < PATIENCE,
            "still not cut off: {}",
            String::from_utf8_lossy(&received)
        );
        if byte.is_some_and(|byte| stream.write_all(&[*byte]).is_err()) {
            break;
        }
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(length) => received.extend_from_slice(&buffer[..length]),
            Err(error)
                if matches!(
                    error.kind(),
                    std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
                ) => {}
            Err(_) => break,
        }
    }
    parse_answers(&received)
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

/// Clients that send no or another content type are understood: the body decides.
#[test]
fn wrong_content_types_are_tolerated() {
    let server = charged_once();
    let body = Counter::new(&server, "t", "plain").costing(0).to_string();
    for content_type in [
        "",
        "Content-Type: text/plain\r\n",
        "Content-Type: application/x-www-form-urlencoded\r\n",
        "Content-Type: \r\n",
        "Content-Type: %%\r\n",
    ] {
        let request = format!(
            "POST /v1/check HTTP/1.1\r\nHost: test\r\n{content_type}Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        let answers = raw(server.check_url(), request.as_bytes());
        assert_eq!(
            answers
                .iter()
                .map(|answer| answer.status)
                .collect::<Vec<_>>(),
            [200],
            "{content_type}: {answers:?}"
        );
    }
    unchanged(&server, "looks");
}

/// Bytes that are no HTTP, and HTTP that is none of the right kind.
#[test]
fn garbage_on_the_socket_is_ended_and_harms_nobody() {
    let server = charged_once();
    let mut random = StdRng::seed_from_u64(7);
    let check = Counter::new(&server, "t", "plain").body().to_string();
    let with_head =
        |head: &str| format!("POST /v1/check HTTP/1.1\r\n{head}\r\n{check}").into_bytes();
    let mut garbage: Vec<Vec<u8>> = vec![
        b"\r\n\r\n\r\n".to_vec(),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00".to_vec(),
        b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\nb\r\n".to_vec(),
        b"GET\r\n\r\n".to_vec(),
        b"GET / HTTP/9.9\r\n\r\n".to_vec(),
        b"GET /\x00 HTTP/1.1\r\nHost: test\r\n\r\n".to_vec(),
        format!(
            "GET /{} HTTP/1.1\r\nHost: test\r\n\r\n",
            "a".repeat(200 * KIB)
        )
        .into_bytes(),
        format!(
            "GET / HTTP/1.1\r\nHost: test\r\nX: {}\r\n\r\n",
            "a".repeat(900 * KIB)
        )
        .into_bytes(),
        format!(
            "GET / HTTP/1.1\r\nHost: test\r\n{}\r\n",
            "X: y\r\n".repeat(5000)
        )
        .into_bytes(),
        with_head("Host: test\r\nContent-Length: -1\r\n"),
        with_head("Host: test\r\nContent-Length: 1x\r\n"),
        with_head("Host: test\r\nContent-Length: 30\r\nContent-Length: 31\r\n"),
        with_head("Host: test\r\nTransfer-Encoding: gzip\r\n"),
        with_head("Host: test\r\nTransfer-Encoding: chunked\r\n"),
        with_head("Host: test\r\nBad Header\r\n"),
    ];
    for length in [1, 7, 100, 5000, 100_000] {
        garbage.push((0..length).map(|_| random.random()).collect());
    }
    for bytes in garbage {
        for address in [server.check_url(), server.admin_url()] {
            let answers = raw(address, &bytes);
            let told = String::from_utf8_lossy(&bytes[..bytes.len().min(80)]).into_owned();
            assert!(
                answers
                    .iter()
                    .all(|answer| (400..600).contains(&answer.status) && answer.status != 500),
                "{told}: {answers:?}"
            );
        }
        assert_eq!(server.get("/livez").status, 200);
        unchanged(
            &server,
            &String::from_utf8_lossy(&bytes[..bytes.len().min(80)]),
        );
    }
    assert!(!server.log().contains("panicked"), "{}", server.log());
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
