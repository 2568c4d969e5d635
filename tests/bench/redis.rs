//! `CL.THROTTLE` beside Redis with the same arithmetic in a Lua script, both on one thread, 16 calls a write.

use std::net::SocketAddr;
use std::net::TcpListener;
use std::net::TcpStream;
use std::process::Child;
use std::process::Command;
use std::process::Stdio;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use highwater::domain::time::Span;
use highwater::region::timers;
use highwater::resp::listener;

use crate::Row;
use crate::http;
use crate::load;

const KEYS: usize = 100_000;
const PIPELINED: usize = 16;
const TURN: Duration = Duration::from_millis(1_500);
/// A token bucket by the generic cell rate algorithm, with redis-cell's answer.
const SCRIPT: &str = "\
local burst, count, period, quantity = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local interval = period * 1000000 / count
local limit = burst + 1
local tolerance = interval * limit
local arrival = math.max(tonumber(redis.call('GET', KEYS[1]) or now), now)
local after = arrival + interval * quantity
local limited, retry = 0, -1
if after - tolerance > now then
  limited, retry, after = 1, math.ceil((after - tolerance - now) / 1000000), arrival
else
  redis.call('SET', KEYS[1], after, 'PX', math.ceil((after - now) / 1000) + 1)
end
local left = math.floor((tolerance - (after - now)) / interval)
return { limited, limit, left, retry, math.ceil((after - now) / 1000000) }";

struct Redis {
    child: Child,
    address: SocketAddr,
    _directory: tempfile::TempDir,
}

impl Drop for Redis {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Redis without a disk, on a free port; `None` when it is not here.
fn redis() -> Option<Redis> {
    let directory = tempfile::tempdir().expect("a directory");
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let address = listener.local_addr().expect("bound");
    drop(listener);
    let child = Command::new("redis-server")
        .args(["--port", &address.port().to_string(), "--bind", "127.0.0.1"])
        .args(["--save", "", "--appendonly", "no"])
        .current_dir(directory.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .ok()?;
    for _ in 0..1_000 {
        if TcpStream::connect(address).is_ok() {
            break;
        }
        thread::sleep(Duration::from_millis(5));
    }
    Some(Redis {
        child,
        address,
        _directory: directory,
    })
}

fn region(dir: &std::path::Path) -> http::Served {
    let config = http::config(dir, "100ms");
    http::on_a_thread(move |socket, stop| async move {
        let region = http::alone(&config, &stop).await;
        timers::start(&region, &stop);
        let flusher = tokio::spawn(timers::flush_until(
            Arc::clone(&region),
            config.flush_interval,
            stop.clone(),
        ));
        let tenant = Some(Arc::from("acme"));
        let grace = Span::from_seconds(5);
        listener::serve(socket, Arc::clone(&region), tenant, stop, grace).await;
        flusher.await.expect("the flusher");
        region.store.close().await.expect("the store");
    })
}

/// Writes of 16 calls each; `words` gives those of a key's call.
fn calls(words: impl Fn(&str) -> Vec<String>) -> Arc<Vec<Vec<u8>>> {
    let call = |key: usize| {
        let words = words(&format!("user-{key:08x}"));
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            bytes.extend(format!("${}\r\n{word}\r\n", word.len()).into_bytes());
        }
        bytes
    };
    let write = |n: usize| -> Vec<u8> {
        (0..PIPELINED)
            .flat_map(|offset| call(n * PIPELINED + offset))
            .collect()
    };
    Arc::new((0..KEYS / PIPELINED).map(write).collect())
}

/// Whether 16 answers of five numbers each are there.
fn is_whole(bytes: &[u8]) -> bool {
    assert_ne!(bytes.first(), Some(&b'-'), "an answer and no error");
    bytes.iter().filter(|byte| **byte == b'\n').count() == PIPELINED * 6
}

/// `CL.THROTTLE` beside a Lua script.
pub fn against_redis() -> Vec<Row> {
    let Some(redis) = redis() else {
        println!("skipped: there is no redis-server");
        return Vec::new();
    };
    let dir = tempfile::tempdir().expect("a directory");
    let ours = region(dir.path());
    let amounts = ["99999", "1000000", "60", "1"];
    let own = calls(|key| {
        let mut words = vec!["CL.THROTTLE".to_owned(), key.to_owned()];
        words.extend(amounts.map(str::to_owned));
        words
    });
    let hash = load_script(redis.address);
    let theirs = calls(|key| {
        let mut words = vec!["EVALSHA".to_owned(), hash.clone(), "1".to_owned()];
        words.push(key.to_owned());
        words.extend(amounts.map(str::to_owned));
        words
    });
    let each =
        |address, writes| PIPELINED as f64 * load::run_until(address, writes, TURN, is_whole);
    let (ratio, a, b) = http::turns(|| each(ours.address, &own), || each(redis.address, &theirs));
    vec![Row {
        what: "`CL.THROTTLE`, 16 a write, 100 k keys: calls/s against Redis with a token bucket in Lua",
        measured: format!("{ratio:.2} × ({:.0} k/s to {:.0} k/s)", a / 1e3, b / 1e3),
        wanted: "≥ 2 ×",
    }]
}

fn load_script(address: SocketAddr) -> String {
    use std::io::Read;
    use std::io::Write;

    let mut stream = TcpStream::connect(address).expect("connects");
    let command = format!(
        "*3\r\n$6\r\nSCRIPT\r\n$4\r\nLOAD\r\n${}\r\n{SCRIPT}\r\n",
        SCRIPT.len()
    );
    stream.write_all(command.as_bytes()).expect("sends");
    let mut reply = [0; 47];
    stream.read_exact(&mut reply).expect("a hash");
    let text = String::from_utf8_lossy(&reply).into_owned();
    let hash = text.lines().nth(1).expect("two lines").to_owned();
    assert_eq!(hash.len(), 40, "{text}");
    hash
}
