//! The replicated log of the regions: openraft with the store below it and the links between regions beside it.
//!
//! ```text
//! propose ─► leader: log (store) ─► followers: log (store) ─► a majority has it ─► Machine::apply, everywhere,
//!    ▲                                                                              in the same order
//!    └───────────────────────────── reply of the machine ◄──────────────────────────────┘
//! ```
//!
//! What an entry says and what the machine answers are bytes here. A [`Machine`] is called by one task, in
//! log order; its state is in memory, is rebuilt from the newest snapshot and the log when a process starts,
//! and stays readable when consensus does not run.
//!
//! Invariants kept here: an acknowledged proposal is on the disks of a majority and is never lost; nothing is
//! answered `Unavailable` or `NotLeader` that may have been appended; a message meant for another voter, or
//! from one whose log went back, is refused; a failing disk stops consensus on its node at once and costs no
//! restart of the process. The tests below `tests` hold them with three regions and real files in one process.
//!
//! Not here: clocks beyond timeouts, authentication of peers, the meaning of entries, and who should lead.

mod log;
mod members;
mod message;
mod network;
mod propose;
mod reach;
mod run;
mod serve;
mod state;
mod status;
#[cfg(test)]
mod tests;
mod transfer;
mod types;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use thiserror::Error;
use tokio::sync::watch;

pub use crate::consensus::status::MemberStatus;
pub use crate::consensus::status::Status;

use crate::consensus::reach::Reach;
use crate::consensus::run::Running;
use crate::consensus::serve::Incoming;
use crate::consensus::state::Applied;
use crate::domain::name::RegionName;
use crate::store::Store;

/// Bytes of one proposal at most.
pub const PROPOSAL_BYTES_MAX: usize = 4 << 20;

/// A region that takes part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its voter id: random, minted once in the life of a data directory.
    pub voter: u64,
    /// Its name.
    pub region: RegionName,
    /// Where it was reached when it joined.
    pub url: String,
}

/// Who takes part. Both lists are in the order of the names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    /// Those whose majority decides. Odd in number, but for two regions.
    pub voters: Vec<Member>,
    /// Those that only listen.
    pub learners: Vec<Member>,
}

/// An entry that a majority has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed<'a> {
    /// Its place in the log. Indexes rise; some belong to entries that no machine sees.
    pub index: u64,
    /// Term of the leader that proposed it.
    pub term: u64,
    /// What was proposed.
    pub payload: &'a [u8],
}

/// What the log drives. Called by one task, in log order; it must answer fast and must not wait.
pub trait Machine: Send + Sync + 'static {
    /// Carries an entry out and answers it. Must do the same everywhere.
    fn apply(&self, entry: Committed<'_>) -> Vec<u8>;

    /// Says who takes part from `index` on. During a change both the old and the new voters are in it. Comes
    /// again after [`Machine::install`].
    fn members(&self, index: u64, members: &Membership);

    /// The whole state after the newest applied entry.
    fn snapshot(&self) -> Vec<u8>;

    /// Takes the state of another machine in place of its own.
    ///
    /// # Errors
    /// When the bytes are no state; consensus stops then.
    fn install(&self, snapshot: &[u8]) -> Result<(), String>;
}

/// No answer came, whatever became of the message.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("out of reach: {0}")]
pub struct Unreachable(pub String);

/// The way to the other members.
pub trait Wire: Send + Sync + 'static {
    /// Hands `message` over at once, in order per target; the future gives the peer's reply.
    fn call(
        &self,
        to: &Member,
        message: Vec<u8>,
        deadline: Duration,
    ) -> BoxFuture<'static, Result<Vec<u8>, Unreachable>>;
}

/// Ranks that are told apart; later ones are like the last.
const RANKS: u32 = 5;
/// From one rank's last moment to stand for election to the next one's: twice this, once of its lease and once of
/// its wait. More than the two round trips in which a candidate becomes the leader.
const RANK_STEP: Duration = Duration::from_millis(200);
/// Within one rank.
const RANK_SPREAD: Duration = Duration::from_millis(180);

