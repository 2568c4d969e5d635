//! The network between nodes: requests in the order they were sent, each answered or not; letters in any
//! order, and some twice. Copies of requests arrive late, too; nobody hears the answer to those.
//!
//! Appends are pipelined like in the product: each is sent as soon as there is one, answers are taken in the
//! same order.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use futures_util::StreamExt;
use futures_util::stream;
use openraft::AsyncRuntime;
use openraft::EmptyNode;
use openraft::OptionalSend;
use openraft::RaftNetworkFactory;
use openraft::base::BoxFuture;
use openraft::base::BoxStream;
use openraft::errors::RPCError;
use openraft::errors::ReplicationClosed;
use openraft::errors::StreamingError;
use openraft::errors::Unreachable;
use openraft::network::RPCOption;
use openraft::network::RaftNetworkV2;
use openraft::raft::AppendEntriesRequest;
use openraft::raft::AppendEntriesResponse;
use openraft::raft::SnapshotResponse;
use openraft::raft::StreamAppendError;
use openraft::raft::StreamAppendResult;
use openraft::raft::VoteRequest;
use openraft::raft::VoteResponse;
use openraft_rt_sim::SimRuntime;
use tokio::sync::oneshot;

use super::Sim;
use super::node::Life;
use super::types::Answer;
use super::types::Forwarded;
use super::types::Letter;
use super::types::Request;
use super::types::SimConfig;
use super::types::Snapshot;
use super::types::Vote;
use crate::model::MS;
use crate::model::net::Net;
use crate::model::rng::Rng;

type RpcError = RPCError<SimConfig>;
type AppendResult = Result<StreamAppendResult<SimConfig>, RpcError>;

const APPENDS_UNDERWAY_MAX: usize = 32;
const APPEND_DEADLINE_MIN: Duration = Duration::from_secs(2);
const SNAPSHOT_DEADLINE: Duration = Duration::from_secs(30);

fn lost(reason: &str) -> RpcError {
    RPCError::Unreachable(Unreachable::from_string(reason.to_owned()))
}

impl Request {
    fn kind(&self) -> &'static [u8] {
        match self {
            Self::Append(_) => b"append",
            Self::Vote(_) => b"vote",
            Self::PreVote(_) => b"pre-vote",
            Self::Snapshot(..) => b"snapshot",
            Self::Forward(..) => b"forward",
        }
    }
}

impl Life {
    /// Sends a request at once; the future gives the answer, if one comes.
    pub fn call(
        &self,
        to: usize,
        request: Request,
        deadline: Duration,
    ) -> impl Future<Output = Option<Answer>> + Send + use<> {
        let (tell, told) = oneshot::channel();
        if !self.is_dead() {
            self.sim.post(self.node, to, request, tell);
        }
        async move {
            let answered = SimRuntime::timeout(deadline, told).await;
            answered.ok().and_then(Result::ok)
        }
    }

    /// Sends a letter.
    pub fn letter(&self, to: usize, letter: &Letter) {
        if self.is_dead() {
            return;
        }
        let sim = &self.sim;
        let (from, at) = (self.node, sim.now());
        let arrivals = sim.net.lock().send(&mut sim.rng.lock(), from, to, at);
        for arrival in arrivals {
            let (sim, letter) = (Arc::clone(sim), letter.clone());
            self.sim.spawn(async move {
                sim.sleep_until(arrival).await;
                sim.unpaused(to).await;
                sim.traced(b"letter", &[from as u64, to as u64]);
                let Some(life) = sim.life(to) else { return };
                match letter {
                    Letter::ToLeader(word) => life.hear_region(&word),
                    Letter::ToRegion(holder, word) => life.hear_leader(&holder, &word),
                }
            });
        }
    }

    async fn serve(self: Arc<Self>, request: Request) -> Answer {
        let Some(raft) = self.raft.get() else {
            return Answer::Stopped;
        };
        match request {
            Request::Append(append) => raft
                .append_entries(append)
                .await
                .map_or(Answer::Stopped, Answer::Append),
            Request::Vote(vote) => raft.vote(vote).await.map_or(Answer::Stopped, Answer::Vote),
            Request::PreVote(vote) => raft
                .pre_vote(vote)
                .await
                .map_or(Answer::Stopped, Answer::Vote),
            Request::Snapshot(vote, snapshot) => raft
                .install_full_snapshot(vote, snapshot)
                .await
                .map_or(Answer::Stopped, Answer::Snapshot),
            Request::Forward(command, left) => {
                Answer::Forwarded(Arc::clone(&self).propose_here(*command, left).await)
            }
        }
    }
}

/// When a message on an ordered link arrives, if it does, and when a late copy of it does, if there is one.
fn in_order(
    net: &mut Net,
    rng: &mut Rng,
    (from, to): (usize, usize),
    at: u64,
) -> (Option<u64>, Option<u64>) {
    if from == to {
        return (Some(at + 1_000), None);
    }
    if net.cut[from][to] || rng.chance(net.weather.loss) {
        return (None, None);
    }
    let delay = (net.delays[from][to] * MS) as f64;
    let arrives = at + (delay + rng.exponential(delay / 10.0)) as u64;
    let last = net.last.entry((from, to)).or_default();
    *last = arrives.max(*last + 1);
    let arrives = *last;
    let copy = rng.chance(net.weather.double);
    let copy = copy.then(|| arrives + rng.between(0, 2_000 * MS));
    (Some(arrives), copy)
}

