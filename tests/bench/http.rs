//! The check API under load, beside a bare handler and beside itself.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use highwater::catalogue::change::Author;
use highwater::catalogue::change::Change;
use highwater::catalogue::change::Entry;
use highwater::http::body;
use highwater::http::body::CheckBody;
use highwater::http::listener;
use highwater::http::routes;
use highwater::region::clock::Clock;
use highwater::region::cluster;
use highwater::region::config::Above;
use highwater::region::config::Config;
use highwater::region::state::Region;
use highwater::region::timers;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::sync::watch;

use crate::Row;
use crate::load;
use crate::median;

const KEYS: usize = 100_000;
const TURNS: usize = 7;
const TURN: Duration = Duration::from_millis(1_500);

/// A server on a thread of its own, stopped when it is dropped.
pub struct Served {
    /// Where it listens.
    pub address: SocketAddr,
    /// The thread that serves, as the system numbers it.
    #[allow(dead_code, reason = "each bench uses its part")]
    pub thread_id: i32,
    stop: watch::Sender<bool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the server's thread");
        }
    }
}

/// Serves on a thread of its own.
pub fn on_a_thread<F: Future<Output = ()>>(
    serve: impl FnOnce(TcpListener, watch::Receiver<bool>) -> F + Send + 'static,
) -> Served {
    let (stop, stopped) = watch::channel(false);
    let (tell, told) = oneshot::channel();
    let thread = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
            let address = listener.local_addr().expect("an address");
            let thread_id = rustix::thread::gettid().as_raw_nonzero().get();
            tell.send((address, thread_id)).expect("the bench waits");
            serve(listener, stopped).await;
        });
    });
    let (address, thread_id) = told.blocking_recv().expect("the server's address");
    Served {
        address,
        thread_id,
        stop,
        thread: Some(thread),
    }
}

/// A region's configuration in a directory.
pub fn config(dir: &Path, flush_interval: &str) -> Config {
    let text = format!(
        "cluster = \"bench\"\nregion = \"us-east-1\"\ndata_dir = {:?}\nauth.admin_token = \"bench\"\n\
         listen.check = \"127.0.0.1:0\"\nlisten.admin = \"127.0.0.1:0\"\nlisten.peer = \"127.0.0.1:0\"\n\
         store.flush_interval = \"{flush_interval}\"\n",
        dir.display().to_string()
    );
    Config::resolve("bench.toml", &text, Above::default()).expect("a configuration")
}

/// Gives a region the limits that the benches use.
pub async fn set_limits(region: &Arc<Region>) {
    let tree = serde_json::from_str(
        r#"{"limits":{"api":{"algorithm":"token_bucket","capacity":1000000000,"refill":1000000000,"per":"1s","key":"user","match":["remote_address"]}},
            "tenants":{"acme":{}}}"#,
    );
    let entry = Entry {
        author: Author::Operator {
            token: "bench".to_owned(),
        },
        expected_version: None,
        change: Change::Patch {
            tree: tree.expect("a catalogue"),
        },
    };
    region.change(&entry).await.expect("a change");
}

/// A region that is a cluster of its own, and what ends its part in it.
pub async fn alone(config: &Config, stop: &watch::Receiver<bool>) -> Arc<Region> {
    let url = "http://127.0.0.1:0".to_owned();
    let (region, letters) = Region::open(config, Clock::real(), url).expect("a region");
    cluster::join(config, &region, letters, stop)
        .await
        .expect("a log");
    region.wait_until_enrolled().await.expect("a cluster");
    region.restore().expect("the counts on disk");
    set_limits(&region).await;
    region
}

fn region(dir: &Path, flush_interval: &str) -> Served {
    let config = config(dir, flush_interval);
    on_a_thread(move |listener, stop| async move {
        let region = alone(&config, &stop).await;
        timers::start(&region, &stop);
        let flusher = tokio::spawn(timers::flush_until(
            Arc::clone(&region),
            config.flush_interval,
            stop.clone(),
        ));
        let grace = highwater::domain::time::Span::from_seconds(5);
        listener::serve(listener, routes::router(Arc::clone(&region)), stop, grace).await;
        flusher.await.expect("the flusher");
        region.store.close().await.expect("the store");
    })
}

/// A handler that parses the same body and answers the same bytes.
fn bare(answer: &'static str) -> Served {
    on_a_thread(move |listener, mut stop| async move {
        let handler = move |bytes: axum::body::Bytes| async move {
            let parsed: Result<CheckBody<'_>, _> = body::parse(&bytes);
            assert!(parsed.is_ok(), "the load sends good bodies");
            (
                [(axum::http::header::CONTENT_TYPE, "application/json")],
                answer,
            )
        };
        let router = axum::Router::new().route("/v1/check", axum::routing::post(handler));
        axum::serve(listener, router)
            .with_graceful_shutdown(async move { timers::stopped(&mut stop).await })
            .await
            .expect("the bare server");
    })
}

