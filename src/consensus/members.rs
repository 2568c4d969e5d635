//! Who takes part: founding, adding, replacing, removing.
//!
//! The number of voters is kept odd (or two), because an even one more adds a way to lose the majority and
//! nothing else. Every operation begins by looking at the members as they are, so it can be repeated after
//! any failure and does only what is still missing.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::sync::Arc;

use openraft::ChangeMembers;
use openraft::Raft;
use openraft::async_runtime::WatchReceiver;
use openraft::errors::ClientWriteError;
use openraft::errors::InitializeError;
use openraft::errors::RaftError;
use tokio::time::sleep;
use tokio::time::timeout;

use crate::consensus::FoundError;
use crate::consensus::Inner;
use crate::consensus::Member;
use crate::consensus::Membership;
use crate::consensus::ProposeError;
use crate::consensus::Running;
use crate::consensus::propose::PAUSE;
use crate::consensus::propose::Verdict;
use crate::consensus::propose::judge;
use crate::consensus::propose::stopped;
use crate::consensus::state::State;
use crate::consensus::types::Peer;
use crate::consensus::types::TypeConfig;
use crate::consensus::types::membership_of;
use crate::domain::name::RegionName;

type Library = Raft<TypeConfig, State>;

/// Entries that a learner may lack when it becomes a voter: what a busy leader appends in a round trip.
const LAG_MAX: u64 = 1_000;

/// How many of `members` vote.
fn voters_of(members: usize) -> usize {
    match members {
        2 => 2,
        even if even % 2 == 0 => even.saturating_sub(1),
        odd => odd,
    }
}

/// Who votes when `members` take part: those that do already stay before others come, the first names first;
/// the leader stays in any case.
fn choose_voters(
    members: &[Member],
    votes_now: impl Fn(&Member) -> bool,
    leader: u64,
) -> BTreeSet<u64> {
    let mut ranked: Vec<&Member> = members.iter().collect();
    ranked.sort_by_key(|member| {
        (
            member.voter != leader,
            !votes_now(member),
            member.region.clone(),
        )
    });
    let count = voters_of(ranked.len());
    ranked
        .iter()
        .take(count)
        .map(|member| member.voter)
        .collect()
}

/// See [`crate::consensus::Consensus::found`].
pub(super) async fn found(inner: &Arc<Inner>, mut members: Vec<Member>) -> Result<(), FoundError> {
    members.sort_by(|a, b| a.region.cmp(&b.region));
    let regions: BTreeSet<&RegionName> = members.iter().map(|member| &member.region).collect();
    let voters: BTreeSet<u64> = members.iter().map(|member| member.voter).collect();
    if regions.len() < members.len() || voters.len() < members.len() {
        return Err(FoundError::Members("one is there twice".to_owned()));
    }
    let own = members.iter().find(|member| member.voter == inner.voter);
    if own.is_none_or(|own| own.region != inner.region) {
        return Err(FoundError::Members(
            "this region is not one of them".to_owned(),
        ));
    }
    let _one = inner.changing.lock().await;
    let unfinished = |error| FoundError::Unfinished(error);
    let running = inner.running().ok_or_else(|| unfinished(stopped()))?;
    let voters = choose_voters(&members, |_| true, inner.voter);
    let (voters, learners): (Vec<Member>, Vec<Member>) = members
        .into_iter()
        .partition(|member| voters.contains(&member.voter));
    let peers: BTreeMap<u64, Peer> = voters
        .iter()
        .map(|member| (member.voter, Peer::of(member)))
        .collect();
    match running.raft.initialize(peers).await {
        Ok(()) => {}
        Err(RaftError::APIError(InitializeError::NotAllowed(_))) => {
            return Err(FoundError::AlreadyFounded);
        }
        Err(RaftError::APIError(InitializeError::NotInMembers(error))) => {
            return Err(FoundError::Members(error.to_string()));
        }
        Err(RaftError::Fatal(_)) => return Err(unfinished(ProposeError::OutcomeUnknown)),
    }
    let finish = async {
        let mut leadership = inner.leadership.subscribe();
        let led = leadership.wait_for(|now| now.is_ready).await;
        led.map_err(|_| stopped())?;
        for learner in learners {
            let _ = change(inner, |_, _| {
                let node = BTreeMap::from([(learner.voter, Peer::of(&learner))]);
                Ok(Some((ChangeMembers::AddNodes(node), true)))
            })
            .await?;
        }
        Ok(())
    };
    timeout(inner.settings.change_timeout, finish)
        .await
        .unwrap_or(Err(ProposeError::OutcomeUnknown))
        .map_err(unfinished)
}

