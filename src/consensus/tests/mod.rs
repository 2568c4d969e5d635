//! Several regions in one process: real stores, and a wire that can be delayed, cut and made to lose.

mod electing;
mod failing;
mod founding;
mod log_suite;
mod moving;
mod receiving;
mod restarting;

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::Weak;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::sync::oneshot;
use tokio::time::sleep;
use tokio::time::sleep_until;
use tokio::time::timeout;

use crate::consensus::Committed;
use crate::consensus::Consensus;
use crate::consensus::Machine;
use crate::consensus::Member;
use crate::consensus::Membership;
use crate::consensus::Proposed;
use crate::consensus::Settings;
use crate::consensus::Unreachable;
use crate::consensus::Wire;
use crate::consensus::message::Envelope;
use crate::consensus::message::Request;
use crate::consensus::message::decode;
use crate::domain::name::RegionName;
use crate::store::OpenError;
use crate::store::Store;

/// How long anything may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub fn settings() -> Settings {
    Settings {
        heartbeat: Duration::from_millis(60),
        election_min: Duration::from_millis(200),
        election_max: Duration::from_millis(350),
        ..Settings::default()
    }
}

pub fn name(region: &str) -> RegionName {
    RegionName::new(region).expect("a region's name")
}

/// Polls until `is_so`.
pub async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "not in time: {what}");
        sleep(Duration::from_millis(5)).await;
    }
}

/// A machine that remembers all it was given.
#[derive(Default)]
pub struct Journal {
    pub entries: Mutex<Vec<(u64, Vec<u8>)>>,
    pub members: Mutex<(u64, Membership)>,
    pub installs: AtomicU64,
}

impl Journal {
    pub fn payloads(&self) -> Vec<Vec<u8>> {
        let entries = self.entries.lock();
        entries.iter().map(|(_, payload)| payload.clone()).collect()
    }

    pub fn voters(&self) -> Vec<String> {
        let members = self.members.lock();
        let voters = members.1.voters.iter();
        voters.map(|it| it.region.to_string()).collect()
    }

    pub fn learners(&self) -> Vec<String> {
        let members = self.members.lock();
        let learners = members.1.learners.iter();
        learners.map(|it| it.region.to_string()).collect()
    }
}

impl Machine for Journal {
    fn apply(&self, entry: Committed<'_>) -> Vec<u8> {
        let mut entries = self.entries.lock();
        if let Some((newest, _)) = entries.last() {
            assert!(*newest < entry.index, "entries come in order, once");
        }
        entries.push((entry.index, entry.payload.to_vec()));
        entries.len().to_string().into_bytes()
    }

    fn members(&self, index: u64, members: &Membership) {
        *self.members.lock() = (index, members.clone());
    }

    fn snapshot(&self) -> Vec<u8> {
        postcard::to_stdvec(&*self.entries.lock()).expect("a snapshot")
    }