impl Sim {
    fn post(
        self: &Arc<Self>,
        from: usize,
        to: usize,
        request: Request,
        tell: oneshot::Sender<Answer>,
    ) {
        let (first, copy) = {
            let (mut net, mut rng) = (self.net.lock(), self.rng.lock());
            in_order(&mut net, &mut rng, (from, to), self.now())
        };
        if let Request::Append(append) = &request {
            let term = append.vote.leader_id.term;
            self.audited(|audit| audit.leads(term, from));
        }
        if let Some(at) = copy {
            let (sim, request) = (Arc::clone(self), request.clone());
            self.audited(|audit| audit.fault("late copy"));
            self.spawn(async move {
                sim.sleep_until(at).await;
                sim.unpaused(to).await;
                if let Some(life) = sim.life(to) {
                    life.serve(request).await;
                }
            });
        }
        let Some(at) = first else { return };
        let sim = Arc::clone(self);
        self.spawn(async move {
            sim.sleep_until(at).await;
            sim.unpaused(to).await;
            sim.traced(request.kind(), &[from as u64, to as u64]);
            let Some(life) = sim.life(to) else {
                return;
            };
            let answer = Arc::clone(&life).serve(request).await;
            if life.is_dead() {
                return;
            }
            let (back, _) = {
                let (mut net, mut rng) = (sim.net.lock(), sim.rng.lock());
                in_order(&mut net, &mut rng, (to, from), sim.now())
            };
            let Some(back) = back else { return };
            sim.sleep_until(back).await;
            sim.unpaused(from).await;
            tell.send(answer).ok();
        });
    }
}

/// Makes the ways to the other nodes.
pub struct Network {
    pub life: Arc<Life>,
}

/// The way to one node.
#[derive(Clone)]
pub struct Link {
    life: Arc<Life>,
    to: usize,
}

impl RaftNetworkFactory<SimConfig> for Network {
    type Network = Link;

    async fn new_client(&mut self, target: u64, _node: &EmptyNode) -> Link {
        Link {
            life: Arc::clone(&self.life),
            to: target as usize,
        }
    }
}

impl Link {
    fn append(
        &self,
        request: AppendEntriesRequest<SimConfig>,
        deadline: Duration,
    ) -> impl Future<Output = AppendResult> + Send + use<> {
        let prev = request.prev_log_id;
        let last = request.entries.last().map(|entry| entry.log_id).or(prev);
        let answer = self.life.call(self.to, Request::Append(request), deadline);
        async move {
            let Some(Answer::Append(answer)) = answer.await else {
                return Err(lost("no answer"));
            };
            Ok(match answer {
                AppendEntriesResponse::Success => Ok(last),
                AppendEntriesResponse::PartialSuccess(upto) => Ok(upto),
                AppendEntriesResponse::Conflict => {
                    let prev = prev.ok_or_else(|| lost("it lacks what nobody lacks"))?;
                    Err(StreamAppendError::Conflict(prev))
                }
                AppendEntriesResponse::HigherVote(vote) => Err(StreamAppendError::HigherVote(vote)),
            })
        }
    }

    async fn ask_vote(
        &self,
        request: Request,
        option: &RPCOption,
    ) -> Result<VoteResponse<SimConfig>, RpcError> {
        match self.life.call(self.to, request, option.hard_ttl()).await {
            Some(Answer::Vote(answer)) => Ok(answer),
            _ => Err(lost("no answer")),
        }
    }
}

impl RaftNetworkV2<SimConfig> for Link {
    type SnapshotData = Bytes;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<SimConfig>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<SimConfig>, RpcError> {
        let result = self.append(rpc, option.hard_ttl()).await?;
        Ok(result.into())
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        option: RPCOption,
    ) -> BoxFuture<'s, Result<BoxStream<'s, AppendResult>, RpcError>>
    where
        S: Stream<Item = AppendEntriesRequest<SimConfig>> + OptionalSend + Unpin + 'static,
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
        rpc: VoteRequest<SimConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<SimConfig>, RpcError> {
        self.ask_vote(Request::Vote(rpc), &option).await
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<SimConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<SimConfig>, RpcError> {
        self.ask_vote(Request::PreVote(rpc), &option).await
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<SimConfig>, StreamingError<SimConfig>> {
        let request = Request::Snapshot(vote, snapshot);
        let answer = self.life.call(self.to, request, SNAPSHOT_DEADLINE);
        tokio::select! {
            biased;
            closed = cancel => Err(StreamingError::Closed(closed)),
            answer = answer => match answer {
                Some(Answer::Snapshot(answer)) => Ok(answer),
                _ => Err(lost("no answer").into()),
            },
        }
    }
}

/// What a lost or odd answer to a forwarded proposal means.
pub fn forwarded(answer: Option<Answer>) -> Forwarded {
    match answer {
        Some(Answer::Forwarded(said)) => said,
        _ => Forwarded::Unknown,
    }
}
