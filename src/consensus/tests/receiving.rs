//! What comes from outside is looked at before it is believed, in the order in which it came.

use openraft::EntryPayload;
use openraft::raft::AppendEntriesRequest;
use openraft::raft::AppendEntriesResponse;
use openraft::raft::VoteRequest;
use proptest::prelude::any;
use proptest::prop_assert;
use proptest::proptest;

use super::*;
use crate::consensus::message::Answer;
use crate::consensus::message::Refusal;
use crate::consensus::message::encode;
use crate::consensus::types::Entry;
use crate::consensus::types::LeaderId;
use crate::consensus::types::LogId;
use crate::consensus::types::Members;
use crate::consensus::types::Peer;
use crate::consensus::types::TypeConfig;
use crate::consensus::types::Vote;
use crate::consensus::types::id_of;
use crate::store::LogPlace;

const LEADER: u64 = 77;

fn vote() -> Vote {
    Vote {
        leader_id: LeaderId {
            term: 1,
            voted_for: LEADER,
        },
        committed: true,
    }
}

fn id(index: u64) -> LogId {
    id_of(LogPlace { term: 1, index })
}

/// Entry 0 names the leader and `voter`, the others say nothing.
fn append(voter: u64, prev: Option<u64>, indexes: &[u64]) -> AppendEntriesRequest<TypeConfig> {
    let members = || {
        let voters = vec![BTreeSet::from([LEADER, voter])];
        let nodes = [LEADER, voter].map(|it| (it, Peer::default()));
        Members::new(voters, BTreeMap::from(nodes)).expect("members")
    };
    let entry = |index: &u64| Entry {
        log_id: id(*index),
        payload: match index {
            0 => EntryPayload::Membership(members()),
            _ => EntryPayload::Blank,
        },
    };
    AppendEntriesRequest {
        vote: vote(),
        prev_log_id: prev.map(id),
        entries: indexes.iter().map(entry).collect(),
        leader_commit: None,
    }
}

fn message(to: u64, request: Request) -> Vec<u8> {
    encode(&Envelope { to, request })
}

fn refusal(answer: &[u8]) -> Option<Refusal> {
    match decode(answer) {
        Some(Answer::Refused(refusal)) => Some(refusal),
        _ => None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_are_taken_in_the_order_of_arrival_whoever_waits_first() {
    let cluster = Cluster::new(&["a"], settings()).await;
    let live = cluster.live(0);
    let voter = live.store.identity().voter;
    let appends = (0..50_u64).map(|index| {
        let request = append(voter, index.checked_sub(1), &[index]);
        live.consensus
            .receive(LEADER, message(voter, Request::Append(request)))
    });
    let answers: Vec<_> = appends.collect();
    for answer in answers.into_iter().rev() {
        let answer = decode(&answer.await);
        let is_success = matches!(answer, Some(Answer::Append(AppendEntriesResponse::Success)));
        assert!(is_success);
    }
    assert_eq!(live.consensus.status().last_log_index, Some(49));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_for_another_or_from_another_or_out_of_shape_is_refused() {
    let cluster = Cluster::new(&["a"], settings()).await;
    let live = cluster.live(0);
    let voter = live.store.identity().voter;
    let good = || Request::Append(append(voter, None, &[0]));
    let mut later = append(voter, None, &[0]);
    later.vote.leader_id.term = 0;
    let candidate = VoteRequest::new(vote(), None);
    let cases = [
        (LEADER, voter ^ 1, good(), Refusal::OtherVoter),
        (LEADER + 1, voter, good(), Refusal::OtherVoter),
        (
            LEADER + 1,
            voter,
            Request::Vote(candidate.clone()),
            Refusal::OtherVoter,
        ),
        (
            LEADER + 1,
            voter,
            Request::PreVote(candidate),
            Refusal::OtherVoter,
        ),
        (
            LEADER,
            voter,
            Request::Append(append(voter, None, &[0, 2])),
            Refusal::Unreadable,
        ),
        (
            LEADER,
            voter,
            Request::Append(append(voter, Some(3), &[5])),
            Refusal::Unreadable,
        ),
        (
            LEADER,
            voter,
            Request::Append(append(voter, None, &[1])),
            Refusal::Unreadable,
        ),
        (LEADER, voter, Request::Append(later), Refusal::Unreadable),
    ];
    for (from, to, request, expected) in cases {
        let answer = live.consensus.receive(from, message(to, request)).await;
        assert_eq!(refusal(&answer), Some(expected));
    }
    let mut other_version = message(voter, good());
    other_version[0] += 1;
    for unreadable in [other_version, Vec::new(), vec![1]] {
        let answer = live.consensus.receive(LEADER, unreadable).await;
        assert_eq!(refusal(&answer), Some(Refusal::Unreadable));
    }
    assert_eq!(live.consensus.status().last_log_index, None);
    live.consensus.shutdown().await;
    let answer = live.consensus.receive(LEADER, message(voter, good())).await;
    assert_eq!(refusal(&answer), Some(Refusal::Stopped));
}

proptest! {
    #[test]
    fn no_bytes_make_decoding_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let with_version = [&[1], bytes.as_slice()].concat();
        let _: Option<Answer> = decode(&with_version);
        let envelope: Option<Envelope> = decode(&with_version);
        // What can be read can be written and read again.
        if let Some(envelope) = envelope {
            let again: Option<Envelope> = decode(&encode(&envelope));
            prop_assert!(again.is_some_and(|again| again.to == envelope.to));
        }
    }
}
