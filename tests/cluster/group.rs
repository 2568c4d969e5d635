//! Several regions as real processes that form one cluster.
//!
//! Peers must know each other's addresses before any of them runs, so the peer listeners' ports are picked here,
//! below the range from which systems give out ports by themselves. At most one cluster runs for every two cores, however
//! many tests do. Dropping a [`Cluster`] kills its processes, stopped ones too; should the tests themselves be
//! killed, the processes see their standard input end.

use std::fs;
use std::num::NonZero;
use std::ops::Index;
use std::sync::Arc;
use std::sync::Condvar;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use reqwest::Method;
use serde_json::Value;
use serde_json::json;

use crate::answer::Answer;
use crate::counter::Counter;
use crate::ports::free_ports;
use crate::server::Server;
use crate::server::Stop;
use crate::server::T0;
use crate::server::wait_until;

/// The regions' names; the last in the alphabet is not the last here.
pub const NAMES: [&str; 5] = [
    "us-east-1",
    "eu-west-1",
    "ap-south-1",
    "sa-east-1",
    "ap-northeast-1",
];
/// How long a cluster may take to do something by itself: to be founded, to elect, to heal.
pub const WITHIN: Duration = Duration::from_secs(30);
/// A window that does not end during a test on the real clock, unless the test runs over its edge in December.
pub const LONG: &str = "365d";

/// Cores that a cluster is given: three or five processes of an unoptimized build share them.
const CORES_OF_ONE: usize = 2;
const TRIES: u32 = 5;

static RUNNING: Mutex<usize> = Mutex::new(0);
static ONE_ENDED: Condvar = Condvar::new();

/// The right to run a cluster.
struct Turn;

impl Turn {
    fn wait() -> Self {
        let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let most = (cores / CORES_OF_ONE).max(1);
        let mut running = ONE_ENDED
            .wait_while(running, |running| *running >= most)
            .unwrap_or_else(PoisonError::into_inner);
        *running += 1;
        Self
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *RUNNING.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        ONE_ENDED.notify_one();
    }
}

/// How the regions of a cluster are set up.
#[derive(Clone, Copy, Debug)]
pub struct Setup<'a> {
    /// How many regions.
    pub regions: usize,
    /// How many of them are started at once; the others are only known to them.
    pub started: usize,
    /// Whether time stands still until it is moved.
    pub manual_clock: bool,
    /// The one-way delay between any two regions.
    pub latency: &'a str,
    /// More settings of every region; values are TOML.
    pub settings: &'a [(&'a str, &'a str)],
}

impl Setup<'_> {
    /// So many regions on the real clock, a few milliseconds apart.
    pub const fn of(regions: usize) -> Self {
        Self {
            regions,
            started: regions,
            manual_clock: false,
            latency: "5ms",
            settings: &[],
        }
    }

    /// The same with clocks that stand at [`T0`] until they are moved.
    pub const fn with_manual_clocks(self) -> Self {
        Self {
            manual_clock: true,
            ..self
        }
    }
}

/// A cluster under test.
pub struct Cluster {
    regions: Vec<Server>,
    // After the regions: the next cluster may start when these are gone.
    _turn: Turn,
}

impl Index<usize> for Cluster {
    type Output = Server;

    fn index(&self, region: usize) -> &Server {
        &self.regions[region]
    }
}

impl Cluster {
    /// So many regions on the real clock, a few milliseconds apart, founded and served with units.
    pub fn of(regions: usize) -> Self {
        Self::set_up(&Setup::of(regions))
    }

    /// A cluster in which every region that is started is granted units of strict limits.
    pub fn set_up(setup: &Setup<'_>) -> Self {
        let mut cluster = Self::start(setup);
        cluster.wait_founded();
        let calm = Arc::new(AtomicBool::new(true));
        for region in &mut cluster.regions {
            region.share_calm(&calm);
        }
        cluster
    }