    fn install(&self, snapshot: &[u8]) -> Result<(), String> {
        let entries = postcard::from_bytes(snapshot).map_err(|error| error.to_string())?;
        *self.entries.lock() = entries;
        self.installs.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

type Reply = oneshot::Sender<Vec<u8>>;
type Loses = fn(&Request) -> bool;
type Letter = (Instant, u64, Vec<u8>, Reply);

/// All links. What is sent to or from a cut region is lost.
#[derive(Default)]
pub struct Net {
    regions: Mutex<BTreeMap<RegionName, Consensus>>,
    links: Mutex<BTreeMap<(RegionName, RegionName), mpsc::Sender<Letter>>>,
    cut: Mutex<BTreeSet<RegionName>>,
    /// Picks requests that are lost.
    pub loses: Mutex<Option<Loses>>,
    /// One way.
    pub delay: Mutex<Duration>,
}

impl Net {
    pub fn cut(&self, region: &str) {
        self.cut.lock().insert(name(region));
    }

    pub fn heal(&self) {
        self.cut.lock().clear();
    }

    fn is_cut(&self, a: &RegionName, b: &RegionName) -> bool {
        let cut = self.cut.lock();
        cut.contains(a) || cut.contains(b)
    }

    fn send(self: &Arc<Self>, from: &RegionName, to: &RegionName, letter: Letter) {
        let mut links = self.links.lock();
        let link = links.entry((from.clone(), to.clone())).or_insert_with(|| {
            let (sender, inbox) = mpsc::channel(10_000);
            tokio::spawn(carry(Arc::downgrade(self), from.clone(), to.clone(), inbox));
            sender
        });
        link.try_send(letter).ok();
    }
}

/// Delivers what is on one link, in order.
async fn carry(
    net: Weak<Net>,
    from: RegionName,
    to: RegionName,
    mut inbox: mpsc::Receiver<Letter>,
) {
    while let Some((at, voter, message, reply)) = inbox.recv().await {
        sleep_until(at.into()).await;
        let Some(net) = net.upgrade() else { return };
        if net.is_cut(&from, &to) {
            continue;
        }
        let Some(consensus) = net.regions.lock().get(&to).cloned() else {
            continue;
        };
        let answer = consensus.receive(voter, message);
        drop(consensus);
        let (from, to) = (from.clone(), to.clone());
        tokio::spawn(async move {
            let answer = answer.await;
            let delay = *net.delay.lock();
            sleep(delay).await;
            if !net.is_cut(&from, &to) {
                reply.send(answer).ok();
            }
        });
    }
}

struct End {
    net: Arc<Net>,
    voter: u64,
    region: RegionName,
}

impl Wire for End {
    fn call(
        &self,
        to: &Member,
        message: Vec<u8>,
        deadline: Duration,
    ) -> BoxFuture<'static, Result<Vec<u8>, Unreachable>> {
        let loses = *self.net.loses.lock();
        let envelope: Envelope = decode(&message).expect("a message");
        let is_lost = loses.is_some_and(|loses| loses(&envelope.request));
        let (reply, answer) = oneshot::channel();
        if !is_lost {
            let at = Instant::now() + *self.net.delay.lock();
            self.net
                .send(&self.region, &to.region, (at, self.voter, message, reply));
        }
        Box::pin(async move {
            match timeout(deadline, answer).await {
                Ok(Ok(answer)) => Ok(answer),
                Ok(Err(_)) => {
                    sleep(Duration::from_millis(20)).await;
                    Err(Unreachable("lost".to_owned()))
                }
                Err(_) => Err(Unreachable("too late".to_owned())),
            }
        })
    }
}

/// One region: its directory outlives its process.
pub struct Region {
    pub dir: TempDir,
    pub name: RegionName,
    pub live: Option<Live>,
}

/// A region's process.
pub struct Live {
    pub store: Store,
    pub consensus: Consensus,
    pub journal: Arc<Journal>,
}

pub struct Cluster {
    pub net: Arc<Net>,
    pub settings: Settings,
    pub regions: Vec<Region>,
}

static STARTS: AtomicU64 = AtomicU64::new(1);

pub fn open_store(dir: &Path, region: &RegionName) -> Result<Store, OpenError> {
    // Spread over all 64 bits, as real ones are.
    let incarnation = STARTS
        .fetch_add(1, Ordering::Relaxed)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Store::open(dir, region, incarnation).map(|opened| opened.store)
}

impl Cluster {
    /// Regions that have not founded anything.
    pub async fn new(names: &[&str], settings: Settings) -> Self {
        let mut cluster = Self {
            net: Arc::default(),
            settings,
            regions: Vec::new(),
        };
        for name in names {
            cluster.join(name).await;
        }
        cluster
    }

    /// The same, founded by the first one, with all of them up to date.
    pub async fn founded(names: &[&str], settings: Settings) -> Self {
        let cluster = Self::new(names, settings).await;
        let members = (0..names.len()).map(|at| cluster.member(at)).collect();
        let founder = &cluster.live(0).consensus;
        founder.found(members).await.expect("a cluster");
        for at in 0..names.len() {
            let index = cluster.live(0).consensus.status().applied_index;
            until("all have applied what the founder has", || {
                cluster.live(at).consensus.status().applied_index >= index
            })
            .await;
        }
        cluster
    }

