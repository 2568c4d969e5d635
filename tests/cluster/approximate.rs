//! Approximate limits in joined regions: one quota for all, no check waits for another region.
//!
//! Clocks stand still in most of these, so that windows roll when a test says so; news between regions travels in
//! real time all the same. A test that wants exact figures lets the regions agree before it goes on.

mod bounds;
mod change;
mod kinds;
mod leases;
mod mixed;
mod partition;
mod peers;
mod restart;
mod sharing;

use std::collections::BTreeMap;
use std::time::Duration;
use std::time::Instant;

use reqwest::Method;
use serde_json::Value;
use serde_json::json;

use crate::answer::Answer;
use crate::counter::Counter;
use crate::group::Cluster;
use crate::group::LONG;
use crate::group::NAMES;
use crate::group::Setup;
use crate::group::WITHIN;
use crate::group::version;
use crate::server::wait_until;

/// Regions tell each other of changes this often.
const INTERVAL: Duration = Duration::from_millis(100);
/// The one-way delay of [`Setup::of`].
const DELAY: Duration = Duration::from_millis(5);
/// A peer that was not heard for so long is cut off.
const CUT_OFF_AFTER: Duration = Duration::from_secs(1);
/// What a debug build on a machine that others use may take beside.
const MACHINE: Duration = Duration::from_millis(600);

/// A limit of fixed windows.
fn fixed(quota: u64, window: &str) -> Value {
    json!({ "algorithm": "fixed_window", "quota": quota, "window": window, "mode": "approximate" })
}

/// The same with one more field.
fn with(mut limit: Value, field: &str, value: impl Into<Value>) -> Value {
    limit[field] = value.into();
    limit
}

/// A cluster with these limits, in which every region is in touch with all others.
fn cluster_with(setup: &Setup<'_>, mut limits: Value) -> Cluster {
    limits["touch"] = fixed(1_000_000, LONG);
    let cluster = Cluster::set_up(setup);
    cluster.limits(&limits);
    wait_in_touch(&cluster);
    cluster
}

/// Whether the region says of its answers that a peer is missing, or does not know the limit: one that started while
/// nobody led may serve by an older catalogue for a moment.
fn is_degraded(cluster: &Cluster, region: usize) -> bool {
    let look = Counter::new(&cluster[region], "t", "touch").look();
    look.status != 200 || look.only()["degraded"] == true
}

/// Waits until no region that runs misses another.
fn wait_in_touch(cluster: &Cluster) {
    for region in cluster.running() {
        wait_until("the region is in touch with all others", WITHIN, || {
            !is_degraded(cluster, region)
        });
    }
}

/// Waits until these regions miss somebody, and everybody that a cut took from them: one that was not heard for a
/// second is cut off, and the cut is older than this call.
fn wait_apart(cluster: &Cluster, regions: &[usize]) {
    let began = Instant::now();
    for region in regions {
        wait_until("the region knows that it misses another", WITHIN, || {
            is_degraded(cluster, *region)
        });
    }
    wait_until("a second is over, and a little more", WITHIN, || {
        began.elapsed() > CUT_OFF_AFTER + 2 * INTERVAL
    });
}

/// `by_region` of a usage report, in the order of [`NAMES`]; a region that is not named has used nothing.
fn by_region(usage: &Answer) -> Vec<u64> {
    let told: BTreeMap<String, u64> =
        serde_json::from_value(usage.body["by_region"].clone()).unwrap_or_default();
    let known = NAMES.map(|name| told.get(name).copied().unwrap_or(0));
    assert!(
        told.keys().all(|name| NAMES.contains(&name.as_str())),
        "{usage:?}"
    );
    known.to_vec()
}

/// A counter: tenant, limit and key; the key may be nothing.
#[derive(Clone, Copy, Debug)]
struct Which<'a>(&'a str, &'a str, &'a str);

impl<'a> Which<'a> {
    fn at(self, cluster: &'a Cluster, region: usize) -> Counter<'a> {
        let Self(tenant, limit, key) = self;
        if key.is_empty() {
            Counter::new(&cluster[region], tenant, limit)
        } else {
            Counter::keyed(&cluster[region], tenant, limit, key)
        }
    }
}

/// The tenant's only counter of a limit without keys.
const fn of(limit: &str) -> Which<'_> {
    Which("t", limit, "")
}

/// Polls until every region that runs tells the same use by region; says how long that took.
fn wait_agreed(cluster: &Cluster, which: Which<'_>, used_by: &[u64]) -> Duration {
    wait_told(cluster, which, used_by, used_by.iter().sum())
}