    /// The processes alone; whether they found a cluster is up to them.
    pub fn start(setup: &Setup<'_>) -> Self {
        let turn = Turn::wait();
        let mut why = String::new();
        for _ in 0..TRIES {
            match start_all(setup) {
                Ok(regions) => {
                    return Self {
                        regions,
                        _turn: turn,
                    };
                }
                // Somebody else took a port.
                Err(failed) => why = failed,
            }
        }
        panic!("no cluster could be started: {why}");
    }

    fn wait_founded(&mut self) {
        wait_until("a cluster is founded", WITHIN, || {
            self.running().all(|region| is_ready(&self[region]))
        });
        self.limits(&json!({ "canary": { "algorithm": "fixed_window", "quota": 1_000_000, "window": LONG, "mode": "strict" } }));
        self.wait_granted("canary");
    }

    /// Waits until every region that runs is granted units of the strict limit `limit`, which costs a few.
    pub fn wait_granted(&self, limit: &str) {
        for region in self.running() {
            wait_until("every region is granted units", WITHIN, || {
                Counter::new(&self[region], "canary", limit).take(1).status == 200
            });
        }
    }

    /// How many regions there are.
    pub fn len(&self) -> usize {
        self.regions.len()
    }

    /// The regions that run.
    pub fn running(&self) -> impl Iterator<Item = usize> {
        (0..self.len()).filter(|region| self[*region].is_running())
    }

    /// The regions but one.
    pub fn others(&self, than: usize) -> Vec<usize> {
        self.running().filter(|region| *region != than).collect()
    }

    /// The region that leads, as far as the regions' logs tell.
    pub fn leader(&self) -> usize {
        let mut found = None;
        wait_until("a region leads", WITHIN, || {
            found = self.leads_now();
            found.is_some()
        });
        found.expect("found")
    }

    /// A region that does not lead.
    pub fn follower(&self) -> usize {
        self.others(self.leader())[0]
    }

    fn leads_now(&self) -> Option<usize> {
        let (_, leads, region) = self
            .running()
            .filter_map(|region| {
                let (term, leads) = last_lead(&self[region].log())?;
                Some((term, leads, region))
            })
            .max()?;
        leads.then_some(region)
    }

    /// Waits until another region than `old` leads.
    pub fn wait_for_another_leader(&self, old: usize) -> usize {
        let mut found = None;
        wait_until("another region leads", WITHIN, || {
            found = self.leads_now().filter(|region| *region != old);
            found.is_some()
        });
        found.expect("found")
    }

    /// Replaces the whole catalogue by limits that hold for every tenant, and waits until that is in force
    /// wherever a region runs.
    pub fn limits(&self, limits: &Value) -> Answer {
        let first = self.running().next().expect("a region runs");
        let answer = self[first].limits(limits);
        self.wait_in_force(version(&answer));
        answer
    }

    /// Puts one base limit by way of `region`, and waits until it is in force wherever a region runs.
    pub fn put_limit(&self, region: usize, name: &str, limit: &Value) -> Answer {
        let path = format!("/admin/v1/limits/{name}");
        let answer = self[region].admin(Method::PUT, &path, limit);
        answer.succeeded();
        self.wait_in_force(version(&answer));
        answer
    }

    /// Waits until the catalogue of this version is in force wherever a region runs.
    pub fn wait_in_force(&self, version: u64) {
        for region in self.running() {
            wait_until("the change is in force everywhere", WITHIN, || {
                status(&self[region])["catalogue_version"]
                    .as_u64()
                    .is_some_and(|known| known >= version)
            });
        }
    }

    /// Kills a region with SIGKILL.
    pub fn kill(&mut self, region: usize) {
        self.regions[region].stop(Stop::Kill);
    }

    /// Ends a region in good order.
    pub fn terminate(&mut self, region: usize) {
        let status = self.regions[region].stop(Stop::Terminate);
        assert!(status.success(), "{status}: {}", self[region].log());
    }

