//! Regions that come back to a cluster that went on without them: with an older self, after the log was shortened, with
//! nothing, or with damaged files.

use std::fs;
use std::path::Path;
use std::time::Duration;
use std::time::Instant;

use rusqlite::Connection;
use rusqlite::OpenFlags;
use serde_json::Value;
use serde_json::json;

use crate::counter::Counter;
use crate::group::Cluster;
use crate::group::LONG;
use crate::group::WITHIN;
use crate::group::is_ready;
use crate::group::status;
use crate::load::decided;
use crate::load::spend_all;
use crate::load::wait_used;
use crate::server::Server;
use crate::server::wait_until;

/// Entries after which a log is shortened, and a few more.
const ENTRIES: usize = 22_000;
const BATCH: usize = 1_000;

fn strict(quota: u64) -> Value {
    json!({ "algorithm": "fixed_window", "quota": quota, "window": LONG, "mode": "strict", "durability": "sync" })
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        fs::copy(entry.path(), to.join(entry.file_name())).expect("a file is copied");
    }
}

/// How often the region is started again at the end of REP-1; the case says 50.
fn restarts() -> u64 {
    std::env::var("HIGHWATER_TEST_RESTARTS")
        .map_or(5, |text| text.parse().expect("a number of restarts"))
}

/// REP-1 for strict limits: 20 used, 20 more, and the region comes back as of 20. It is refused as an old copy and
/// lets nothing through; wiped, it is taken back and uses 5. Not 40 and not 25 are used then, but 45.
#[test]
fn a_region_with_an_older_self_spends_nothing_and_a_wiped_one_counts_on() {
    let mut cluster = Cluster::of(3);
    cluster.limits(&json!({ "shared": strict(50), "canary": strict(1_000_000) }));
    let body = json!({ "tenant": "t", "limit": "shared" });
    let victim = cluster.follower();
    assert_eq!(Counter::new(&cluster[victim], "t", "shared").passes(20), 20);
    wait_used(&cluster, "t", "shared", 20);
    let kept = tempfile::tempdir().expect("a directory");
    cluster.terminate(victim);
    copy(&cluster[victim].data_dir(), kept.path());
    cluster.start_again(victim);
    cluster.wait_granted("canary");
    assert_eq!(Counter::new(&cluster[victim], "t", "shared").passes(20), 20);
    wait_used(&cluster, "t", "shared", 40);
    cluster.kill(victim);

    cluster.wipe(victim);
    copy(kept.path(), &cluster[victim].data_dir());
    cluster.start_again(victim);
    let allowed_there = || Counter::new(&cluster[victim], "t", "shared").take(1).status == 200;
    wait_until("it is told that it is an old copy", WITHIN, || {
        assert!(!allowed_there(), "units of an older self");
        let fault = &status(&cluster[victim])["log"]["fault"];
        fault
            .as_str()
            .is_some_and(|fault| fault.contains("old copy"))
    });
    for _ in 0..5 {
        assert!(!allowed_there(), "units of an older self");
    }
    for other in cluster.others(victim) {
        assert_eq!(Counter::new(&cluster[other], "t", "shared").used(), 40);
    }

    cluster.kill(victim);
    cluster.wipe(victim);
    cluster.start_again(victim);
    wait_until("it is taken back", WITHIN, || is_ready(&cluster[victim]));
    cluster.wait_granted("canary");
    let mut used = 40;
    for _ in 0..5 {
        // What its dead processes held is nobody's, so that there may be less than 10 left.
        used += u64::from(decided(&cluster[victim], &body).allowed());
    }
    wait_used(&cluster, "t", "shared", used);
    let left = Counter::new(&cluster[victim], "t", "shared").left();
    println!("{used} used, {left} left, {} stranded", 50 - used - left);
    assert_eq!(used, 45, "the stranded are few");
    assert!(left <= 5);

    cluster.put_limit(cluster.others(victim)[0], "shared", &strict(200));
    for round in 1..=restarts() {
        cluster.kill(victim);
        cluster.start_again(victim);
        assert!(decided(&cluster[victim], &body).allowed(), "round {round}");
        used += 1;
        wait_used(&cluster, "t", "shared", used);
    }
    let left = Counter::new(&cluster[victim], "t", "shared").left();
    assert_eq!(spend_all(&cluster, &body), left);
    wait_used(&cluster, "t", "shared", used + left);
    assert!(used + left <= 200);
}

/// The first and the last index of the log on disk of a region; `None` where a snapshot has just taken all of it.
fn log_on_disk(server: &Server) -> Option<(u64, u64)> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let log = Connection::open_with_flags(server.data_dir().join("log.db"), flags);
    let log = log.expect("the log file");
    log.query_row("SELECT min(idx), max(idx) FROM raft_log", [], |row| {
        let (first, last): (Option<u64>, Option<u64>) = (row.get(0)?, row.get(1)?);
        Ok(first.zip(last))
    })
    .expect("the log is read")
}

/// Whether a region has let go of the entry `index`.
fn is_shortened(server: &Server, index: u64) -> bool {
    log_on_disk(server).is_none_or(|(first, _)| first > index)
}

