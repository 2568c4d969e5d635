//! The lead is handed over, and members come and go.

use super::*;
use crate::consensus::ProposeError;

#[tokio::test(flavor = "multi_thread")]
async fn the_lead_goes_where_it_is_sent_and_proposals_go_on() {
    let cluster = Cluster::founded(&["a", "b", "c"], settings()).await;
    for to in [1, 2, 0, 2, 1] {
        let from = cluster.leader().await;
        let target = cluster.regions[to].name.clone();
        let payload = vec![u8::try_from(to).expect("a number")];
        let (moved, proposed) = tokio::join!(
            cluster.live(from).consensus.transfer(target.clone()),
            cluster.propose(&[0, 1, 2], &payload),
        );
        moved.expect("a transfer");
        assert!(proposed.index > 0);
        let leader = cluster.leader().await;
        assert_eq!(leader, to);
        assert_eq!(
            cluster.live(to).consensus.transfer(target).await,
            Ok(()),
            "it leads already"
        );
    }
    let follower = cluster.live(0).consensus.transfer(name("a")).await;
    assert!(
        matches!(follower, Err(ProposeError::NotLeader { .. })),
        "{follower:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transfer_that_is_lost_leaves_the_leader_as_it_was() {
    let cluster = Cluster::founded(&["a", "b", "c"], settings()).await;
    cluster.propose(&[0, 1, 2], b"before").await;
    let leader = cluster.leader().await;
    let live = cluster.live(leader);
    let before = live.consensus.leadership().borrow().clone();
    *cluster.net.loses.lock() = Some(|request| matches!(request, Request::Transfer(_)));
    let to = cluster.regions[(leader + 1) % 3].name.clone();
    let (lost, proposed) = tokio::join!(
        live.consensus.transfer(to),
        live.consensus.propose(b"meanwhile".to_vec()),
    );
    assert!(
        matches!(lost, Err(ProposeError::Unavailable(_))),
        "{lost:?}"
    );
    assert_eq!(
        proposed.map(|it| it.term),
        Ok(before.term),
        "it waited and went on"
    );
    // The message came, but the votes of the election are lost.
    *cluster.net.loses.lock() = Some(|request| matches!(request, Request::Vote(_)));
    let to = cluster.regions[(leader + 1) % 3].name.clone();
    let lost = live.consensus.transfer(to).await;
    assert!(lost.is_err(), "{lost:?}");
    *cluster.net.loses.lock() = None;
    cluster.propose(&[0, 1, 2], b"after").await;
    let entries = cluster.agree(&[0, 1, 2], b"after").await;
    assert_eq!(entries.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transfer_to_a_region_that_is_away_fails_and_proposals_go_on() {
    let mut cluster = Cluster::founded(&["a", "b", "c"], settings()).await;
    let leader = cluster.leader().await;
    let away = (leader + 1) % 3;
    cluster.kill(away);
    cluster.propose(&cluster.living(), b"one").await;
    let to = cluster.regions[away].name.clone();
    let live = cluster.live(leader);
    let failed = live.consensus.transfer(to).await;
    assert!(
        matches!(failed, Err(ProposeError::Unavailable(_))),
        "{failed:?}"
    );
    let nobody = live.consensus.transfer(name("nowhere")).await;
    assert!(
        matches!(nobody, Err(ProposeError::Unavailable(_))),
        "{nobody:?}"
    );
    cluster.propose(&cluster.living(), b"two").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn regions_are_added_and_removed_and_the_voters_stay_odd() {
    let mut cluster = Cluster::founded(&["c"], settings()).await;
    let mut voters = vec![vec!["c"]];
    for (region, expected, learners) in [
        ("a", vec!["a", "c"], vec![]),
        ("e", vec!["a", "c", "e"], vec![]),
        ("b", vec!["a", "c", "e"], vec!["b"]),
        ("d", vec!["a", "b", "c", "d", "e"], vec![]),
    ] {
        let at = cluster.join(region).await;
        let member = cluster.member(at);
        let leader = cluster.leader().await;
        let consensus = &cluster.live(leader).consensus;
        consensus.add(member.clone()).await.expect("a member");
        consensus.add(member).await.expect("nothing to do");
        let payload = region.as_bytes();
        cluster.propose(&cluster.living(), payload).await;
        cluster.agree(&cluster.living(), payload).await;
        assert_eq!(cluster.live(at).journal.voters(), expected);
        assert_eq!(cluster.live(at).journal.learners(), learners);
        voters.push(expected);
    }
    // The leader itself, a voter, and a learner.
    let leader = cluster.leader().await;
    let gone = cluster.regions[leader].name.clone();
    cluster
        .live(leader)
        .consensus
        .remove(gone.clone())
        .await
        .expect("a removal");
    let rest: Vec<usize> = (0..5).filter(|at| *at != leader).collect();
    cluster.propose(&rest, b"four").await;
    cluster.agree(&rest, b"four").await;
    let journal = Arc::clone(&cluster.live(rest[0]).journal);
    assert_eq!((journal.voters().len(), journal.learners().len()), (3, 1));
    assert!(!journal.voters().contains(&gone.to_string()));
    cluster.kill(leader);
    let learner = journal.learners().pop().expect("a learner");
    let leader = cluster.leader_among(&rest).await;
    cluster
        .live(leader)
        .consensus
        .remove(name(&learner))
        .await
        .expect("a removal");
    until("it is gone", || {
        journal.learners().is_empty() || !journal.voters().contains(&learner)
    })
    .await;
    let rest: Vec<usize> = rest
        .into_iter()
        .filter(|at| cluster.regions[*at].name.as_str() != learner)
        .collect();
    cluster.propose(&rest, b"three").await;
    cluster.agree(&rest, b"three").await;
    for _ in 0..2 {
        let leader = cluster.leader_among(&rest).await;
        let other = rest
            .iter()
            .find(|at| {
                let name = cluster.regions[**at].name.to_string();
                **at != leader && cluster.live(leader).journal.voters().contains(&name)
            })
            .expect("another voter");
        let gone = cluster.regions[*other].name.clone();
        cluster
            .live(leader)
            .consensus
            .remove(gone)
            .await
            .expect("a removal");
    }
    let last = cluster.leader_among(&rest).await;
    assert_eq!(cluster.live(last).journal.voters().len(), 1);
    let own = cluster.regions[last].name.clone();
    let refused = cluster.live(last).consensus.remove(own).await;
    assert!(
        matches!(refused, Err(ProposeError::Unavailable(_))),
        "{refused:?}"
    );
    let proposed = cluster
        .live(last)
        .consensus
        .propose(b"alone".to_vec())
        .await;
    proposed.expect("one region is enough");
}
