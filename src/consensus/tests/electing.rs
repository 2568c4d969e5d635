//! Leaders come and go, and nothing that was acknowledged is lost.

use super::*;
use crate::consensus::ProposeError;
use crate::store::StoreFault;

#[tokio::test(flavor = "multi_thread")]
async fn when_the_leader_dies_another_one_has_all_that_was_acknowledged() {
    let mut cluster = Cluster::founded(&["a", "b", "c"], settings()).await;
    for n in 0..20_u8 {
        cluster.propose(&[0, 1, 2], &[n]).await;
    }
    let first = cluster.leader().await;
    let term = cluster.live(first).consensus.status().term;
    cluster.kill(first);
    let rest = cluster.living();
    let after = cluster.propose(&rest, b"after").await;
    assert!(after.term > term);
    let entries = cluster.agree(&rest, b"after").await;
    let expected: Vec<Vec<u8>> = (0..20)
        .map(|n| vec![n])
        .chain([b"after".to_vec()])
        .collect();
    assert_eq!(entries, expected);
    cluster.start(first).await;
    cluster.agree(&[0, 1, 2], b"after").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_cut_off_does_not_know_what_became_of_its_entry() {
    let cluster = Cluster::founded(&["a", "b", "c"], settings()).await;
    cluster.propose(&[0, 1, 2], b"before").await;
    let old = cluster.leader().await;
    let old_name = cluster.regions[old].name.to_string();
    cluster.net.cut(&old_name);
    // Its lease still runs, so it takes the entry in; nobody else ever sees it.
    let lost = cluster.live(old).consensus.propose(b"lost".to_vec());
    let lost = tokio::spawn(lost);
    let rest: Vec<usize> = (0..3).filter(|at| *at != old).collect();
    cluster.propose(&rest, b"after").await;
    // Without a majority it refuses at once, and says that nothing was appended.
    until("the lease is over", || {
        let since = cluster.live(old).consensus.status().since_majority;
        since.is_some_and(|since| since > settings().election_max)
    })
    .await;
    let refused = &cluster.live(old).consensus;
    let refused = refused
        .propose_within(b"refused".to_vec(), Duration::from_secs(1))
        .await;
    assert!(
        matches!(refused, Err(ProposeError::Unavailable(_))),
        "{refused:?}"
    );
    cluster.net.heal();
    cluster.agree(&[0, 1, 2], b"after").await;
    assert_eq!(
        lost.await.expect("an answer"),
        Err(ProposeError::OutcomeUnknown)
    );
    let entries = cluster.agree(&[0, 1, 2], b"after").await;
    assert_eq!(entries, [b"before".to_vec(), b"after".to_vec()]);
    until("it follows", || {
        let now = cluster.live(old).consensus.leadership().borrow().clone();
        !now.is_self && now.leader.is_some()
    })
    .await;
}

type Answer = (Vec<u8>, Result<Proposed, ProposeError>);

/// Proposals from all sides while leaders are killed, cut off and started again. What was acknowledged is
/// there at the end, once; what was refused is not there.
#[tokio::test(flavor = "multi_thread")]
async fn under_kills_and_cuts_every_answer_is_true() {
    let mut cluster = Cluster::founded(&["a", "b", "c"], settings()).await;
    *cluster.net.delay.lock() = Duration::from_millis(2);
    let stop = Arc::new(AtomicU64::new(0));
    let answers: Arc<Mutex<Vec<Answer>>> = Arc::default();
    let clients: Vec<_> = (0..4_u64)
        .map(|client| {
            let (net, stop, answers) = (
                Arc::clone(&cluster.net),
                Arc::clone(&stop),
                Arc::clone(&answers),
            );
            tokio::spawn(async move {
                let mut n = 0_u64;
                while stop.load(Ordering::Relaxed) == 0 {
                    n += 1;
                    let payload = [client.to_be_bytes(), n.to_be_bytes()].concat();
                    let regions: Vec<Consensus> = net.regions.lock().values().cloned().collect();
                    let leading = regions.iter().find(|it| it.leadership().borrow().is_self);
                    let Some(target) = leading.or(regions.first()) else {
                        sleep(Duration::from_millis(5)).await;
                        continue;
                    };
                    let answer = target.propose_within(payload.clone(), Duration::from_millis(700));
                    drop(regions);
                    let answer = answer.await;
                    answers.lock().push((payload, answer));
                    sleep(Duration::from_millis(3)).await;
                }
            })
        })
        .collect();
    for round in 0..5 {
        let leader = cluster.leader().await;
        sleep(Duration::from_millis(150)).await;
        let rest: Vec<usize> = (0..3).filter(|at| *at != leader).collect();
        let region = cluster.regions[leader].name.clone();
        match round {
            0 | 4 => {
                cluster.kill(leader);
                cluster.propose(&rest, &[round]).await;
                cluster.start(leader).await;
            }
            1 => {
                cluster.net.cut(region.as_str());
                cluster.propose(&rest, &[round]).await;
                cluster.net.heal();
            }
            2 => {
                let live = cluster.live(leader);
                let fault = live.store.inject(StoreFault::Errors).await;
                fault.expect("a fault");
                cluster.propose(&rest, &[round]).await;
                live.store.clear_fault().await.expect("no fault");
                live.store.probe().await.expect("a probe");
                live.consensus.restart().await.expect("a restart");
            }
            _ => {
                let to = cluster.regions[rest[0]].name.clone();
                let moved = cluster.live(leader).consensus.transfer(to).await;
                // The lead may have moved by itself meanwhile; the answers must be true all the same.
                if moved.is_ok() {
                    cluster.propose(&[0, 1, 2], &[round]).await;
                }
            }
        }
    }
    stop.store(1, Ordering::Relaxed);
    for client in clients {
        client.await.expect("a client");
    }
    cluster.propose(&[0, 1, 2], b"end").await;
    let entries = cluster.agree(&[0, 1, 2], b"end").await;
    let mut counts: BTreeMap<&[u8], u32> = BTreeMap::new();
    for entry in &entries {
        *counts.entry(entry).or_default() += 1;
    }
    let answers = answers.lock();
    let mut done = 0;
    for (payload, answer) in answers.iter() {
        let count = counts.get(payload.as_slice()).copied().unwrap_or(0);
        match answer {
            Ok(_) => {
                done += 1;
                assert_eq!(count, 1, "acknowledged: {payload:?}");
            }
            Err(ProposeError::OutcomeUnknown) => assert!(count <= 1),
            Err(error) => assert_eq!(count, 0, "{error}: {payload:?}"),
        }
    }
    assert!(done > 50, "{done} of {}", answers.len());
}