    /// Starts a region again on what it kept.
    pub fn start_again(&mut self, region: usize) {
        self.regions[region].start_again();
    }

    /// Deletes what a stopped region kept.
    pub fn wipe(&self, region: usize) {
        assert!(!self[region].is_running(), "stopped before");
        fs::remove_dir_all(self[region].data_dir()).expect("the data can be removed");
    }

    /// Lets a region stand still, as if its whole machine did.
    pub fn pause(&self, region: usize) {
        self.signal(region, rustix::process::Signal::STOP);
    }

    /// Lets it go on.
    pub fn go_on(&self, region: usize) {
        self.signal(region, rustix::process::Signal::CONT);
    }

    fn signal(&self, region: usize, signal: rustix::process::Signal) {
        self[region].disturb();
        let pid = i32::try_from(self[region].pid()).ok();
        let pid = pid.and_then(rustix::process::Pid::from_raw);
        rustix::process::kill_process(pid.expect("a process id"), signal).expect("ours");
    }

    /// Cuts a region off from all others, both ways; gives the fault's id.
    pub fn cut_off(&self, region: usize) -> String {
        self[region].inject("partition")
    }

    /// Sets the clock of every region that runs to `ms` after [`T0`].
    pub fn at(&self, ms: i64) {
        for region in self.running() {
            self[region].at(ms);
        }
    }
}

/// `GET /admin/v1/cluster`.
pub fn status(server: &Server) -> Value {
    let answer = server.admin(Method::GET, "/admin/v1/cluster", &Value::Null);
    answer.succeeded();
    answer.body
}

/// Whether `/readyz` says so.
pub fn is_ready(server: &Server) -> bool {
    server.get("/readyz").status == 200
}

/// `version` of a write.
pub fn version(answer: &Answer) -> u64 {
    answer.body["version"]
        .as_u64()
        .unwrap_or_else(|| panic!("no version: {answer:?}"))
}

/// `pending_regions` of a write.
pub fn pending(answer: &Answer) -> Vec<String> {
    serde_json::from_value(answer.body["pending_regions"].clone())
        .unwrap_or_else(|_| panic!("no pending_regions: {answer:?}"))
}

/// The newest term that a region has led, by its log, and whether it still does.
fn last_lead(log: &str) -> Option<(u64, bool)> {
    let mut last = None;
    for line in log.lines() {
        if line.contains("this region leads no more") {
            last = last.map(|(term, _)| (term, false));
        } else if line.contains("this region leads") {
            let (_, term) = line.split_once("term=")?;
            let digits = term.find(|c: char| !c.is_ascii_digit());
            let term = &term[..digits.unwrap_or(term.len())];
            last = Some((term.parse().ok()?, true));
        }
    }
    last
}

fn start_all(setup: &Setup<'_>) -> Result<Vec<Server>, String> {
    let ports = free_ports(setup.regions);
    (0..setup.started)
        .map(|own| {
            let peers: Vec<String> = (0..setup.regions)
                .filter(|other| *other != own)
                .map(|other| {
                    format!(
                        "{{ region = \"{}\", url = \"http://127.0.0.1:{}\", latency = \"{}\" }}",
                        NAMES[other], ports[other], setup.latency
                    )
                })
                .collect();
            let own_settings = [
                ("region", format!("\"{}\"", NAMES[own])),
                ("listen.peer", format!("\"127.0.0.1:{}\"", ports[own])),
                ("auth.peer_secret", "\"between regions\"".to_owned()),
                ("peers", format!("[{}]", peers.join(", "))),
            ];
            let mut settings: Vec<(&str, &str)> = own_settings
                .iter()
                .map(|(name, value)| (*name, value.as_str()))
                .collect();
            settings.extend(setup.settings);
            Server::try_launch(&settings, setup.manual_clock, T0)
        })
        .collect()
}
