//! Clusters of every size come to be, commit in one order, and refuse what does not fit.

use super::*;
use crate::consensus::FoundError;
use crate::consensus::ProposeError;
use crate::consensus::StartError;

#[tokio::test(flavor = "multi_thread")]
async fn one_region_founds_commits_and_leads_again_after_a_kill() {
    let mut cluster = Cluster::founded(&["a"], settings()).await;
    let first = cluster.propose(&[0], b"one").await;
    let second = cluster.propose(&[0], b"two").await;
    assert!(second.index > first.index);
    assert_eq!((first.reply, second.reply), (b"1".to_vec(), b"2".to_vec()));
    assert_eq!(*cluster.live(0).consensus.applied().borrow(), second.index);
    cluster.kill(0);
    cluster.start(0).await;
    let third = cluster.propose(&[0], b"three").await;
    assert!(third.term > second.term);
    assert_eq!(
        cluster.live(0).journal.payloads(),
        [b"one".to_vec(), b"two".to_vec(), b"three".to_vec()]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn three_regions_apply_the_same_in_the_same_order() {
    let cluster = Cluster::founded(&["a", "b", "c"], settings()).await;
    let leader = cluster.leader().await;
    let consensus = &cluster.live(leader).consensus;
    let proposals = (0..200_u32).map(|n| consensus.propose(n.to_be_bytes().to_vec()));
    let done = futures_util::future::join_all(proposals).await;
    assert!(done.iter().all(Result::is_ok), "{done:?}");
    let last = cluster.propose(&[0, 1, 2], b"last").await;
    let entries = cluster.agree(&[0, 1, 2], b"last").await;
    assert_eq!(entries.len(), 201);
    let indexes: BTreeSet<u64> = done.into_iter().flatten().map(|it| it.index).collect();
    assert!(indexes.len() == 200 && indexes.iter().all(|index| *index < last.index));
    for follower in [0, 1, 2].into_iter().filter(|at| *at != leader) {
        let refused = cluster.live(follower).consensus.propose(vec![1]).await;
        let leader = Some(cluster.member(leader));
        assert_eq!(refused, Err(ProposeError::NotLeader { leader }));
    }
    let status = cluster.live(leader).consensus.status();
    assert_eq!((status.voters.len(), status.learners.len()), (3, 0));
    assert!(
        status
            .voters
            .iter()
            .all(|voter| voter.since_contact.is_some()
                || voter.member.voter == cluster.member(leader).voter)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn two_regions_need_both() {
    let mut cluster = Cluster::founded(&["a", "b"], settings()).await;
    cluster.propose(&[0, 1], b"one").await;
    cluster.agree(&[0, 1], b"one").await;
    let leader = cluster.leader().await;
    cluster.kill(1 - leader);
    let alone = cluster
        .live(leader)
        .consensus
        .propose_within(b"two".to_vec(), Duration::from_millis(800));
    let refused = alone.await.expect_err("no majority");
    assert!(
        matches!(
            refused,
            ProposeError::Unavailable(_) | ProposeError::OutcomeUnknown
        ),
        "{refused}"
    );
    cluster.start(1 - leader).await;
    cluster.propose(&[0, 1], b"three").await;
    let entries = cluster.agree(&[0, 1], b"three").await;
    assert!(entries.len() == 2 || entries.len() == 3, "{entries:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_four_regions_the_last_one_listens() {
    let cluster = Cluster::founded(&["b", "d", "c", "a"], settings()).await;
    cluster.propose(&[0, 1, 2, 3], b"one").await;
    cluster.agree(&[0, 1, 2, 3], b"one").await;
    for at in 0..4 {
        until("the members are known", || {
            cluster.live(at).journal.voters() == ["a", "b", "c"]
                && cluster.live(at).journal.learners() == ["d"]
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_fit_is_not_founded() {
    let cluster = Cluster::new(&["a", "b"], settings()).await;
    let (a, b) = (cluster.member(0), cluster.member(1));
    let founder = &cluster.live(0).consensus;
    for members in [vec![b.clone()], vec![a.clone(), a.clone()], vec![]] {
        let refused = founder.found(members).await;
        assert!(
            matches!(refused, Err(FoundError::Members(_))),
            "{refused:?}"
        );
    }
    let early = founder
        .propose_within(vec![1], Duration::from_millis(100))
        .await;
    assert_eq!(early, Err(ProposeError::NotLeader { leader: None }));
    founder.found(vec![a.clone()]).await.expect("a cluster");
    let again = founder.found(vec![a, b]).await;
    assert_eq!(again, Err(FoundError::AlreadyFounded));
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_that_contradict_each_other_are_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = open_store(dir.path(), &name("a")).expect("a store");
    let voter = store.identity().voter;
    let end = End {
        net: Arc::default(),
        voter,
        region: name("a"),
    };
    let wrong = Settings {
        election_min: Duration::from_millis(50),
        heartbeat: Duration::from_millis(60),
        ..settings()
    };
    let journal = Arc::new(Journal::default());
    let started = Consensus::start(store, voter, name("a"), wrong, Arc::new(end), journal).await;
    assert!(matches!(started, Err(StartError::Settings(_))));
}