/// What can be tuned. All regions should have the same, but for their ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How often a leader is heard. At least the greatest round trip: a heartbeat is given up after it.
    pub heartbeat: Duration,
    /// How long after the end of a leader's lease an election begins, at least: heartbeat + 2 round trips.
    pub election_min: Duration,
    /// The same, at most; also the length of the lease. Close to the least, because a new leader takes
    /// `election_max` plus a time between both, plus about 3 round trips.
    pub election_max: Duration,
    /// How long [`Consensus::propose`] waits for its entry.
    pub propose_timeout: Duration,
    /// How long founding, adding and removing may take.
    pub change_timeout: Duration,
    /// Entries after which a snapshot is taken.
    pub snapshot_entries: u64,
    /// Entries that stay in the log when a snapshot holds what they did, for those that are a little behind.
    pub kept_entries: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_millis(250),
            election_min: Duration::from_millis(500),
            election_max: Duration::from_millis(1_000),
            propose_timeout: Duration::from_secs(5),
            change_timeout: Duration::from_secs(30),
            snapshot_entries: 20_000,
            kept_entries: 5_000,
        }
    }
}

impl Settings {
    /// The defaults of the member of a rank. Members of different ranks do not stand for election at the same time, for
    /// votes that are split cost a second and more. The first one begins 1.4 s after it last heard the leader, each other
    /// 0.4 s after the one before.
    pub fn ranked(rank: usize) -> Self {
        let rank = u32::try_from(rank).unwrap_or(u32::MAX).min(RANKS - 1);
        let election_max = Duration::from_millis(800) + RANK_STEP * rank;
        Self {
            election_min: election_max.saturating_sub(RANK_SPREAD),
            election_max,
            ..Self::default()
        }
    }
}

/// Who leads, as far as this member knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leadership {
    /// The newest term that this member has seen.
    pub term: u64,
    /// The leader of this term, once it is known to be elected.
    pub leader: Option<Member>,
    /// Whether that is this member.
    pub is_self: bool,
    /// Whether this member leads and has applied its own first entry of this term, and with it everything
    /// that any leader before it has acknowledged.
    pub is_ready: bool,
}

/// An entry that was proposed here and has been applied here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposed {
    /// Its place in the log.
    pub index: u64,
    /// Term of the leader that proposed it.
    pub term: u64,
    /// What the machine answered.
    pub reply: Vec<u8>,
}

/// Why something was not done, or may not have been.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ProposeError {
    /// Another member leads, or none is known to. Nothing was appended.
    #[error("this region does not lead")]
    NotLeader {
        /// Who does.
        leader: Option<Member>,
    },
    /// It cannot be done now. Nothing was appended.
    #[error("consensus is not available: {0}")]
    Unavailable(String),
    /// It may have been done or may still be done, here or by the next leader.
    #[error("it is not known whether this was done")]
    OutcomeUnknown,
}

/// Why consensus did not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// The settings contradict each other.
    #[error("the settings of consensus do not fit together: {0}")]
    Settings(String),
    /// The store cannot be read or written, or what is in it does not fit together.
    #[error("consensus cannot start from the store: {0}")]
    Store(String),
}

/// Why no cluster was founded.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum FoundError {
    /// The log is not empty: there is a cluster.
    #[error("there is a cluster already")]
    AlreadyFounded,
    /// This member is not among them, or two have the same name or voter id.
    #[error("these members cannot found a cluster: {0}")]
    Members(String),
    /// The cluster exists, but something went wrong after that: add the members that are missing.
    #[error(transparent)]
    Unfinished(ProposeError),
}

/// Consensus of one region. Clones are the same; dropping the last one ends it like a kill of the process.
#[derive(Clone)]
pub struct Consensus {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    store: Store,
    voter: u64,
    region: RegionName,
    settings: Settings,
    wire: Arc<dyn Wire>,
    applied: Arc<Applied>,
    reach: Arc<Reach>,
    incoming: Incoming,
    /// Proposals hold it to read while they are on their way; a transfer holds it to write.
    gate: Arc<tokio::sync::RwLock<()>>,
    /// One change of members at a time, and one start.
    changing: tokio::sync::Mutex<()>,
    starting: tokio::sync::Mutex<()>,
    running: Mutex<Option<Arc<Running>>>,
    /// The instance before, until it has surely ended.
    ending: Mutex<Option<Arc<Running>>>,
    instances: AtomicU64,
    leadership: watch::Sender<Leadership>,
    fault: Mutex<Option<String>>,
}

impl Consensus {
    /// Starts from what the store holds. Returns when everything is applied to the machine that is known here
    /// to be committed.
    ///
    /// `voter` is [`Store::identity`]'s, `region` this region's name. The machine must be in its first state.
    ///
    /// # Errors
    /// When the settings do not fit together or the store does not work.
    pub async fn start(
        store: Store,
        voter: u64,
        region: RegionName,
        settings: Settings,
        wire: Arc<dyn Wire>,
        machine: Arc<dyn Machine>,
    ) -> Result<Self, StartError> {
        let inner = Arc::new(Inner {
            store,
            voter,
            region,
            settings,
            wire,
            applied: Arc::new(Applied::new(machine)),
            reach: Arc::new(Reach::default()),
            incoming: Incoming::default(),
            gate: Arc::default(),
            changing: tokio::sync::Mutex::default(),
            starting: tokio::sync::Mutex::default(),
            running: Mutex::new(None),
            ending: Mutex::new(None),
            instances: AtomicU64::new(0),
            leadership: watch::Sender::new(Leadership::default()),
            fault: Mutex::new(None),
        });
        inner.start().await?;
        Ok(Self { inner })
    }