/// Checks that the log decides, one entry each, until it is shortened: every region that runs has let go of what
/// `missing` is the first entry of.
fn shorten_the_log(cluster: &Cluster, missing: u64) -> u64 {
    let items: Vec<Value> = (0..BATCH)
        .map(|item| json!({ "tenant": "t", "limit": "many", "key": (item % 200).to_string() }))
        .collect();
    let body = json!({ "items": items });
    let began = Instant::now();
    let mut allowed = 0;
    let is_short = || {
        let mut running = cluster.running();
        running.all(|region| is_shortened(&cluster[region], missing))
    };
    let mut sent = 0;
    while sent < ENTRIES || !is_short() {
        assert!(
            began.elapsed() < Duration::from_secs(90),
            "the log is not shortened: {}",
            status(&cluster[cluster.leader()])["log"]
        );
        let at = &cluster[cluster.leader()];
        let answer = at.post("/v1/check/batch", &body);
        answer.succeeded();
        let results = answer.body["results"].as_array().expect("results");
        allowed += results.iter().filter(|it| it["status"] == 200).count() as u64;
        sent += BATCH;
    }
    println!("{allowed} entries and more in {:?}", began.elapsed());
    allowed
}

/// A check of 3 under one key, sent until it is decided.
fn keyed(there: &Server) {
    wait_until("a keyed check is allowed", WITHIN, || {
        let paid = Counter::new(there, "t", "paid");
        let answer = paid.take_once("while it was away", 3);
        answer.status != 503 && answer.allowed()
    });
}

/// What a region knows that has everything that was decided.
fn knows_everything(cluster: &Cluster, region: usize, allowed: u64) {
    let there = &cluster[region];
    wait_until("it has everything", WITHIN, || {
        Counter::new(there, "t", "new").look().status == 200
    });
    let used = |region: usize| {
        let keys = (0..200).map(|key| key.to_string());
        keys.map(|key| Counter::keyed(&cluster[region], "t", "many", &key).used())
            .sum::<u64>()
    };
    // Some that nobody was told of may count, too.
    let of_others = used(cluster.others(region)[0]);
    assert!(of_others >= allowed, "{of_others} of {allowed}");
    wait_until("it counts all of it", WITHIN, || used(region) == of_others);
    let paid = Counter::new(there, "t", "paid");
    wait_until("it knows what is used", WITHIN, || paid.used() == 8);
    // A key that was remembered while it was away.
    keyed(there);
    assert_eq!(paid.used(), 8, "charged once");
}

#[test]
fn a_region_that_was_away_while_the_log_was_shortened_catches_up_by_snapshot_and_can_lead() {
    let mut cluster = Cluster::of(3);
    let mut limits = json!({
        "paid": strict(10), "canary": strict(1_000_000),
        "many": { "algorithm": "sliding_window", "quota": 1_000_000, "window": LONG, "mode": "strict", "key": "k" },
    });
    cluster.limits(&limits);
    let away = cluster.follower();
    let body = json!({ "tenant": "t", "limit": "paid" });
    for _ in 0..5 {
        assert!(decided(&cluster[away], &body).allowed());
    }
    wait_used(&cluster, "t", "paid", 5);
    cluster.terminate(away);
    let (_, last) = log_on_disk(&cluster[away]).expect("the log has entries");
    limits["new"] = strict(7);
    cluster.limits(&limits);
    let here = cluster.others(away)[0];
    keyed(&cluster[here]);
    let allowed = shorten_the_log(&cluster, last + 1);

    cluster.start_again(away);
    knows_everything(&cluster, away, allowed);
    assert!(is_shortened(&cluster[away], last + 1), "by snapshot");
    cluster.wait_granted("canary");

    // The same with nothing at all.
    cluster.kill(away);
    cluster.wipe(away);
    cluster.start_again(away);
    wait_until("it is taken back", WITHIN, || is_ready(&cluster[away]));
    knows_everything(&cluster, away, allowed);
    cluster.wait_granted("canary");

    // It votes and decides like the others, by what the snapshot brought.
    let leader = cluster.leader();
    cluster.kill(leader);
    cluster.wait_for_another_leader(leader);
    knows_everything(&cluster, away, allowed);
    let left = Counter::new(&cluster[away], "t", "paid").left();
    assert!(left <= 2);
    assert_eq!(spend_all(&cluster, &body), left);
    wait_used(&cluster, "t", "paid", 8 + left);
}

/// One region's log file answers garbage: it is refused with a word that names the file, the others go on without it,
/// and wiped it is taken back.
#[test]
fn a_region_with_a_damaged_log_is_refused_and_taken_back_once_it_is_wiped() {
    let mut cluster = Cluster::of(3);
    cluster.limits(&json!({ "paid": strict(10), "canary": strict(1_000_000) }));
    let body = json!({ "tenant": "t", "limit": "paid" });
    for damaged in [cluster.follower(), cluster.leader()] {
        let before = Counter::new(&cluster[damaged], "t", "paid").used();
        assert!(decided(&cluster[damaged], &body).allowed());
        wait_used(&cluster, "t", "paid", before + 1);
        cluster.terminate(damaged);
        let file = cluster[damaged].data_dir().join("log.db");
        let mut bytes = fs::read(&file).expect("the file");
        bytes[4096..].fill(0xa5);
        fs::write(&file, bytes).expect("the file is written");
        let output = cluster[damaged].command().output().expect("it ends");
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains("log.db"), "{error}");
        assert!(!error.contains("panicked"), "{error}");
        for other in cluster.others(damaged) {
            assert!(decided(&cluster[other], &body).allowed());
        }
        cluster.wipe(damaged);
        cluster.start_again(damaged);
        wait_until("it is taken back", WITHIN, || is_ready(&cluster[damaged]));
        cluster.wait_granted("canary");
        wait_used(&cluster, "t", "paid", before + 3);
    }
    let left = Counter::new(&cluster[0], "t", "paid").left();
    assert!(left <= 4);
    assert_eq!(spend_all(&cluster, &body), left);
}
