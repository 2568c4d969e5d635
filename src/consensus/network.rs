//! The way to the other members, as the consensus library sees it.
//!
//! Appends are pipelined: each goes to the wire as soon as there is one, answers are taken in the same order.
//! One round trip then carries as much as is ready instead of one batch.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use futures_util::StreamExt;
use futures_util::stream;
use openraft::OptionalSend;
use openraft::RaftNetworkFactory;
use openraft::base::BoxFuture;
use openraft::base::BoxStream;
use openraft::errors::RPCError;
use openraft::errors::ReplicationClosed;
use openraft::errors::StreamingError;
use openraft::errors::Unreachable as RaftUnreachable;
use openraft::network::RPCOption;
use openraft::network::RaftNetworkV2;
use openraft::raft::AppendEntriesRequest;
use openraft::raft::AppendEntriesResponse;
use openraft::raft::SnapshotResponse;
use openraft::raft::StreamAppendError;
use openraft::raft::StreamAppendResult;
use openraft::raft::VoteRequest;
use openraft::raft::VoteResponse;

use crate::consensus::Member;
use crate::consensus::Wire;
use crate::consensus::message::Answer;
use crate::consensus::message::Chunk;
use crate::consensus::message::Envelope;
use crate::consensus::message::Refusal;
use crate::consensus::message::Request;
use crate::consensus::message::decode;
use crate::consensus::message::encode;
use crate::consensus::reach::Reach;
use crate::consensus::types::Peer;
use crate::consensus::types::Snapshot;
use crate::consensus::types::TypeConfig;
use crate::consensus::types::Vote;
use crate::consensus::types::place_of;

type RpcError = RPCError<TypeConfig>;
type AppendResult = Result<StreamAppendResult<TypeConfig>, RpcError>;

/// Appends on their way to one member at once.
const APPENDS_UNDERWAY_MAX: usize = 32;
/// How long an answer to an append is waited for, at least. Heartbeats are given up earlier by the library.
const APPEND_DEADLINE_MIN: Duration = Duration::from_secs(2);
/// Bytes of a snapshot in one message; messages are carried up to 8 MiB.
const PART_BYTES: usize = 2 << 20;

/// Makes the ways to the members.
#[derive(Clone)]
pub(super) struct Network {
    pub wire: Arc<dyn Wire>,
    pub reach: Arc<Reach>,
    /// How long an answer to a snapshot's part is waited for.
    pub part_deadline: Duration,
    /// Called when another member says that the log of this one went back.
    pub on_went_back: Arc<dyn Fn() + Send + Sync>,
}

impl RaftNetworkFactory<TypeConfig> for Network {
    type Network = Link;

    async fn new_client(&mut self, target: u64, node: &Peer) -> Link {
        Link {
            voter: target,
            to: node.member(target),
            network: self.clone(),
        }
    }
}

/// The way to one member.
#[derive(Clone)]
pub(super) struct Link {
    voter: u64,
    to: Option<Member>,
    network: Network,
}

impl Link {
    pub fn to(member: Member, network: Network) -> Self {
        Self {
            voter: member.voter,
            to: Some(member),
            network,
        }
    }

    /// Hands a request to the wire; the future gives the answer to it.
    pub fn call(
        &self,
        request: Request,
        deadline: Duration,
    ) -> impl Future<Output = Result<Answer, RpcError>> + Send + use<> {
        let called = if self.network.reach.went_back(self.voter) {
            Err("its log went back".to_owned())
        } else if let Some(to) = &self.to {
            let envelope = Envelope {
                to: self.voter,
                request,
            };
            Ok(self.network.wire.call(to, encode(&envelope), deadline))
        } else {
            Err("it has no name".to_owned())
        };
        let on_went_back = Arc::clone(&self.network.on_went_back);
        async move {
            let answer = called.map_err(unreachable)?.await;
            let answer = answer.map_err(|error| unreachable(error.to_string()))?;
            match decode(&answer) {
                Some(Answer::Refused(refusal)) => {
                    if refusal == Refusal::WentBack {
                        on_went_back();
                    }
                    Err(unreachable(format!("it refuses: {refusal:?}")))
                }
                Some(answer) => Ok(answer),
                None => Err(unreachable("its answer cannot be read".to_owned())),
            }
        }
    }