    /// Starts again after it stopped because of the store, once that works again. Does nothing while it runs.
    ///
    /// The machine keeps its state; what was committed meanwhile follows.
    ///
    /// # Errors
    /// When the store does not work.
    pub async fn restart(&self) -> Result<(), StartError> {
        self.inner.restart().await
    }

    /// Takes in a message of the member with voter id `from` and gives the answer to it.
    ///
    /// Call it in the order of arrival: the call itself puts the message in the queue, the future only waits
    /// for the answer and may be polled anywhere. Must be called inside the runtime.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "what is received is given away"
    )]
    pub fn receive(&self, from: u64, message: Vec<u8>) -> BoxFuture<'static, Vec<u8>> {
        serve::receive(&self.inner, from, &message)
    }

    /// Makes a new cluster of `members`, this one among them, whose logs are all empty.
    ///
    /// All become voters when they are an odd number or two; else the last one in the order of the names
    /// but this member becomes a learner. Only one of them may do this. Returns when this member leads the new cluster.
    ///
    /// # Errors
    /// When there is a cluster already, or the members do not fit together, or they are out of reach.
    pub async fn found(&self, members: Vec<Member>) -> Result<(), FoundError> {
        members::found(&self.inner, members).await
    }

    /// Proposes an entry; answered when it has been applied here. Waits at most
    /// [`Settings::propose_timeout`].
    ///
    /// # Errors
    /// When it was not done, or it is not known whether it was; see [`ProposeError`].
    pub fn propose(
        &self,
        payload: Vec<u8>,
    ) -> impl Future<Output = Result<Proposed, ProposeError>> + Send + use<> {
        self.propose_within(payload, self.inner.settings.propose_timeout)
    }

    /// Like [`Consensus::propose`] with a time of its own.
    ///
    /// # Errors
    /// The same.
    pub fn propose_within(
        &self,
        payload: Vec<u8>,
        timeout: Duration,
    ) -> impl Future<Output = Result<Proposed, ProposeError>> + Send + use<> {
        propose::propose(Arc::clone(&self.inner), payload, timeout)
    }

    /// Who leads. While consensus does not run here, nobody is known to.
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.inner.leadership.subscribe()
    }

    /// Index of the newest entry that was applied here; 0 before the first.
    pub fn applied(&self) -> watch::Receiver<u64> {
        self.inner.applied.index()
    }

    /// Hands the lead to the voter of region `to`; answered when that one leads.
    ///
    /// Proposals wait meanwhile. When the other one does not take the lead within two election times this
    /// member goes on leading as before.
    ///
    /// # Errors
    /// When this member does not lead, or the other is no voter, out of reach or behind.
    pub async fn transfer(&self, to: RegionName) -> Result<(), ProposeError> {
        transfer::transfer(&self.inner, &to).await
    }

    /// Adds a member: as a learner that catches up first, then as a voter when that leaves their number odd
    /// (or makes it two), promoting a learner that waited for this with it.
    ///
    /// A member of the same region with another voter id is replaced: its directory was wiped or restored.
    /// May be repeated until it succeeds.
    ///
    /// # Errors
    /// When this member does not lead, or it was not done in [`Settings::change_timeout`].
    pub async fn add(&self, member: Member) -> Result<(), ProposeError> {
        members::add(&self.inner, member).await
    }

    /// Removes a region; a voter may become a learner, or a learner a voter, to keep the voters' number odd.
    /// May be repeated until it succeeds.
    ///
    /// # Errors
    /// When this member does not lead, it is the last one, or it was not done in
    /// [`Settings::change_timeout`].
    pub async fn remove(&self, region: RegionName) -> Result<(), ProposeError> {
        members::remove(&self.inner, &region).await
    }

    /// How things stand.
    pub fn status(&self) -> Status {
        status::status(&self.inner)
    }

    /// Stops, with the mark of what is committed on disk. Nothing is proposed or answered afterwards.
    pub async fn shutdown(&self) {
        self.inner.shutdown().await;
    }
}
