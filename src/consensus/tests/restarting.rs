//! What a process finds again in its directory, and what a region gets that was away for long.

use super::*;

fn with_snapshots() -> Settings {
    Settings {
        snapshot_entries: 100,
        kept_entries: 20,
        ..settings()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn all_die_and_find_everything_again() {
    let mut cluster = Cluster::founded(&["a", "b", "c"], settings()).await;
    for n in 0..10_u8 {
        cluster.propose(&[0, 1, 2], &[n]).await;
    }
    for at in 0..3 {
        cluster.kill(at);
    }
    for at in 0..3 {
        cluster.start(at).await;
    }
    cluster.propose(&[0, 1, 2], b"end").await;
    let entries = cluster.agree(&[0, 1, 2], b"end").await;
    assert_eq!(entries.len(), 11);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_has_applied_what_was_known_to_be_committed() {
    let mut cluster = Cluster::founded(&["a", "b", "c"], settings()).await;
    for n in 0..10_u8 {
        cluster.propose(&[0, 1, 2], &[n]).await;
    }
    cluster.agree(&[0, 1, 2], &[9]).await;
    let known = cluster.live(1).consensus.status().applied_index;
    cluster.live(1).consensus.shutdown().await;
    for at in 0..3 {
        cluster.kill(at);
    }
    // Nobody else is there to tell it anything.
    cluster.start(1).await;
    assert_eq!(cluster.live(1).consensus.status().applied_index, known);
    assert_eq!(cluster.live(1).journal.payloads().len(), 10);
    assert!(!cluster.live(1).consensus.leadership().borrow().is_ready);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_was_away_while_the_log_was_shortened_gets_a_snapshot() {
    let mut cluster = Cluster::founded(&["a", "b", "c"], with_snapshots()).await;
    let leader = cluster.leader().await;
    let away = (leader + 1) % 3;
    cluster.kill(away);
    let rest = cluster.living();
    for n in 0..400_u32 {
        cluster.propose(&rest, &n.to_be_bytes()).await;
    }
    until("the log is shortened", || {
        let status = cluster.live(leader).consensus.status();
        status.snapshot_index >= Some(300) && status.purged_index >= Some(200)
    })
    .await;
    cluster.start(away).await;
    cluster.propose(&rest, b"end").await;
    let entries = cluster.agree(&[0, 1, 2], b"end").await;
    assert_eq!(entries.len(), 401);
    assert!(cluster.live(away).journal.installs.load(Ordering::Relaxed) >= 1);
    assert_eq!(cluster.live(away).journal.voters(), ["a", "b", "c"]);
    // A start from the snapshot and the rest of the log.
    cluster.kill(away);
    cluster.start(away).await;
    cluster.propose(&[0, 1, 2], b"again").await;
    assert_eq!(cluster.agree(&[0, 1, 2], b"again").await.len(), 402);
    assert_eq!(cluster.live(away).journal.voters(), ["a", "b", "c"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_larger_than_one_message_comes_in_parts() {
    let mut cluster = Cluster::founded(&["a", "b", "c"], with_snapshots()).await;
    let leader = cluster.leader().await;
    let away = (leader + 1) % 3;
    cluster.kill(away);
    let rest = cluster.living();
    for n in 0..220_u8 {
        cluster.propose(&rest, &vec![n; 30_000]).await;
    }
    until("the log is shortened", || {
        cluster.live(leader).consensus.status().purged_index >= Some(100)
    })
    .await;
    cluster.start(away).await;
    cluster.propose(&rest, b"end").await;
    cluster.agree(&[0, 1, 2], b"end").await;
    assert!(cluster.live(away).journal.installs.load(Ordering::Relaxed) >= 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_region_far_behind_reads_from_the_disk_of_the_leader() {
    let mut cluster = Cluster::founded(&["a", "b", "c"], settings()).await;
    let leader = cluster.leader().await;
    let away = (leader + 1) % 3;
    cluster.kill(away);
    let rest = cluster.living();
    // More than what stays in memory.
    for n in 0..40_u8 {
        cluster.propose(&rest, &vec![n; 1 << 20]).await;
    }
    cluster.start(away).await;
    cluster.propose(&rest, b"end").await;
    let entries = cluster.agree(&[0, 1, 2], b"end").await;
    assert_eq!(entries.len(), 41);
    assert_eq!(
        cluster.live(away).journal.installs.load(Ordering::Relaxed),
        0
    );
}
