//! Steps of a scenario file, and whether they can be done.

use serde::Deserialize;
use toml::Spanned;

use crate::domain::duration;

use super::super::FAULT_MS_MAX;
use super::super::step::Action;
use super::super::step::Direction;
use super::super::step::Step;
use super::super::step::Target;
use super::super::step::seconds;
use super::DELAY_MS_MAX;
use super::Owned;
use super::Reader;
use super::Text;

/// The shortest turn of a flapping link.
const FLAP_MS_MIN: u64 = 200;
/// The largest offset of a clock: a day.
const OFFSET_MS_MAX: i64 = 86_400_000;
/// A fault that begins so late has no time to be felt.
const FELT_MS: u64 = 200;

const ACTIONS: &str = "kill, stop, pause, wipe, backup, restore, cut, flap, slow, lose, clock, disk-full, disk-errors, \
                       transfer, drain, move";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawStep {
    at: Text,
    #[serde(rename = "do")]
    action: Text,
    on: Text,
    #[serde(rename = "for")]
    lasts: Option<Text>,
    peers: Option<Spanned<Vec<Text>>>,
    direction: Option<Text>,
    every: Option<Text>,
    delay: Option<Text>,
    jitter: Option<Text>,
    loss_percent: Option<Spanned<u8>>,
    offset_ms: Option<Spanned<i64>>,
    to: Option<Text>,
}

impl RawStep {
    /// Fields that only some actions have.
    fn fields(&self) -> [Owned; 7] {
        let at = |text: &Option<Text>| text.as_ref().map(Spanned::span);
        [
            (
                "peers",
                self.peers.as_ref().map(Spanned::span),
                &["cut", "flap", "slow", "lose"],
            ),
            ("direction", at(&self.direction), &["cut"]),
            ("every", at(&self.every), &["flap"]),
            ("delay", at(&self.delay), &["slow"]),
            ("jitter", at(&self.jitter), &["slow"]),
            (
                "loss_percent",
                self.loss_percent.as_ref().map(Spanned::span),
                &["lose"],
            ),
            (
                "offset_ms",
                self.offset_ms.as_ref().map(Spanned::span),
                &["clock"],
            ),
        ]
    }
}

