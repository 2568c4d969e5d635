//! Bad input below the level of JSON: bodies of any bytes and sizes, slow senders, and bytes that are no HTTP.

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
use serde_json::json;

use crate::answer::Answer;
use crate::bad_input::KIB;
use crate::bad_input::charged_once;
use crate::bad_input::unchanged;
use crate::counter::Counter;
use crate::server::Server;

/// A slow sender is cut off within this time.
const PATIENCE: Duration = Duration::from_secs(60);

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

/// Who sends a body slowly, or stops sending, is told so with a 408 in bounded time.
#[test]
fn slow_bodies_are_cut_off() {
    let server = charged_once();
    let head = |length: usize| {
        format!("POST /v1/check HTTP/1.1\r\nHost: test\r\nContent-Length: {length}\r\n\r\n")
            .into_bytes()
    };
    let stalled = [head(30), br#"{"tenant":"#.to_vec()].concat();
    let cut_off = slow_senders(
        &server,
        &[(stalled, b"".to_vec()), (head(10_000), b" ".repeat(10_000))],
    );
    for answers in cut_off {
        assert_eq!(answers.len(), 1, "{answers:?}");
        answers[0].problem_with_status(408);
    }
    unchanged(&server, "slow bodies");
}

/// Who sends a head slowly, or stops sending, is cut off in bounded time.
#[test]
fn slow_heads_are_cut_off() {
    let server = charged_once();
    let head = b"POST /v1/check HTTP/1.1\r\nHost: test\r\nContent-Length: 30\r\n\r\n";
    let cut_off = slow_senders(
        &server,
        &[
            (head[..40].to_vec(), b"".to_vec()),
            (head[..20].to_vec(), head[20..].to_vec()),
        ],
    );
    for answers in cut_off {
        assert!(
            answers.iter().all(|answer| answer.status == 408),
            "{answers:?}"
        );
    }
    unchanged(&server, "slow heads");
}

/// A connection that says nothing, or only how HTTP/2 begins, does not keep its place for ever.
#[test]
fn silent_connections_are_cut_off() {
    let server = charged_once();
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let cut_off = slow_senders(
        &server,
        &[
            (b"".to_vec(), b"".to_vec()),
            (preface[..9].to_vec(), b"".to_vec()),
            (preface.to_vec(), b"".to_vec()),
        ],
    );
    assert_eq!(cut_off.len(), 3);
    unchanged(&server, "silence");
}

/// All senders at once, each as [`trickle`] does it; the server must still live afterwards.
fn slow_senders(server: &Server, senders: &[(Vec<u8>, Vec<u8>)]) -> Vec<Vec<Answer>> {
    let address = server.check_url();
    let answers = thread::scope(|scope| {
        let senders: Vec<_> = senders
            .iter()
            .map(|(first, rest)| scope.spawn(|| trickle(address, first, rest)))
            .collect();
        senders
            .into_iter()
            .map(|sender| sender.join().expect("cut off in time"))
            .collect()
    });
    assert_eq!(server.get("/livez").status, 200);
    answers
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
            let answers = raw_to_the_end(address, &bytes);
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

/// Sends bytes as they are and reads until the server closes.
fn raw(address: &str, bytes: &[u8]) -> Vec<Answer> {
    let mut stream = connect(address);
    // The server may have answered and closed before all was sent.
    drop(stream.write_all(bytes));
    read_answers(&mut stream)
}

/// The same, and says that nothing more will come.
fn raw_to_the_end(address: &str, bytes: &[u8]) -> Vec<Answer> {
    let mut stream = connect(address);
    drop(stream.write_all(bytes));
    drop(stream.shutdown(Shutdown::Write));
    read_answers(&mut stream)
}

fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address.trim_start_matches("http://")).expect("connected");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream
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

/// One `POST` with any bytes as its body.
pub fn post_bytes(server: &Server, path: &str, body: &[u8]) -> Answer {
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let mut answers = raw(server.check_url(), &[head.as_bytes(), body].concat());
    assert_eq!(answers.len(), 1, "{path}: {answers:?}");
    answers.remove(0)
}
