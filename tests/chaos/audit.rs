//! The auditor: from what callers were told, whether any limit was exceeded.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde::Serialize;

use crate::limits::Amounts;
use crate::limits::Kind;
use crate::limits::LIMITS;
use crate::limits::SLACK_MS;
use crate::limits::limit;
use crate::record::Given;
use crate::record::Record;
use crate::record::Told;

/// Buckets earn by log time, but nothing over the jump that it may make when the leader changes. In between it
/// goes like the leader's boot clock, faster by 500 ppm at most, which no fault here moves. Over any interval so
/// many millionths and milliseconds more may be earned than the harness's clock, in whole milliseconds, tells.
const FAST_PPM: i64 = 600;
const ROUNDING_MS: i64 = 5;
/// What was granted under an amount that was lowered may be held, and spent, for so much longer, in milliseconds.
const HELD_MS: i64 = 15_000;

/// A window of a counter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Place {
    /// The limit.
    pub limit: String,
    /// Whose.
    pub tenant: &'static str,
    /// The key.
    pub key: String,
    /// The epoch.
    pub epoch: u64,
    /// The window's start, in Unix milliseconds.
    pub start: i64,
}

#[derive(Clone, Debug, Default)]
struct Sum {
    units: u64,
    answers: Vec<usize>,
}