fn checks(keys: usize) -> Arc<Vec<Vec<u8>>> {
    let body = |key: usize| {
        format!(r#"{{"tenant":"acme","limit":"api","key":"user-{key:08x}","cost":1}}"#)
    };
    Arc::new(
        (0..keys)
            .map(|key| load::request("/v1/check", &body(key)))
            .collect(),
    )
}

fn batches(keys: usize, items: usize) -> Arc<Vec<Vec<u8>>> {
    let item = |key: usize| {
        format!(r#"{{"tenant":"acme","limit":"api","key":"user-{key:08x}","cost":1}}"#)
    };
    let body = |batch: usize| {
        let items: Vec<String> = (0..items)
            .map(|offset| item((batch * items + offset) % keys))
            .collect();
        format!(r#"{{"items":[{}]}}"#, items.join(","))
    };
    Arc::new(
        (0..keys / items)
            .map(|batch| load::request("/v1/check/batch", &body(batch)))
            .collect(),
    )
}

/// The ratios of `a` to `b`, taking turns.
pub fn turns(mut a: impl FnMut() -> f64, mut b: impl FnMut() -> f64) -> (f64, f64, f64) {
    a();
    b();
    let pairs: Vec<(f64, f64)> = (0..TURNS).map(|_| (a(), b())).collect();
    let ratio = median(pairs.iter().map(|(a, b)| a / b).collect());
    (
        ratio,
        median(pairs.iter().map(|(a, _)| *a).collect()),
        median(pairs.iter().map(|(_, b)| *b).collect()),
    )
}

const ANSWER: &str = r#"{"decision":"allow","region":"us-east-1","delay_ms":0,"results":[{"limit":"api","key":"user-00000000","mode":"regional","decision":"allow","quota":1000000000,"used":1,"remaining":999999999,"reset_after_ms":1,"retry_after_ms":null,"decided_by":"local","staleness_ms":0,"degraded":false,"epoch":1}]}"#;

/// `POST /v1/check` beside a bare handler of the same bytes.
pub fn against_bare() -> Vec<Row> {
    let dir = tempfile::tempdir().expect("a directory");
    let (ours, bare) = (region(dir.path(), "100ms"), bare(ANSWER));
    let requests = checks(KEYS);
    let (ratio, own, other) = turns(
        || load::run(ours.address, &requests, TURN),
        || load::run(bare.address, &requests, TURN),
    );
    vec![Row {
        what: "`POST /v1/check`, 100 k keys: requests/s against a bare axum handler of the same bytes",
        measured: format!(
            "{ratio:.2} × ({:.0} k/s to {:.0} k/s)",
            own / 1e3,
            other / 1e3
        ),
        wanted: "≥ 0.75 ×",
    }]
}

/// Batches of 100 beside single calls.
pub fn batch_against_single() -> Vec<Row> {
    let dir = tempfile::tempdir().expect("a directory");
    let ours = region(dir.path(), "100ms");
    let (single, batch) = (checks(KEYS), batches(KEYS, 100));
    let (ratio, many, one) = turns(
        || 100.0 * load::run(ours.address, &batch, TURN),
        || load::run(ours.address, &single, TURN),
    );
    vec![Row {
        what: "`POST /v1/check/batch`, 100 a call: checks/s against single calls",
        measured: format!(
            "{ratio:.1} × ({:.0} k/s to {:.0} k/s)",
            many / 1e3,
            one / 1e3
        ),
        wanted: "≥ 8 ×",
    }]
}

/// One hot key beside 100 k keys.
pub fn hot_key_against_many() -> Vec<Row> {
    let dir = tempfile::tempdir().expect("a directory");
    let ours = region(dir.path(), "100ms");
    let (hot, many) = (checks(1), checks(KEYS));
    let (ratio, _, _) = turns(
        || load::run(ours.address, &hot, TURN),
        || load::run(ours.address, &many, TURN),
    );
    vec![Row {
        what: "one hot key against 100 k keys, requests/s",
        measured: format!("{ratio:.2} ×"),
        wanted: "≥ 0.95 ×",
    }]
}

/// Flushing to disk beside not flushing.
pub fn persistence_on_against_off() -> Vec<Row> {
    let (on_dir, off_dir) = (
        tempfile::tempdir().expect("a directory"),
        tempfile::tempdir().expect("a directory"),
    );
    let (on, off) = (region(on_dir.path(), "100ms"), region(off_dir.path(), "1m"));
    let requests = checks(KEYS);
    let (ratio, _, _) = turns(
        || load::run(on.address, &requests, TURN),
        || load::run(off.address, &requests, TURN),
    );
    vec![Row {
        what: "persistence on against off (`async`), 100 k keys, requests/s",
        measured: format!("{ratio:.2} ×"),
        wanted: "≥ 0.9 ×",
    }]
}
