//! Carries out the steps of a scenario, each at its time, as `cli::drill::steps` does it with processes.

use std::collections::VecDeque;

use crate::drill::record::Done;
use crate::drill::scenario::Action;
use crate::drill::scenario::Step;
use crate::drill::scenario::Target;

use super::log;
use super::net::Fault;
use super::net::MS;
use super::process::Disk;
use super::process::Event;
use super::world::Happening;
use super::world::World;

/// How long a step that needs to know who leads waits for it, and how often it looks.
const LEADER_WITHIN: u64 = 10_000 * MS;
const LOOK_STEP: u64 = 50 * MS;
/// How long a hand-over is waited for.
const TRANSFER_WITHIN: u64 = 5_000 * MS;

/// A step that has begun.
pub struct Running {
    region: usize,
    /// Its place in the record.
    place: usize,
    state: State,
}

enum State {
    /// It is over then.
    Until(u64),
    /// A process is asked to end.
    Ends,
    /// A process was started again, and serves in a moment.
    Returns,
    /// A link flaps: until when, and the fault that is there now.
    Flaps { until: u64, cut: Option<u64> },
    /// A fault is there, until.
    Faulty { until: u64, fault: u64 },
    /// The lead is being handed over, until; whether the leader knows.
    HandsOver { until: u64, is_asked: bool },
}