    pub async fn join(&mut self, region: &str) -> usize {
        self.regions.push(Region {
            dir: tempfile::tempdir().expect("a directory"),
            name: name(region),
            live: None,
        });
        let at = self.regions.len() - 1;
        self.start(at).await;
        at
    }

    pub fn live(&self, at: usize) -> &Live {
        self.regions[at].live.as_ref().expect("a live region")
    }

    pub fn member(&self, at: usize) -> Member {
        Member {
            voter: self.live(at).store.identity().voter,
            region: self.regions[at].name.clone(),
            url: format!("http://{}.test", self.regions[at].name),
        }
    }

    /// Opens the directory, once the process before has let go of it.
    pub async fn open(&self, at: usize) -> Store {
        let region = &self.regions[at];
        let start = Instant::now();
        loop {
            match open_store(region.dir.path(), &region.name) {
                Ok(store) => return store,
                Err(error) => assert!(start.elapsed() < PATIENCE, "{error}"),
            }
            sleep(Duration::from_millis(5)).await;
        }
    }

    pub async fn start(&mut self, at: usize) {
        let store = self.open(at).await;
        let journal = Arc::new(Journal::default());
        let region = self.regions[at].name.clone();
        let voter = store.identity().voter;
        let end = End {
            net: Arc::clone(&self.net),
            voter,
            region: region.clone(),
        };
        let consensus = Consensus::start(
            store.clone(),
            voter,
            region.clone(),
            self.settings,
            Arc::new(end),
            journal.clone(),
        )
        .await
        .expect("a start");
        self.net.regions.lock().insert(region, consensus.clone());
        self.regions[at].live = Some(Live {
            store,
            consensus,
            journal,
        });
    }

    /// Drops everything without a word, as a kill would.
    pub fn kill(&mut self, at: usize) {
        let region = &mut self.regions[at];
        self.net.regions.lock().remove(&region.name);
        region.live = None;
    }

    /// Deletes a dead region's directory and makes an empty one.
    pub fn wipe(&mut self, at: usize) {
        self.regions[at].dir = tempfile::tempdir().expect("a directory");
    }

    pub fn living(&self) -> Vec<usize> {
        (0..self.regions.len())
            .filter(|at| self.regions[*at].live.is_some())
            .collect()
    }

    /// Who leads, ready, among `of`; the one with the newest term.
    pub async fn leader_among(&self, of: &[usize]) -> usize {
        let mut found = None;
        until("a leader that is ready", || {
            let ready = of.iter().filter_map(|at| {
                let now = self.live(*at).consensus.leadership().borrow().clone();
                now.is_ready.then_some((now.term, *at))
            });
            found = ready.max();
            found.is_some()
        })
        .await;
        found.expect("a leader").1
    }

    pub async fn leader(&self) -> usize {
        self.leader_among(&self.living()).await
    }

    /// Proposes wherever the lead is until it is known to be done.
    pub async fn propose(&self, of: &[usize], payload: &[u8]) -> Proposed {
        let start = Instant::now();
        loop {
            let leader = self.leader_among(of).await;
            let proposed = self.live(leader).consensus.propose(payload.to_vec()).await;
            match proposed {
                Ok(proposed) => return proposed,
                Err(error) => assert!(start.elapsed() < PATIENCE, "{error}"),
            }
        }
    }

    /// Waits until all of `of` have the same entries, `last` at the end.
    pub async fn agree(&self, of: &[usize], last: &[u8]) -> Vec<Vec<u8>> {
        let mut agreed = Vec::new();
        until("all have the same entries", || {
            let mut all = of.iter().map(|at| self.live(*at).journal.payloads());
            agreed = all.next().unwrap_or_default();
            agreed.last().is_some_and(|it| it == last) && all.all(|it| it == agreed)
        })
        .await;
        agreed
    }
}