/// A counter: whose, which key, in which epoch.
type Counter<K> = (&'static str, K, u64);
/// A charge: when it was sent and answered, and its units.
type Timed = (i64, i64, u64);

/// What the audit found.
#[derive(Debug, Default)]
pub struct Report {
    /// Windows that were looked at.
    pub windows: usize,
    /// Units that were allowed in them.
    pub units: u64,
    /// Windows whose whole amount was used.
    pub full: usize,
    /// Buckets that were looked at.
    pub buckets: usize,
    /// The highest use of a bucket in any interval, in hundredths of what it may give.
    pub bucket_percent: u64,
    /// The highest use, in hundredths of the amount.
    pub worst_percent: u64,
    /// Answers by status and reason.
    pub answers: BTreeMap<String, u64>,
    /// Allowed answers by who decided.
    pub decided: BTreeMap<String, u64>,
    /// Units that were allowed, by window.
    pub sums: BTreeMap<Place, u64>,
    /// What must not be.
    pub violations: Vec<String>,
}

/// Judges the whole record; answers behind a violation are written to `root`.
pub fn judge(record: &Record, amounts: &Amounts, root: &Path) -> Report {
    let told = record.told();
    let given = record.given();
    let mut report = Report::default();
    for one in &told {
        if matches!(one.status, 400..=404 | 422 | 500) {
            report.violations.push(format!("no right answer: {one:?}"));
        }
        let name = format!("{} {}", one.status, one.reason);
        *report.answers.entry(name.trim().to_owned()).or_default() += 1;
        for said in one.said.iter().filter(|_| one.status == 200) {
            let degraded = if said.degraded { " degraded" } else { "" };
            let name = format!("{}{degraded}", said.decided_by);
            *report.decided.entry(name).or_default() += 1;
        }
    }
    windows(record, &told, &given, amounts, root, &mut report);
    buckets(&told, amounts, root, &mut report);
    leases(record, &mut report);
    report
}

/// Whether the answer's epoch may be a later one than that of its charge: it is the answer to a repeat.
fn is_doubtful(record: &Record, told: &Told, limit: &str, key: &str) -> bool {
    told.tries > 1
        && record
            .resets
            .lock()
            .iter()
            .any(|(of, tenant, reset, sent, answered)| {
                *of == limit
                    && *tenant == told.tenant
                    && reset == key
                    && *sent <= told.heard + SLACK_MS
                    && *answered >= told.sent - SLACK_MS
            })
}

fn windows(
    record: &Record,
    told: &[Told],
    given: &[Given],
    amounts: &Amounts,
    root: &Path,
    report: &mut Report,
) {
    let mut sums: BTreeMap<Place, Sum> = BTreeMap::new();
    for (index, one) in told
        .iter()
        .enumerate()
        .filter(|(_, told)| told.status == 200)
    {
        for said in one
            .said
            .iter()
            .filter(|said| said.allowed && !said.degraded)
        {
            let Some(Kind::Windowed(length)) = limit(&said.limit).map(|limit| limit.kind) else {
                continue;
            };
            let Some(start) = said.window_start_ms else {
                continue;
            };
            if is_doubtful(record, one, &said.limit, &said.key) {
                continue;
            }
            if one.sent > start + length + SLACK_MS || one.heard < start - SLACK_MS {
                report
                    .violations
                    .push(format!("outside its window: {one:?}"));
            }
            let sum = sums
                .entry(Place {
                    limit: said.limit.clone(),
                    tenant: one.tenant,
                    key: said.key.clone(),
                    epoch: said.epoch,
                    start,
                })
                .or_default();
            sum.units += said.cost;
            sum.answers.push(index);
        }
    }
    for (place, sum) in &sums {
        let Some(Kind::Windowed(length)) = limit(&place.limit).map(|limit| limit.kind) else {
            continue;
        };
        let end = place.start + length;
        let quota = amounts.largest(&place.limit, place.start, end);
        let back: Vec<&Given> = given
            .iter()
            .filter(|given| {
                given.limit == place.limit && given.tenant == place.tenant && given.key == place.key
            })
            .filter(|given| match given.window {
                Some((epoch, start)) => epoch == place.epoch && start == place.start,
                None => {
                    given.sent - SLACK_MS < end
                        && given.heard.saturating_add(SLACK_MS) > place.start
                }
            })
            .collect();
        let returned: u64 = back.iter().map(|given| given.most).sum();
        report.windows += 1;
        report.units += sum.units;
        report.sums.insert(place.clone(), sum.units);
        let net = sum.units.saturating_sub(returned);
        report.full += usize::from(sum.units >= quota);
        report.worst_percent = report.worst_percent.max(100 * net / quota.max(1));
        if net > quota {
            let file = format!("violation-{}.txt", report.violations.len());
            let mut text = format!(
                "{place:?}\nallowed {} - given back {returned} > {quota}\n\n",
                sum.units
            );
            for index in &sum.answers {
                writeln!(text, "{}", line(&told[*index], &place.limit)).expect("a string");
            }
            for given in back {
                writeln!(text, "{given:?}").expect("a string");
            }
            fs::write(root.join(&file), text).expect("the answers are written");
            report.violations.push(format!(
                "{place:?}: allowed {} - given back {returned} > {quota}, see {file}",
                sum.units
            ));
        }
    }
}

/// An answer in one line.
fn line(told: &Told, limit: &str) -> String {
    let said = told.said.iter().find(|said| said.limit == limit);
    let (cost, by) = said.map_or((0, ""), |said| (said.cost, said.decided_by.as_str()));
    format!(
        "{}..{} {} cost {cost} by {by} key {:?} tries {} hold {} quota {:?} {:?}",
        told.sent,
        told.heard,
        told.region,
        told.key,
        told.tries,
        told.is_hold,
        said.map(|said| said.quota),
        told.said
            .iter()
            .map(|said| said.limit.as_str())
            .collect::<Vec<_>>(),
    )
}

/// Over any interval no more than the capacity and what is refilled in it.
fn buckets(told: &[Told], amounts: &Amounts, root: &Path, report: &mut Report) {
    for of in LIMITS {
        let Kind::Bucket(per) = of.kind else { continue };
        let mut counters: BTreeMap<Counter<&str>, Vec<Timed>> = BTreeMap::new();
        for one in told.iter().filter(|told| told.status == 200) {
            for said in one
                .said
                .iter()
                .filter(|said| said.limit == of.name && !said.degraded)
            {
                counters
                    .entry((one.tenant, &said.key, said.epoch))
                    .or_default()
                    .push((one.sent, one.heard, said.cost));
            }
        }
        for (counter, mut charges) in counters {
            charges.sort_unstable_by_key(|(_, heard, _)| *heard);
            let mut fullest = 0;
            for (from, ..) in &charges {
                let mut units = 0;
                let mut worst = None;
                for (sent, heard, cost) in &charges {
                    if sent < from {
                        continue;
                    }
                    units += cost;
                    let time = heard - from;
                    let time = time + time * FAST_PPM / 1_000_000 + ROUNDING_MS;
                    let time = u64::try_from(time).expect("later");
                    let quota = if of.changes {
                        amounts.largest(of.name, from - HELD_MS, *heard)
                    } else {
                        of.quota
                    };
                    let most = quota + quota * time / u64::try_from(per).expect("long");
                    fullest = fullest.max(100 * units / most.max(1));
                    if units > most {
                        worst = Some((*heard, units, most));
                    }
                }
                if let Some((until, units, most)) = worst {
                    report.violations.push(format!(
                        "{} of {counter:?}: {units} > {most} from {from} to {until}",
                        of.name
                    ));
                    let text: String = charges
                        .iter()
                        .map(|charge| format!("{charge:?}\n"))
                        .collect();
                    fs::write(
                        root.join(format!("bucket-{}.txt", report.violations.len())),
                        text,
                    )
                    .expect("the answers are written");
                    break;
                }
            }
            report.units += charges.iter().map(|(.., cost)| cost).sum::<u64>();
            report.buckets += 1;
            report.bucket_percent = report.bucket_percent.max(fullest);
        }
    }
}

/// At no instant more leases than the amount.
fn leases(record: &Record, report: &mut Report) {
    let most = limit("lease").map_or(0, |limit| limit.quota);
    let mut counters: BTreeMap<Counter<String>, Vec<(i64, i64)>> = BTreeMap::new();
    for lease in record.leases() {
        let steps = counters
            .entry((lease.tenant, lease.key, lease.epoch))
            .or_default();
        steps.push((lease.from, 1));
        steps.push((lease.until, -1));
    }
    for (counter, mut steps) in counters {
        // Ends come first: they are early estimates.
        steps.sort_unstable();
        let mut held = 0;
        for (at, step) in steps {
            held += step;
            if held > i64::try_from(most).expect("few") {
                report
                    .violations
                    .push(format!("{counter:?}: {held} leases at {at}, of {most}"));
                break;
            }
        }
    }
}

/// Between which sums the use of a counter of keyed calls must be: all that were allowed, and perhaps those
/// that were never answered.
pub fn once(record: &Record, tenant: &str, key: &str) -> (u64, u64) {
    let (mut least, mut most) = (0_u64, 0_u64);
    for told in record.told().iter().filter(|told| told.tenant == tenant) {
        for said in told
            .said
            .iter()
            .filter(|said| said.limit == "once" && said.key == key)
        {
            match told.status {
                200 => {
                    least += said.cost;
                    most += said.cost;
                }
                429 => {}
                _ => most += said.cost,
            }
        }
    }
    for given in record.given() {
        if given.limit == "once" && given.tenant == tenant && given.key == key {
            least = least.saturating_sub(given.most);
            most = most.saturating_sub(given.least);
        }
    }
    (least, most)
}