/// The same where use is not the sum of the regions' parts.
fn wait_told(cluster: &Cluster, which: Which<'_>, used_by: &[u64], used: u64) -> Duration {
    let began = Instant::now();
    let mut wanted = used_by.to_vec();
    wanted.resize(NAMES.len(), 0);
    for region in cluster.running() {
        let counter = which.at(cluster, region);
        loop {
            let asked = began.elapsed();
            let usage = counter.usage();
            if usage.used() == used && by_region(&usage) == wanted {
                break;
            }
            assert!(
                asked < Duration::from_secs(15),
                "{} does not know of {used} by {used_by:?}: {usage:?}",
                NAMES[region]
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    began.elapsed()
}

/// Lets time pass in which every region tells every other all that it knows, and more: what must not change has
/// not changed afterwards.
fn let_news_pass(cluster: &Cluster) {
    let running: Vec<usize> = cluster.running().collect();
    let sum = of("touch").at(cluster, running[0]);
    // Before anything is taken: what is heard meanwhile is news.
    let mut known = by_region(&sum.usage());
    for _ in 0..4 {
        for region in &running {
            assert!(of("touch").at(cluster, *region).take(1).allowed());
        }
        wait_until("news passes", WITHIN, || {
            let now = by_region(&sum.usage());
            let all_told = running[1..]
                .iter()
                .all(|region| now[*region] > known[*region]);
            if all_told {
                known = now;
            }
            all_told
        });
    }
}

/// Takes `cost` where the whole quota is not used up yet: a refusal says that a share is, and is tried again.
fn take_patiently(counter: &Counter<'_>, cost: u64) -> Answer {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let answer = counter.take(cost);
        if answer.allowed() {
            return answer;
        }
        let left = counter.left();
        assert!(left >= cost, "{left} left: {answer:?}");
        assert!(Instant::now() < deadline, "not to be had: {answer:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Takes one unit after the other, round `regions`, which can hear each other, until none of them has been allowed
/// one for a second; how many there were by region. They come to know of what was taken before it is so much that
/// two could take the same.
fn spend(cluster: &Cluster, regions: &[usize], which: Which<'_>) -> Vec<u64> {
    let mut taken = vec![0; NAMES.len()];
    let mut refused_since: BTreeMap<usize, Option<Instant>> =
        regions.iter().map(|region| (*region, None)).collect();
    let patience = Duration::from_millis(1_000);
    let ended = |since: &Option<Instant>| since.is_some_and(|since| since.elapsed() > patience);
    let mut unheard = 0;
    while !refused_since.values().all(ended) {
        for region in regions {
            let answer = which.at(cluster, *region).take(1);
            if answer.allowed() {
                taken[*region] += 1;
                unheard += 1;
                refused_since.values_mut().for_each(|since| *since = None);
                if 8 * unheard > answer.remaining() {
                    wait_same_use(cluster, regions, which);
                    unheard = 0;
                }
            } else {
                let since = refused_since.entry(*region).or_default();
                since.get_or_insert_with(Instant::now);
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }
    taken
}

/// Waits until these regions tell the same use by region.
fn wait_same_use(cluster: &Cluster, regions: &[usize], which: Which<'_>) {
    let told = |region: &usize| by_region(&which.at(cluster, *region).usage());
    wait_until("the regions tell the same use", WITHIN, || {
        let first = told(&regions[0]);
        // Two that tell the same may both lack what the third took.
        regions[1..].iter().all(|region| told(region) == first)
    });
}

/// Starts a fault with more than its kind; gives its id.
fn inject(cluster: &Cluster, region: usize, fault: &Value) -> String {
    let answer = cluster[region].admin(Method::POST, "/admin/v1/faults", fault);
    answer.succeeded();
    answer.body["id"]
        .as_str()
        .unwrap_or_else(|| panic!("no id: {answer:?}"))
        .to_owned()
}

/// Cuts every link between one side and the other; gives what heals it.
fn cut(cluster: &Cluster, side: &[usize], other: &[usize]) -> Vec<(usize, String)> {
    let mut faults = Vec::new();
    for region in side {
        for peer in other {
            let fault = json!({ "kind": "partition", "peer": NAMES[*peer], "ttl": "60s" });
            faults.push((*region, inject(cluster, *region, &fault)));
        }
    }
    faults
}

/// Ends faults.
fn heal(cluster: &Cluster, faults: &[(usize, String)]) {
    for (region, fault) in faults {
        cluster[*region].heal(fault);
    }
}

/// Begins a new epoch of the tenant's use of a limit.
fn reset(cluster: &Cluster, by: usize, limit: &str) -> u64 {
    let path = format!("/admin/v1/tenants/t/limits/{limit}/reset");
    let answer = cluster[by].admin(Method::POST, &path, &json!({}));
    answer.succeeded();
    version(&answer)
}