    fn append(
        &self,
        request: AppendEntriesRequest<TypeConfig>,
        deadline: Duration,
    ) -> impl Future<Output = AppendResult> + Send + use<> {
        let term = request.vote.leader_id.term;
        let prev = request.prev_log_id;
        let last = request.entries.last().map(|entry| entry.log_id).or(prev);
        let committed = request.leader_commit.as_ref().map(place_of);
        let answer = self.call(Request::Append(request), deadline);
        let link = self.clone();
        async move {
            let Answer::Append(answer) = answer.await? else {
                return Err(unreachable("its answer is to something else".to_owned()));
            };
            let reach = &link.network.reach;
            Ok(match answer {
                AppendEntriesResponse::Success => {
                    reach.acked(link.voter, term, last.as_ref().map(place_of), committed);
                    Ok(last)
                }
                AppendEntriesResponse::PartialSuccess(upto) => {
                    reach.acked(link.voter, term, upto.as_ref().map(place_of), committed);
                    Ok(upto)
                }
                AppendEntriesResponse::Conflict => {
                    let Some(prev) = prev else {
                        return Err(unreachable("it lacks what nobody lacks".to_owned()));
                    };
                    if !reach.lacks(link.voter, term, place_of(&prev)) {
                        link.report_went_back();
                        return Err(unreachable("its log went back".to_owned()));
                    }
                    Err(StreamAppendError::Conflict(prev))
                }
                AppendEntriesResponse::HigherVote(vote) => Err(StreamAppendError::HigherVote(vote)),
            })
        }
    }

    /// Tells the member that its log went back, once; it stops taking part then.
    fn report_went_back(&self) {
        tracing::error!(
            voter = self.voter,
            region = self.to.as_ref().map(|to| to.region.as_str()),
            "the log of a member is shorter than it was: its directory is an old copy; it is refused"
        );
        let Some(to) = &self.to else {
            return;
        };
        let envelope = Envelope {
            to: self.voter,
            request: Request::WentBack,
        };
        let told = self
            .network
            .wire
            .call(to, encode(&envelope), APPEND_DEADLINE_MIN);
        tokio::spawn(async move {
            // A member that does not hear it is refused all the same.
            told.await.ok();
        });
    }

    async fn ask_vote(
        &self,
        request: Request,
        option: &RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RpcError> {
        let Answer::Vote(answer) = self.call(request, option.hard_ttl()).await? else {
            return Err(unreachable("its answer is to something else".to_owned()));
        };
        let last = answer.last_log_id.as_ref().map(place_of);
        if self.network.reach.ends_with(self.voter, last) {
            Ok(answer)
        } else {
            self.report_went_back();
            Err(unreachable("its log went back".to_owned()))
        }
    }

    async fn send_snapshot(&self, vote: Vote, snapshot: Snapshot) -> Result<Vote, RpcError> {
        let mut offset = 0;
        loop {
            let chunk = Chunk::new(
                vote,
                snapshot.meta.clone(),
                offset,
                &snapshot.snapshot,
                PART_BYTES,
            );
            offset += chunk.part.0.len();
            let answer = self.call(Request::Snapshot(chunk), self.network.part_deadline);
            let Answer::Snapshot(theirs) = answer.await? else {
                return Err(unreachable("its answer is to something else".to_owned()));
            };
            if theirs > vote || offset >= snapshot.snapshot.len() {
                return Ok(theirs);
            }
        }
    }
}

fn unreachable(reason: String) -> RpcError {
    RPCError::Unreachable(RaftUnreachable::from_string(reason))
}

impl RaftNetworkV2<TypeConfig> for Link {
    type SnapshotData = Bytes;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<TypeConfig>, RpcError> {
        let result = self.append(rpc, option.hard_ttl()).await?;
        Ok(result.into())
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        option: RPCOption,
    ) -> BoxFuture<'s, Result<BoxStream<'s, AppendResult>, RpcError>>
    where
        S: Stream<Item = AppendEntriesRequest<TypeConfig>> + OptionalSend + Unpin + 'static,
    {
        let deadline = APPEND_DEADLINE_MIN.max(option.hard_ttl() * 8);
        let link = self.clone();
        let answers = input
            .map(move |request| {
                let last = request.entries.last().map(|entry| entry.log_id);
                let last = last.or(request.prev_log_id);
                let answer = link.append(request, deadline);
                async move { (last, answer.await) }
            })
            .buffered(APPENDS_UNDERWAY_MAX);
        // After an error, or when only a part was taken, what follows in the pipe has lost its footing.
        let results = stream::unfold(Some(Box::pin(answers)), |answers| async move {
            let mut answers = answers?;
            let (last, result) = answers.next().await?;
            let is_whole = matches!(&result, Ok(Ok(upto)) if *upto == last);
            Some((result, is_whole.then_some(answers)))
        });
        Box::pin(async move { Ok(Box::pin(results) as BoxStream<'s, AppendResult>) })
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RpcError> {
        self.ask_vote(Request::Vote(rpc), &option).await
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RpcError> {
        self.ask_vote(Request::PreVote(rpc), &option).await
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        tokio::select! {
            biased;
            closed = cancel => Err(StreamingError::Closed(closed)),
            sent = self.send_snapshot(vote, snapshot) => Ok(SnapshotResponse::new(sent?)),
        }
    }
}