impl Reader<'_> {
    pub(super) fn steps(&mut self, given: &[Spanned<RawStep>]) -> Vec<Step> {
        let mut steps: Vec<Step> = given.iter().filter_map(|raw| self.step(raw)).collect();
        steps.sort_by_key(|step| (step.at_ms, step.line));
        self.can_be_done(&steps);
        steps
    }

    fn step(&mut self, given: &Spanned<RawStep>) -> Option<Step> {
        let raw = given.get_ref();
        let at_ms = self.milliseconds("at", &raw.at);
        let target = self.target(&raw.on)?;
        let action = self.action(raw, target)?;
        for (field, at, owners) in raw.fields() {
            if let Some(at) = at
                && !owners.contains(&action.name())
            {
                self.fault(
                    &at,
                    format!("{field}: does not belong to {}", action.name()),
                );
            }
        }
        if action == Action::Transfer && target == Target::Leader {
            self.fault(&raw.on.span(), "on: the leader has the lead already");
        }
        if let Some(to) = &raw.to
            && !matches!(action, Action::Move { .. })
        {
            self.fault(
                &to.span(),
                format!("to: does not belong to {}", action.name()),
            );
        }
        let lasts_ms = match &raw.lasts {
            Some(text) if action.is_instant() => {
                self.fault(
                    &text.span(),
                    format!("for: {} is over at once", action.name()),
                );
                0
            }
            Some(text) => self.milliseconds("for", text),
            None if action.is_instant() => 0,
            None => {
                self.fault(
                    &given.span(),
                    format!("{}: say for how long, as in for = \"5s\"", action.name()),
                );
                return None;
            }
        };
        let step = Step {
            line: self.line(&given.span()),
            at_ms,
            lasts_ms,
            target,
            action,
        };
        self.fits_in(raw, &step);
        Some(step)
    }

    /// Whether the step lies in the drill's time, with time left to see what came of it.
    fn fits_in(&mut self, raw: &RawStep, step: &Step) {
        let duration_ms = self.duration_ms;
        if step.at_ms >= duration_ms {
            return self.fault(
                &raw.at.span(),
                format!("at: the drill lasts {}", seconds(duration_ms)),
            );
        }
        if step.ends_ms() > duration_ms {
            let at = raw.lasts.as_ref().map_or(raw.at.span(), Spanned::span);
            self.fault(
                &at,
                format!(
                    "for: ends at {}, after the drill's end at {}; every fault must end in time to see that it healed",
                    seconds(step.ends_ms()),
                    seconds(duration_ms)
                ),
            );
        }
        if step.lasts_ms > FAULT_MS_MAX {
            let at = raw.lasts.as_ref().map_or(raw.at.span(), Spanned::span);
            self.fault(&at, "for: at most 15m");
        }
        if !step.action.is_instant() && step.lasts_ms < FELT_MS {
            let at = raw.lasts.as_ref().map_or(raw.at.span(), Spanned::span);
            self.fault(&at, format!("for: at least {FELT_MS}ms"));
        }
    }

    fn target(&mut self, name: &Text) -> Option<Target> {
        match name.get_ref().as_str() {
            "leader" => Some(Target::Leader),
            "follower" => {
                if self.regions.len() < 2 {
                    self.fault(&name.span(), "on: one region alone follows nobody");
                }
                Some(Target::Follower)
            }
            _ => self.region("on", name).map(Target::Region),
        }
    }

    fn action(&mut self, raw: &RawStep, target: Target) -> Option<Action> {
        let peers = self.peers(raw, target);
        Some(match raw.action.get_ref().as_str() {
            "kill" => Action::Kill,
            "stop" => Action::Stop,
            "pause" => Action::Pause,
            "wipe" => Action::Wipe,
            "backup" => Action::Backup,
            "restore" => Action::Restore,
            "cut" => Action::Cut {
                peers,
                direction: self.direction(raw.direction.as_ref()),
            },
            "flap" => Action::Flap {
                peers,
                every_ms: self.turn(raw),
            },
            "slow" => self.slow(raw, peers),
            "lose" => self.lose(raw, peers),
            "clock" => self.clock(raw),
            "disk-full" => Action::DiskFull,
            "disk-errors" => Action::DiskErrors,
            "transfer" => Action::Transfer,
            "drain" => Action::Drain,
            "move" => self.moved(raw, target)?,
            other => {
                self.fault(
                    &raw.action.span(),
                    format!("do: {other:?} is not known; one of {ACTIONS}"),
                );
                return None;
            }
        })
    }

    fn peers(&mut self, raw: &RawStep, target: Target) -> Vec<usize> {
        let Some(given) = &raw.peers else {
            return Vec::new();
        };
        if given.get_ref().is_empty() {
            self.fault(
                &given.span(),
                "peers: name some, or leave it out for all others",
            );
        }
        let peers = self.regions_of("peers", Some(given.get_ref()));
        if let Target::Region(own) = target
            && peers.contains(&own)
        {
            self.fault(&given.span(), "peers: a region has no link to itself");
        }
        peers
    }

    fn direction(&mut self, text: Option<&Text>) -> Direction {
        let Some(text) = text else {
            return Direction::Both;
        };
        match text.get_ref().as_str() {
            "both" => Direction::Both,
            "in" => Direction::In,
            "out" => Direction::Out,
            _ => {
                self.fault(&text.span(), "direction: one of both, in, out");
                Direction::Both
            }
        }
    }

    fn turn(&mut self, raw: &RawStep) -> u64 {
        let Some(text) = &raw.every else {
            self.fault(
                &raw.action.span(),
                "flap: say how long each turn lasts, as in every = \"500ms\"",
            );
            return FLAP_MS_MIN;
        };
        let ms = self.milliseconds("every", text);
        if ms < FLAP_MS_MIN {
            self.fault(&text.span(), format!("every: at least {FLAP_MS_MIN}ms"));
        }
        ms.max(FLAP_MS_MIN)
    }

    fn slow(&mut self, raw: &RawStep, peers: Vec<usize>) -> Action {
        if raw.delay.is_none() {
            self.fault(
                &raw.action.span(),
                format!("slow: say by how much, as in delay = \"200ms\", at most {DELAY_MS_MAX}ms"),
            );
        }
        Action::Slow {
            peers,
            delay_ms: self.delay("delay", raw.delay.as_ref()),
            jitter_ms: self.delay("jitter", raw.jitter.as_ref()),
        }
    }

    fn lose(&mut self, raw: &RawStep, peers: Vec<usize>) -> Action {
        let loss_percent = self.loss("loss_percent", raw.loss_percent.as_ref());
        if loss_percent == 0 {
            self.fault(
                &raw.action.span(),
                "lose: say how many of a hundred messages, as in loss_percent = 20",
            );
        }
        Action::Lose {
            peers,
            loss_percent,
        }
    }

    fn clock(&mut self, raw: &RawStep) -> Action {
        let offset_ms = raw.offset_ms.as_ref().map_or(0, |offset| *offset.get_ref());
        if offset_ms == 0 || !(-OFFSET_MS_MAX..=OFFSET_MS_MAX).contains(&offset_ms) {
            self.fault(
                &raw.action.span(),
                "clock: say how far off, as in offset_ms = 1000; at most a day",
            );
        }
        Action::Clock { offset_ms }
    }

    fn moved(&mut self, raw: &RawStep, target: Target) -> Option<Action> {
        let Target::Region(from) = target else {
            self.fault(&raw.on.span(), "on: callers of a named region move");
            return None;
        };
        let Some(name) = &raw.to else {
            self.fault(
                &raw.action.span(),
                "move: say to which region, as in to = …",
            );
            return None;
        };
        let to = self.region("to", name)?;
        if to == from {
            self.fault(&name.span(), "to: another region than the one they leave");
        }
        Some(Action::Move { to })
    }

    /// Whether the steps, in the order of time, can be done one after the other.
    fn can_be_done(&mut self, steps: &[Step]) {
        for (index, step) in steps.iter().enumerate() {
            let before = steps.get(..index).unwrap_or_default();
            if step.action == Action::Restore
                && !before
                    .iter()
                    .any(|other| other.action == Action::Backup && other.target == step.target)
            {
                self.faults.push((
                    step.line,
                    "restore: no backup of this region was taken before".to_owned(),
                ));
            }
            for other in before {
                if other.target.may_be(step.target, other.at_ms == step.at_ms)
                    && other.ends_ms() > step.at_ms
                    && let Some(why) = clash(other, step)
                {
                    self.faults
                        .push((step.line, format!("{} (line {})", why, other.line)));
                }
            }
        }
    }
}

/// Why `later` cannot be done while `step` lasts in what may be the same region.
fn clash(step: &Step, later: &Step) -> Option<String> {
    let until = duration::format(crate::domain::time::Span::from_ms(step.ends_ms()));
    if step.action.is_of_process() {
        let is_needed = !matches!(later.action, Action::Move { .. });
        return is_needed.then(|| {
            format!(
                "{}: the region may not be running before {until}",
                later.action.name()
            )
        });
    }
    let is_same = step.action.name() == later.action.name();
    let is_once = matches!(
        later.action,
        Action::Drain | Action::Move { .. } | Action::Clock { .. }
    );
    if is_same && is_once {
        return Some(format!(
            "{}: the same is being done until {until}",
            later.action.name()
        ));
    }
    // A process that ends takes its injected faults with it: what was to last longer would not.
    (later.action.is_of_process() && step.action.is_fault()).then(|| {
        format!(
            "{}: would end {} before its time at {until}",
            later.action.name(),
            step.action.name()
        )
    })
}