impl World<'_> {
    /// A step begins, or goes on.
    pub(super) fn step(&mut self, number: usize) {
        let Some(step) = self.scenario.steps.get(number) else {
            return;
        };
        match self.running.remove(&number) {
            None => self.begin_step(number, step),
            Some(running) => self.go_on(number, step, running),
        }
    }

    fn again(&mut self, number: usize, running: Running, at: u64) {
        self.running.insert(number, running);
        self.schedule(at, Happening::Step(number));
    }

    fn ended(&mut self, place: usize) {
        let now_ms = self.now_ms();
        if let Some(done) = self.record.steps.get_mut(place) {
            done.ended_ms = Some(now_ms);
        }
    }

    /// Which region is meant; `None`: it is not known yet.
    fn target(&self, target: Target) -> Option<usize> {
        let leader = || {
            let newest = (0..self.places.len()).filter_map(|region| {
                let samples = &self.record.samples;
                samples.iter().rfind(|sample| sample.region == region)
            });
            let leading = newest.filter_map(|sample| {
                let seen = sample.seen.as_ref().filter(|seen| seen.leads)?;
                Some((seen.term, sample.region))
            });
            leading.max().map(|(_, region)| region)
        };
        match target {
            Target::Region(region) => Some(region),
            Target::Leader => leader(),
            Target::Follower => {
                let leader = leader()?;
                (0..self.places.len()).find(|region| *region != leader)
            }
        }
    }

    fn begin_step(&mut self, number: usize, step: &Step) {
        let Some(region) = self.target(step.target) else {
            let is_late = self.at > self.begins + step.at_ms * MS + LEADER_WITHIN;
            if is_late {
                self.error = Some(format!("line {}: no region leads", step.line));
            } else {
                self.schedule(self.at + LOOK_STEP, Happening::Step(number));
            }
            return;
        };
        let place = self.record.steps.len();
        self.record.steps.push(Done {
            step: number,
            region,
            began_ms: self.now_ms(),
            ended_ms: None,
        });
        let until = self.at + step.lasts_ms * MS;
        let is_up = self.process(region).is_some();
        let state = match &step.action {
            Action::Kill | Action::Wipe | Action::Restore | Action::Stop | Action::Pause
                if !is_up =>
            {
                let name = self.scenario.region(region);
                self.error = Some(format!("line {}: {name} does not run", step.line));
                return;
            }
            Action::Kill => {
                self.end(region);
                State::Until(until)
            }
            Action::Wipe => {
                self.end(region);
                self.replace_disk(region, None);
                State::Until(until)
            }
            Action::Restore => {
                self.end(region);
                let place = self.places.get_mut(region);
                let backup = place.and_then(|place| place.backup.take());
                if backup.is_none() {
                    let name = self.scenario.region(region);
                    self.error = Some(format!("line {}: {name} has no backup", step.line));
                    return;
                }
                self.replace_disk(region, backup);
                State::Until(until)
            }
            Action::Stop => {
                self.happen_to(region, Event::Leave);
                State::Ends
            }
            Action::Pause => {
                if let Some(place) = self.places.get_mut(region) {
                    place.held_back = Some(VecDeque::new());
                }
                State::Until(until)
            }
            Action::Backup => {
                if let Some(place) = self.places.get_mut(region) {
                    place.backup = Some(place.disk.clone());
                }
                self.ended(place);
                self.done += 1;
                return;
            }
            Action::Transfer => State::HandsOver {
                until: self.at + TRANSFER_WITHIN,
                is_asked: false,
            },
            Action::Drain => {
                self.drain(region, true);
                State::Until(until)
            }
            Action::Move { to } => {
                if let Some(route) = self.callers.routes.get_mut(region) {
                    *route = *to;
                }
                State::Until(until)
            }
            Action::Flap { .. } => State::Flaps { until, cut: None },
            action => {
                let action = action.clone();
                let fault = self.net.inject(Fault { region, action });
                State::Faulty { until, fault }
            }
        };
        let next = match state {
            State::Until(until) | State::Faulty { until, .. } => until,
            _ => self.at,
        };
        let running = Running {
            region,
            place,
            state,
        };
        self.again(number, running, next);
    }

    fn go_on(&mut self, number: usize, step: &Step, mut running: Running) {
        let region = running.region;
        match running.state {
            State::Ends if self.process(region).is_some() => {
                self.again(number, running, self.at + LOOK_STEP);
                return;
            }
            State::Ends => {
                let until = self.at + step.lasts_ms * MS;
                running.state = State::Until(until);
                self.again(number, running, until);
                return;
            }
            State::Until(_) => match &step.action {
                Action::Pause => self.thaw(region),
                Action::Drain => self.drain(region, false),
                Action::Move { .. } => {
                    if let Some(route) = self.callers.routes.get_mut(region) {
                        *route = region;
                    }
                }
                _ => {
                    self.start_soon(region);
                    self.ended(running.place);
                    running.state = State::Returns;
                    self.again(number, running, self.at + LOOK_STEP);
                    return;
                }
            },
            State::Returns => {
                let boot = self
                    .places
                    .get(region)
                    .map(|place| place.clock.boot(self.at));
                let process = self.process(region);
                let serves = process
                    .zip(boot)
                    .is_some_and(|(process, boot)| process.serves(boot));
                if !serves {
                    self.again(number, running, self.at + LOOK_STEP);
                    return;
                }
                self.done += 1;
                return;
            }
            State::Flaps { until, cut } => {
                if let Some(cut) = cut {
                    self.net.lift(cut);
                }
                if self.at < until {
                    let Action::Flap { every_ms, .. } = &step.action else {
                        return;
                    };
                    let is_cut = cut.is_none();
                    let cut = is_cut.then(|| {
                        let action = step.action.clone();
                        self.net.inject(Fault { region, action })
                    });
                    running.state = State::Flaps { until, cut };
                    let next = (self.at + every_ms * MS).min(until);
                    self.again(number, running, next);
                    return;
                }
            }
            State::Faulty { fault, .. } => self.net.lift(fault),
            State::HandsOver { until, is_asked } => {
                let leads = |region: usize| {
                    let process = self.process(region)?;
                    Some(process.leader()? == region)
                };
                if leads(region) != Some(true) && self.at < until {
                    if let (false, Some(leader)) = (is_asked, self.leader()) {
                        self.happen_to(leader, Event::HandOver(region));
                        let is_asked = true;
                        running.state = State::HandsOver { until, is_asked };
                    }
                    self.again(number, running, self.at + LOOK_STEP);
                    return;
                }
            }
        }
        self.ended(running.place);
        self.done += 1;
    }

    fn drain(&mut self, region: usize, is_draining: bool) {
        let place = self.places.get_mut(region);
        if let Some(process) = place.and_then(|place| place.process.as_mut()) {
            process.is_draining = is_draining;
        }
    }

    /// A frozen process goes on, and finds all that came meanwhile.
    fn thaw(&mut self, region: usize) {
        let place = self.places.get_mut(region);
        let held_back = place.and_then(|place| place.held_back.take());
        for event in held_back.into_iter().flatten() {
            self.happen_to(region, event);
        }
    }

    /// A directory is lost, and made anew from a backup or not at all: it is another voter, without a log.
    fn replace_disk(&mut self, region: usize, backup: Option<Disk>) {
        let voter = self.draws.draw();
        if let Some(place) = self.places.get_mut(region) {
            let log = log::Disk::empty(voter);
            place.disk = match backup {
                Some(backup) => Disk { log, ..backup },
                None => Disk::empty(log),
            };
        }
    }
}
