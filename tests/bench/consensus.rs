//! How fast the replicated log is: three regions in one process, real stores, a wire with a delay.
//!
//! `cargo bench --bench consensus` prints one line per figure, beside what the disk does alone in the same
//! run. These are figures to compare on one machine, not tests: nothing here fails.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use futures_util::future::BoxFuture;
use highwater::consensus::Committed;
use highwater::consensus::Consensus;
use highwater::consensus::Machine;
use highwater::consensus::Member;
use highwater::consensus::Membership;
use highwater::consensus::Settings;
use highwater::consensus::Unreachable;
use highwater::consensus::Wire;
use highwater::domain::name::RegionName;
use highwater::store::RaftDone;
use highwater::store::RaftWrite;
use highwater::store::Store;
use highwater::store::StoredVote;
use tokio::sync::mpsc;
use tokio::sync::oneshot;
use tokio::time::sleep;
use tokio::time::sleep_until;

const NAMES: [&str; 3] = ["us-east-1", "eu-central-1", "ap-south-1"];
const PAYLOAD_BYTES: usize = 100;
const RUN: Duration = Duration::from_secs(3);

/// Counts and sums, so that applying costs next to nothing.
#[derive(Default)]
struct Count(AtomicU64);

impl Machine for Count {
    fn apply(&self, entry: Committed<'_>) -> Vec<u8> {
        self.0
            .fetch_add(entry.payload.len() as u64, Ordering::Relaxed);
        entry.index.to_be_bytes().to_vec()
    }

    fn members(&self, _index: u64, _members: &Membership) {}

    fn snapshot(&self) -> Vec<u8> {
        self.0.load(Ordering::Relaxed).to_be_bytes().to_vec()
    }

    fn install(&self, snapshot: &[u8]) -> Result<(), String> {
        let sum = snapshot.try_into().map_err(|_| "8 bytes".to_owned())?;
        self.0.store(u64::from_be_bytes(sum), Ordering::Relaxed);
        Ok(())
    }
}

type Letter = (Instant, u64, Vec<u8>, oneshot::Sender<Vec<u8>>);

struct Net {
    delay: Duration,
    regions: Mutex<BTreeMap<RegionName, Consensus>>,
    links: Mutex<BTreeMap<(u64, RegionName), mpsc::Sender<Letter>>>,
}

struct End {
    net: Arc<Net>,
    voter: u64,
}

async fn carry(net: Arc<Net>, to: RegionName, mut inbox: mpsc::Receiver<Letter>) {
    while let Some((at, from, message, reply)) = inbox.recv().await {
        if !net.delay.is_zero() {
            sleep_until(at.into()).await;
        }
        let target = net.regions.lock().expect("a lock").get(&to).cloned();
        let Some(target) = target else { continue };
        let answer = target.receive(from, message);
        let delay = net.delay;
        tokio::spawn(async move {
            let answer = answer.await;
            if !delay.is_zero() {
                sleep(delay).await;
            }
            reply.send(answer).ok();
        });
    }
}

impl Wire for End {
    fn call(
        &self,
        to: &Member,
        message: Vec<u8>,
        deadline: Duration,
    ) -> BoxFuture<'static, Result<Vec<u8>, Unreachable>> {
        let (reply, answer) = oneshot::channel();
        let letter = (Instant::now() + self.net.delay, self.voter, message, reply);
        let mut links = self.net.links.lock().expect("a lock");
        let link = links
            .entry((self.voter, to.region.clone()))
            .or_insert_with(|| {
                let (sender, inbox) = mpsc::channel(10_000);
                tokio::spawn(carry(Arc::clone(&self.net), to.region.clone(), inbox));
                sender
            });
        link.try_send(letter).ok();
        Box::pin(async move {
            let lost = |_| Unreachable("lost".to_owned());
            let answer = tokio::time::timeout(deadline, answer).await;
            answer
                .map_err(|_| Unreachable("late".to_owned()))?
                .map_err(lost)
        })
    }
}

fn open(dir: &Path, name: &RegionName) -> Store {
    static STARTS: AtomicU64 = AtomicU64::new(1);
    let incarnation = STARTS.fetch_add(1, Ordering::Relaxed);
    Store::open(dir, name, incarnation).expect("a store").store
}