type Step = Option<(ChangeMembers<u64, Peer>, bool)>;

/// Makes one change of members, and again while another one is under way. `plan` is given the members as
/// they are and says what to do; nothing ends it.
async fn change(
    inner: &Inner,
    plan: impl Fn(&Membership, &Running) -> Result<Step, ProposeError>,
) -> Result<bool, ProposeError> {
    loop {
        let running = inner.running().ok_or_else(stopped)?;
        let (membership, is_joint) = {
            let metrics = running.raft.metrics();
            let metrics = metrics.borrow_watched();
            let members = metrics.membership_config.membership();
            (membership_of(members), members.get_joint_config().len() > 1)
        };
        let leadership = inner.leadership.borrow().clone();
        if !leadership.is_ready {
            return Err(ProposeError::NotLeader {
                leader: leadership.leader.filter(|_| !leadership.is_self),
            });
        }
        let (changes, retain) = if is_joint {
            // A change that another leader began.
            (ChangeMembers::AddVoterIds(BTreeSet::new()), true)
        } else {
            match plan(&membership, &running)? {
                Some(step) => step,
                None => return Ok(false),
            }
        };
        match running.raft.change_membership(changes, retain).await {
            Ok(_) if is_joint => {}
            Ok(_) => return Ok(true),
            Err(RaftError::APIError(ClientWriteError::ChangeMembershipError(error))) => {
                tracing::debug!(%error, "a change of members waits");
                sleep(PAUSE).await;
            }
            Err(error) => match judge(&error) {
                Verdict::Again => sleep(PAUSE).await,
                Verdict::Final(error) => return Err(error),
            },
        }
    }
}

/// Ends a change that a leader before has begun. Without it both majorities would be needed for ever.
pub(super) fn finish_change(raft: Library) {
    tokio::spawn(async move {
        let nothing = ChangeMembers::AddVoterIds(BTreeSet::new());
        if let Err(error) = raft.change_membership(nothing, true).await {
            tracing::warn!(%error, "a change of members could not be ended; the next one ends it");
        }
    });
}

async fn in_time<T>(
    inner: &Inner,
    work: impl Future<Output = Result<T, ProposeError>>,
) -> Result<T, ProposeError> {
    let whole = async {
        let _one = inner.changing.lock().await;
        work.await
    };
    timeout(inner.settings.change_timeout, whole)
        .await
        .unwrap_or(Err(ProposeError::OutcomeUnknown))
}

/// See [`crate::consensus::Consensus::add`].
pub(super) async fn add(inner: &Arc<Inner>, member: Member) -> Result<(), ProposeError> {
    in_time(inner, async {
        change(inner, |members, _| {
            let is_known = all(members).any(|known| known.voter == member.voter);
            let node = BTreeMap::from([(member.voter, Peer::of(&member))]);
            Ok((!is_known).then_some((ChangeMembers::AddNodes(node), true)))
        })
        .await?;
        caught_up(inner, member.voter).await?;
        settle(inner, |known| {
            known.region != member.region || known.voter == member.voter
        })
        .await
    })
    .await
}

/// See [`crate::consensus::Consensus::remove`].
pub(super) async fn remove(inner: &Arc<Inner>, region: &RegionName) -> Result<(), ProposeError> {
    in_time(inner, settle(inner, |known| known.region != *region)).await
}

fn all(members: &Membership) -> impl Iterator<Item = &Member> {
    members.voters.iter().chain(&members.learners)
}

