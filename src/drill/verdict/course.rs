//! The course of things: who led when, how soon a failure was seen, and when all was well again.

use super::Found;
use crate::drill::record::Done;
use crate::drill::record::Record;
use crate::drill::scenario::Action;
use crate::drill::scenario::Direction;
use crate::drill::scenario::Scenario;
use crate::drill::scenario::step::seconds;

fn action<'a>(scenario: &'a Scenario, done: &Done) -> Option<&'a Action> {
    scenario.steps.get(done.step).map(|step| &step.action)
}

/// The steps that were done to the region that led, or that handed the lead over: each with the leader before it.
fn leads_taken<'a>(
    scenario: &Scenario,
    record: &'a Record,
) -> impl Iterator<Item = (&'a Done, usize, u64)> {
    record.steps.iter().filter_map(|done| {
        let (leader, term) = record.leader_at(done.began_ms)?;
        let takes = match action(scenario, done)? {
            Action::Transfer => done.region != leader,
            action => done.region == leader && action.takes_the_lead(),
        };
        takes.then_some((done, leader, term))
    })
}

/// How long it took until another region led, of the slowest time that the lead was taken; the inner `None`: once none did.
/// `None`: it was never taken.
pub fn new_leader_after(scenario: &Scenario, record: &Record) -> Option<Option<(usize, u64)>> {
    let after = |(done, old, term): (&Done, usize, u64)| {
        record.samples.iter().find_map(|sample| {
            let seen = sample.seen.as_ref()?;
            let is_new = sample.at_ms >= done.began_ms
                && seen.leads
                && sample.region != old
                && seen.term > term;
            is_new.then(|| (sample.region, sample.at_ms.saturating_sub(done.began_ms)))
        })
    };
    let mut slowest = None;
    for taken in leads_taken(scenario, record) {
        let Some((region, took_ms)) = after(taken) else {
            return Some(None);
        };
        if slowest.is_none_or(|(_, longest_ms)| took_ms > longest_ms) {
            slowest = Some((region, took_ms));
        }
    }
    slowest.map(Some)
}

pub(super) fn new_leader(scenario: &Scenario, record: &Record, within_ms: u64) -> Found {
    let wanted = format!("within {}", seconds(within_ms));
    let times = leads_taken(scenario, record).count();
    match new_leader_after(scenario, record) {
        None => Found::nothing(wanted, "no step took the lead from the region that had it"),
        Some(None) => Found {
            is_met: false,
            found: "no new leader".to_owned(),
            wanted,
            note: "no other region said that it leads in a newer term".to_owned(),
        },
        Some(Some((region, took_ms))) => Found {
            is_met: took_ms <= within_ms,
            found: seconds(took_ms),
            wanted,
            note: if times == 1 {
                format!("{} leads", scenario.region(region))
            } else {
                format!("{} leads, the slowest of {times}", scenario.region(region))
            },
        },
    }
}

pub(super) fn same_leader(record: &Record) -> Found {
    let wanted = "one leader".to_owned();
    let mut terms: Vec<(u64, usize)> = record
        .samples
        .iter()
        .filter_map(|sample| {
            let seen = sample.seen.as_ref().filter(|seen| seen.leads)?;
            Some((seen.term, sample.region))
        })
        .collect();
    terms.sort_unstable();
    terms.dedup();
    if terms.is_empty() {
        return Found::nothing(wanted, "no region ever said that it leads");
    }
    let told: Vec<String> = terms.iter().map(|(term, _)| term.to_string()).collect();
    Found {
        is_met: terms.len() == 1,
        found: format!("{} leaders", terms.len()),
        wanted,
        note: format!("terms {}", told.join(", ")),
    }
}

/// Regions that had their link to the region of a step when it began, by their newest word before: others cannot notice
/// that it goes. All are linked when callers begin.
fn linked_before(scenario: &Scenario, record: &Record, done: &Done) -> Vec<usize> {
    let concerned: &[usize] = match action(scenario, done) {
        Some(Action::Cut { peers, .. }) => peers,
        _ => &[],
    };
    let is_linked = |region: &usize| {
        let mut before = record
            .samples
            .iter()
            .filter(|sample| sample.region == *region && sample.at_ms < done.began_ms);
        let newest = before.rfind(|sample| sample.seen.is_some());
        newest
            .and_then(|sample| sample.seen.as_ref())
            .is_none_or(|seen| seen.links.contains(&done.region))
    };
    (0..scenario.regions.len())
        .filter(|region| *region != done.region)
        .filter(|region| concerned.is_empty() || concerned.contains(region))
        .filter(is_linked)
        .collect()
}