/// Synced commits of one file, one after the other.
async fn disk_alone() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = open(dir.path(), &RegionName::new(NAMES[0]).expect("a name"));
    let began = Instant::now();
    let mut commits = 0_u32;
    while began.elapsed() < RUN {
        let (to, answer) = oneshot::channel();
        let done = RaftDone::new(move |outcome| drop(to.send(outcome)));
        let vote = StoredVote {
            term: u64::from(commits),
            voter: 1,
            is_committed: false,
        };
        store.raft_write(RaftWrite::Vote(vote), done).await;
        answer.await.expect("an answer").expect("a write");
        commits += 1;
    }
    let per_second = f64::from(commits) / began.elapsed().as_secs_f64();
    println!("the disk alone: {per_second:.0} synced commits/s");
}

struct Region {
    _dir: tempfile::TempDir,
    store: Store,
    consensus: Consensus,
}

async fn cluster(delay: Duration) -> Vec<Region> {
    let net = Arc::new(Net {
        delay,
        regions: Mutex::default(),
        links: Mutex::default(),
    });
    let mut regions = Vec::new();
    let mut members = Vec::new();
    for name in NAMES {
        let dir = tempfile::tempdir().expect("a directory");
        let region = RegionName::new(name).expect("a name");
        let store = open(dir.path(), &region);
        let voter = store.identity().voter;
        let wire = Arc::new(End {
            net: Arc::clone(&net),
            voter,
        });
        let consensus = Consensus::start(
            store.clone(),
            voter,
            region.clone(),
            Settings::default(),
            wire,
            Arc::new(Count::default()),
        )
        .await
        .expect("a start");
        let mut known = net.regions.lock().expect("a lock");
        known.insert(region.clone(), consensus.clone());
        members.push(Member {
            voter,
            region,
            url: String::new(),
        });
        regions.push(Region {
            _dir: dir,
            store,
            consensus,
        });
    }
    regions[0].consensus.found(members).await.expect("founded");
    regions
}

async fn load(leader: &Region, delay: Duration, clients: usize) {
    let commits = leader.store.stats().commits;
    let began = Instant::now();
    let running: Vec<_> = (0..clients)
        .map(|_| {
            let consensus = leader.consensus.clone();
            tokio::spawn(async move {
                let mut times = Vec::new();
                while began.elapsed() < RUN {
                    let sent = Instant::now();
                    let proposed = consensus.propose(vec![7; PAYLOAD_BYTES]).await;
                    if proposed.is_ok() {
                        times.push(sent.elapsed());
                    }
                }
                times
            })
        })
        .collect();
    let mut times = Vec::new();
    for client in running {
        times.extend(client.await.expect("a client"));
    }
    let seconds = began.elapsed().as_secs_f64();
    times.sort();
    let at = |share: usize| times.get(times.len() * share / 100).copied();
    let commits = leader.store.stats().commits.saturating_sub(commits);
    println!(
        "round trip {} ms, {clients} clients: {:.0} entries/s, p50 {:.2?}, p99 {:.2?}, leader's disk {:.0} commits/s",
        delay.as_millis() * 2,
        times.len() as f64 / seconds,
        at(50).unwrap_or_default(),
        at(99).unwrap_or_default(),
        commits as f64 / seconds,
    );
}

/// Time from the end of a leader to the first entry that the next one has committed.
async fn failover(delay: Duration) {
    let mut times = Vec::new();
    for _ in 0..5 {
        let mut regions = cluster(delay).await;
        let leader = &regions[0].consensus;
        leader.propose(vec![1]).await.expect("an entry");
        let rest = regions.split_off(1);
        let began = Instant::now();
        regions[0].consensus.shutdown().await;
        'found: loop {
            for region in &rest {
                if region.consensus.leadership().borrow().is_self
                    && region.consensus.propose(vec![2]).await.is_ok()
                {
                    break 'found;
                }
            }
            sleep(Duration::from_millis(5)).await;
        }
        times.push(began.elapsed());
        for region in &rest {
            region.consensus.shutdown().await;
        }
    }
    times.sort();
    println!(
        "round trip {} ms, leader ends: next entry after {:.2?} to {:.2?}",
        delay.as_millis() * 2,
        times[0],
        times[times.len() - 1],
    );
}

#[tokio::main]
async fn main() {
    disk_alone().await;
    failover(Duration::from_millis(50)).await;
    for delay in [Duration::ZERO, Duration::from_millis(50)] {
        let regions = cluster(delay).await;
        for clients in [1, 16, 256, 1_024] {
            load(&regions[0], delay, clients).await;
        }
        for region in &regions {
            region.consensus.shutdown().await;
        }
    }
}