/// Step by step towards those members that `stays` names, with as many voters as there should be.
async fn settle(inner: &Inner, stays: impl Fn(&Member) -> bool) -> Result<(), ProposeError> {
    let step = |members: &Membership, _: &Running| -> Result<Step, ProposeError> {
        let staying: Vec<Member> = all(members).filter(|it| stays(it)).cloned().collect();
        if staying.is_empty() {
            let reason = "the last region cannot be removed".to_owned();
            return Err(ProposeError::Unavailable(reason));
        }
        let now: BTreeSet<u64> = members.voters.iter().map(|it| it.voter).collect();
        let voters = choose_voters(&staying, |it| now.contains(&it.voter), inner.voter);
        let leaving: BTreeSet<u64> = members
            .voters
            .iter()
            .filter(|it| !stays(it))
            .map(|it| it.voter)
            .collect();
        let demoted: BTreeSet<u64> = now
            .iter()
            .filter(|voter| !voters.contains(voter) && !leaving.contains(voter))
            .copied()
            .collect();
        if !demoted.is_empty() {
            // They stay as learners, unlike those that leave, so this is a step of its own.
            return Ok(Some((ChangeMembers::RemoveVoters(demoted), true)));
        }
        if now != voters {
            return Ok(Some((ChangeMembers::ReplaceAllVoters(voters), false)));
        }
        let gone: BTreeSet<u64> = members
            .learners
            .iter()
            .filter(|it| !stays(it))
            .map(|it| it.voter)
            .collect();
        Ok((!gone.is_empty()).then_some((ChangeMembers::RemoveNodes(gone), true)))
    };
    while change(inner, step).await? {}
    let known = inner
        .running()
        .map(|running| Arc::clone(&running.raft.metrics().borrow_watched().membership_config));
    if let Some(known) = known {
        inner.reach.retain(|voter| known.get_node(&voter).is_some());
    }
    Ok(())
}

/// Waits until a learner has nearly everything.
async fn caught_up(inner: &Inner, voter: u64) -> Result<(), ProposeError> {
    let running = inner.running().ok_or_else(stopped)?;
    let mut metrics = running.raft.metrics();
    loop {
        {
            let now = metrics.borrow_and_update();
            let Some(replication) = &now.replication else {
                return Err(ProposeError::NotLeader { leader: None });
            };
            let matched = replication.get(&voter).copied().flatten();
            let last = now.last_log_index.unwrap_or(0);
            if matched.is_some_and(|matched| matched.index.saturating_add(LAG_MAX) >= last) {
                return Ok(());
            }
        }
        metrics.changed().await.map_err(|_| stopped())?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(names: &str) -> Vec<Member> {
        let member = |name: char| Member {
            voter: u64::from(u32::from(name)),
            region: RegionName::new(&name.to_string()).expect("a name"),
            url: String::new(),
        };
        names.chars().map(member).collect()
    }

    fn chosen(names: &str, vote_now: &str, leader: char) -> String {
        let is_voting = |member: &Member| vote_now.contains(member.region.as_str());
        let voters = choose_voters(&members(names), is_voting, u64::from(u32::from(leader)));
        voters
            .into_iter()
            .filter_map(|voter| char::from_u32(u32::try_from(voter).ok()?))
            .collect()
    }

    #[test]
    fn voters_are_odd_or_two_and_change_as_little_as_possible() {
        let numbers = [0, 1, 2, 3, 4, 5, 6, 7, 8].map(voters_of);
        assert_eq!(numbers, [0, 1, 2, 3, 3, 5, 5, 7, 7]);
        assert_eq!(chosen("abcd", "abcd", 'a'), "abc", "the last names listen");
        assert_eq!(chosen("abcd", "abcd", 'd'), "abd", "the leader stays");
        assert_eq!(chosen("abcd", "bcd", 'c'), "bcd", "who votes stays");
        assert_eq!(
            chosen("abcde", "bcd", 'c'),
            "abcde",
            "who listened comes in"
        );
        assert_eq!(chosen("ab", "b", 'b'), "ab");
        assert_eq!(chosen("a", "a", 'a'), "a");
    }
}