/// How long after a step one of these regions no more had its link to the region; `None`: none said so while it lasted.
fn detected_after(record: &Record, done: &Done, linked: &[usize]) -> Option<u64> {
    record.samples.iter().find_map(|sample| {
        let seen = sample.seen.as_ref()?;
        let is_gone = linked.contains(&sample.region)
            && sample.at_ms >= done.began_ms
            && !seen.links.contains(&done.region);
        is_gone.then(|| sample.at_ms.saturating_sub(done.began_ms))
    })
}

pub(super) fn detected(scenario: &Scenario, record: &Record, within_ms: u64) -> Found {
    let wanted = format!("within {}", seconds(within_ms));
    let mut slowest = None;
    let mut seen = 0_u32;
    let silencing = record.steps.iter().filter(|done| {
        action(scenario, done).is_some_and(|action| match action {
            Action::Cut { direction, .. } => *direction != Direction::In,
            action => action.silences(),
        })
    });
    let mut unlinked = 0_u32;
    for done in silencing {
        let linked = linked_before(scenario, record, done);
        if linked.is_empty() {
            unlinked += 1;
            continue;
        }
        let Some(took) = detected_after(record, done, &linked) else {
            return Found {
                is_met: false,
                found: "never".to_owned(),
                wanted,
                note: format!(
                    "no region missed {} after {} ms of the drill",
                    scenario.region(done.region),
                    done.began_ms
                ),
            };
        };
        seen += 1;
        slowest = slowest.max(Some(took));
    }
    let Some(slowest) = slowest else {
        let why = if unlinked == 0 {
            "no step silenced a region"
        } else {
            "no region was linked with the one that a step silenced"
        };
        return Found::nothing(wanted, why);
    };
    Found {
        is_met: slowest <= within_ms,
        found: seconds(slowest),
        wanted,
        note: format!("the slowest of {seen}"),
    }
}

pub(super) fn healed(scenario: &Scenario, record: &Record, within_ms: u64) -> Found {
    let wanted = format!("within {}", seconds(within_ms));
    let since = record.steps_ended_ms();
    let unended = record.steps.iter().find(|done| done.ended_ms.is_none());
    if let Some(done) = unended {
        let step = scenario.steps.get(done.step);
        return Found {
            is_met: false,
            found: "never".to_owned(),
            wanted,
            note: step.map_or_else(String::new, |step| {
                format!(
                    "line {}: {} did not end",
                    step.line,
                    step.describe(scenario)
                )
            }),
        };
    }
    match record.well_from(since, scenario.regions.len()) {
        None => Found {
            is_met: false,
            found: "never".to_owned(),
            wanted,
            note: ill(scenario, record),
        },
        Some(at) => {
            let took = at - since;
            Found {
                is_met: took <= within_ms,
                found: seconds(took),
                wanted,
                note:
                    "every region ready, linked with all others, free of faults; nobody lent a hand"
                        .to_owned(),
            }
        }
    }
}

/// What was still wrong when the drill ended.
fn ill(scenario: &Scenario, record: &Record) -> String {
    let mut wrong = Vec::new();
    for region in 0..scenario.regions.len() {
        let last = record
            .samples
            .iter()
            .rfind(|sample| sample.region == region);
        let Some(last) = last else {
            wrong.push(format!("{} was never looked at", scenario.region(region)));
            continue;
        };
        if record.is_well(last, scenario.regions.len()) {
            continue;
        }
        let what = match &last.seen {
            None => "does not answer".to_owned(),
            Some(seen) => format!(
                "ready {}, draining {}, enrolled {}, leader known {}, store ok {}, {} faults, linked with {} regions",
                seen.is_ready,
                seen.is_draining,
                seen.is_enrolled,
                seen.leader.is_some(),
                seen.is_store_ok,
                seen.faults,
                seen.links.len()
            ),
        };
        wrong.push(format!("{}: {what}", scenario.region(region)));
    }
    wrong.join("; ")
}
