//! A small HTTP/1.1 load generator: prepared requests over kept-alive connections, on one thread of its own.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use tokio::io::AsyncReadExt;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// Connections that send at once.
const CONNECTIONS: usize = 50;

/// A request as bytes.
pub fn request(path: &str, body: &str) -> Vec<u8> {
    format!(
        "POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// Sends `requests` in turn over all connections for `time`; answers requests per second.
pub fn run(address: SocketAddr, requests: &Arc<Vec<Vec<u8>>>, time: Duration) -> f64 {
    run_until(address, requests, time, |bytes| {
        answer_length(bytes).is_some_and(|length| bytes.len() >= length)
    })
}

/// The same where `is_whole` says whether a request's answer has arrived.
pub fn run_until(
    address: SocketAddr,
    requests: &Arc<Vec<Vec<u8>>>,
    time: Duration,
    is_whole: fn(&[u8]) -> bool,
) -> f64 {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let answered = Arc::new(AtomicU64::new(0));
        let began = Instant::now();
        let until = began + time;
        let senders: Vec<_> = (0..CONNECTIONS)
            .map(|sender| {
                tokio::spawn(send(
                    address,
                    Arc::clone(requests),
                    sender,
                    (until, is_whole),
                    Arc::clone(&answered),
                ))
            })
            .collect();
        for sender in senders {
            sender.await.expect("a sender");
        }
        let answered = answered.load(Ordering::Relaxed);
        answered as f64 / began.elapsed().as_secs_f64()
    })
}

async fn send(
    address: SocketAddr,
    requests: Arc<Vec<Vec<u8>>>,
    sender: usize,
    (until, is_whole): (Instant, fn(&[u8]) -> bool),
    answered: Arc<AtomicU64>,
) {
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    stream.set_nodelay(true).expect("no delay");
    let mut buffer = vec![0; 256 * 1024];
    let mut next = sender * requests.len() / CONNECTIONS;
    while Instant::now() < until {
        stream
            .write_all(&requests[next % requests.len()])
            .await
            .expect("a request");
        next += 1;
        let mut filled = 0;
        loop {
            let read = stream.read(&mut buffer[filled..]).await.expect("an answer");
            assert!(read > 0, "the server closed the connection");
            filled += read;
            if is_whole(&buffer[..filled]) {
                break;
            }
        }
        answered.fetch_add(1, Ordering::Relaxed);
    }
}

/// The whole length of an answer, once its head is there.
fn answer_length(bytes: &[u8]) -> Option<usize> {
    let head = bytes.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let text = std::str::from_utf8(&bytes[..head]).ok()?;
    let length = text
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "))?;
    Some(head + length.trim().parse::<usize>().ok()?)
}
