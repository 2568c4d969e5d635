//! A disk that fails, and directories that are not what they were.

use super::*;
use crate::consensus::ProposeError;
use crate::store::RaftDone;
use crate::store::RaftWrite;
use crate::store::StoreFault;
use crate::store::restore_backup;

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_whose_disk_fails_is_replaced_and_comes_back_without_a_new_process() {
    for fault in [StoreFault::Errors, StoreFault::Full] {
        let cluster = Cluster::founded(&["a", "b", "c"], settings()).await;
        cluster.propose(&[0, 1, 2], b"before").await;
        cluster.agree(&[0, 1, 2], b"before").await;
        let old = cluster.leader().await;
        let live = cluster.live(old);
        live.store.inject(fault).await.expect("a fault");
        let refused = live.consensus.propose(b"refused".to_vec()).await;
        assert!(
            matches!(
                refused,
                Err(ProposeError::OutcomeUnknown | ProposeError::Unavailable(_))
            ),
            "{refused:?}"
        );
        until("it stopped", || live.consensus.status().fault.is_some()).await;
        assert_eq!(live.consensus.leadership().borrow().leader, None);
        let stopped = live.consensus.propose(vec![1]).await;
        assert!(
            matches!(stopped, Err(ProposeError::Unavailable(_))),
            "{stopped:?}"
        );
        assert_eq!(
            live.journal.payloads(),
            [b"before".to_vec()],
            "the state stays readable"
        );
        let rest: Vec<usize> = (0..3).filter(|at| *at != old).collect();
        cluster.propose(&rest, b"meanwhile").await;
        live.consensus
            .restart()
            .await
            .expect_err("the disk still fails");
        live.store.clear_fault().await.expect("no fault");
        live.store.probe().await.expect("a probe");
        live.consensus.restart().await.expect("a restart");
        assert_eq!(live.consensus.status().fault, None);
        cluster.propose(&[0, 1, 2], b"after").await;
        let entries = cluster.agree(&[0, 1, 2], b"after").await;
        let known: Vec<&[u8]> = entries
            .iter()
            .map(Vec::as_slice)
            .filter(|it| *it != b"refused")
            .collect();
        assert_eq!(known, [b"before".as_slice(), b"meanwhile", b"after"]);
        live.consensus.restart().await.expect("it runs already");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_whose_disk_fails_costs_nothing_and_catches_up() {
    let cluster = Cluster::founded(&["a", "b", "c"], settings()).await;
    let leader = cluster.leader().await;
    let follower = (leader + 1) % 3;
    let live = cluster.live(follower);
    live.store
        .inject(StoreFault::Errors)
        .await
        .expect("a fault");
    for n in 0..20_u8 {
        cluster.propose(&[leader], &[n]).await;
    }
    until("it stopped", || live.consensus.status().fault.is_some()).await;
    live.store.clear_fault().await.expect("no fault");
    live.store.probe().await.expect("a probe");
    live.consensus.restart().await.expect("a restart");
    cluster.propose(&[0, 1, 2], b"end").await;
    assert_eq!(cluster.agree(&[0, 1, 2], b"end").await.len(), 21);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wiped_region_rejoins_as_a_new_voter() {
    let mut cluster = Cluster::founded(&["a", "b", "c"], settings()).await;
    cluster.propose(&[0, 1, 2], b"before").await;
    let leader = cluster.leader().await;
    let wiped = (leader + 1) % 3;
    let old = cluster.member(wiped);
    cluster.kill(wiped);
    cluster.wipe(wiped);
    cluster.start(wiped).await;
    let new = cluster.member(wiped);
    assert_ne!(old.voter, new.voter);
    let rest: Vec<usize> = (0..3).filter(|at| *at != wiped).collect();
    let leader = cluster.leader_among(&rest).await;
    cluster
        .live(leader)
        .consensus
        .add(new.clone())
        .await
        .expect("a new voter");
    cluster.propose(&[0, 1, 2], b"after").await;
    cluster.agree(&[0, 1, 2], b"after").await;
    let voters = cluster.live(leader).consensus.status().voters;
    let voters: Vec<u64> = voters.iter().map(|it| it.member.voter).collect();
    assert!(voters.len() == 3 && voters.contains(&new.voter) && !voters.contains(&old.voter));
    // It counts: with it and one other there is a majority.
    let other = rest.into_iter().find(|at| *at != leader).expect("another");
    cluster.kill(other);
    cluster.propose(&cluster.living(), b"end").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_backup_is_a_new_voter_with_an_empty_log() {
    let mut cluster = Cluster::founded(&["a", "b", "c"], settings()).await;
    cluster.propose(&[0, 1, 2], b"before").await;
    let at = (cluster.leader().await + 1) % 3;
    let old = cluster.member(at);
    cluster
        .live(at)
        .store
        .set_cluster(7)
        .await
        .expect("a cluster");
    let outside = tempfile::tempdir().expect("a directory");
    let file = outside.path().join("backup.db");
    cluster
        .live(at)
        .store
        .backup(&file)
        .await
        .expect("a backup");
    cluster.kill(at);
    cluster.wipe(at);
    restore_backup(&file, cluster.regions[at].dir.path()).expect("a restore");
    cluster.start(at).await;
    let identity = cluster.live(at).store.identity();
    assert_ne!(identity.voter, old.voter);
    assert_eq!(identity.cluster, None);
    let marks = cluster.live(at).store.raft_marks().await.expect("marks");
    assert_eq!(marks, crate::store::RaftMarks::default());
    assert_eq!(cluster.live(at).store.raft_snapshot().await, Ok(None));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_went_back_in_time_is_refused() {
    let mut cluster = Cluster::founded(&["a", "b", "c"], settings()).await;
    cluster.propose(&[0, 1, 2], b"one").await;
    cluster.agree(&[0, 1, 2], b"one").await;
    let leader = cluster.leader().await;
    let at = (leader + 1) % 3;
    cluster.kill(at);
    drop(cluster.open(at).await);
    let copy = tempfile::tempdir().expect("a directory");
    for file in std::fs::read_dir(cluster.regions[at].dir.path()).expect("a directory") {
        let file = file.expect("a file");
        std::fs::copy(file.path(), copy.path().join(file.file_name())).expect("a copy");
    }
    cluster.start(at).await;
    for n in 0..10_u8 {
        cluster.propose(&[0, 1, 2], &[n]).await;
    }
    cluster.agree(&[0, 1, 2], &[9]).await;
    let leader = cluster.leader().await;
    if leader == at {
        // Only a leader knows what others acknowledged; make it one of the others.
        let to = cluster.regions[(at + 1) % 3].name.clone();
        cluster
            .live(at)
            .consensus
            .transfer(to)
            .await
            .expect("a transfer");
        cluster.propose(&[0, 1, 2], b"ten").await;
        cluster.agree(&[0, 1, 2], b"ten").await;
    }
    let leader = cluster.leader().await;
    until("the leader knows how far it had come", || {
        let status = cluster.live(leader).consensus.status();
        status
            .voters
            .iter()
            .all(|it| it.matched_index == status.last_log_index)
    })
    .await;
    cluster.kill(at);
    drop(cluster.open(at).await);
    cluster.regions[at].dir = copy;
    cluster.start(at).await;
    until("it is refused and stops", || {
        let fault = cluster.live(at).consensus.status().fault;
        fault.is_some_and(|fault| fault.contains("old copy"))
    })
    .await;
    let rest: Vec<usize> = (0..3).filter(|it| *it != at).collect();
    cluster.propose(&rest, b"end").await;
    let voter = cluster.member(at).voter;
    let leader = cluster.leader_among(&rest).await;
    let status = cluster.live(leader).consensus.status();
    assert!(
        status
            .voters
            .iter()
            .any(|it| it.member.voter == voter && it.went_back)
    );
}

/// A majority had entries, and this machine applied them, that this disk did not take.
#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_is_ahead_of_its_disk_goes_on_from_where_it_is() {
    let mut cluster = Cluster::founded(&["a", "b", "c"], settings()).await;
    for n in 0..10_u8 {
        cluster.propose(&[0, 1, 2], &[n]).await;
    }
    cluster.agree(&[0, 1, 2], &[9]).await;
    let follower = (cluster.leader().await + 1) % 3;
    let live = cluster.live(follower);
    live.store
        .inject(StoreFault::Errors)
        .await
        .expect("a fault");
    until("it stopped", || live.consensus.status().fault.is_some()).await;
    live.store.clear_fault().await.expect("no fault");
    live.store.probe().await.expect("a probe");
    let (to, answer) = oneshot::channel();
    let done = RaftDone::new(move |outcome| drop(to.send(outcome)));
    let truncate = RaftWrite::Truncate { after: Some(5) };
    live.store.raft_write(truncate, done).await;
    answer.await.expect("an answer").expect("a write");
    live.consensus.restart().await.expect("a restart");
    cluster.propose(&[0, 1, 2], b"after").await;
    cluster.agree(&[0, 1, 2], b"after").await;
    // What is on disk now is whole.
    cluster.kill(follower);
    cluster.start(follower).await;
    cluster.propose(&[0, 1, 2], b"end").await;
    assert_eq!(cluster.agree(&[0, 1, 2], b"end").await.len(), 12);
}

/// Cannot carry out what begins with an exclamation mark.
struct Choosy;

impl Machine for Choosy {
    fn apply(&self, entry: Committed<'_>) -> Vec<u8> {
        assert!(!entry.payload.starts_with(b"!"), "a bug in the machine");
        Vec::new()
    }

    fn members(&self, _index: u64, _members: &Membership) {}

    fn snapshot(&self) -> Vec<u8> {
        Vec::new()
    }

    fn install(&self, _snapshot: &[u8]) -> Result<(), String> {
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_panics_stops_consensus_and_not_the_process() {
    let dir = tempfile::tempdir().expect("a directory");
    let region = name("a");
    let store = open_store(dir.path(), &region).expect("a store");
    let voter = store.identity().voter;
    let net: Arc<Net> = Arc::default();
    let end = Arc::new(End {
        net,
        voter,
        region: region.clone(),
    });
    let started = Consensus::start(
        store,
        voter,
        region.clone(),
        settings(),
        end,
        Arc::new(Choosy),
    );
    let consensus = started.await.expect("a start");
    let url = String::new();
    let member = Member { voter, region, url };
    consensus.found(vec![member]).await.expect("a cluster");
    consensus.propose(b"fine".to_vec()).await.expect("an entry");
    let unknown = consensus.propose(b"!".to_vec()).await;
    assert_eq!(unknown, Err(ProposeError::OutcomeUnknown));
    until("it stopped", || {
        let fault = consensus.status().fault;
        fault.is_some_and(|fault| fault.contains("cannot carry entry"))
    })
    .await;
    assert!(!consensus.leadership().borrow().is_self);
}
