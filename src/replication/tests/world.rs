//! Regions made of plain maps, with a machine each, and links that lose, repeat, reorder and break.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use bytes::Bytes;

use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::domain::time::WindowId;
use crate::replication::sender::Action;
use crate::replication::sender::FLIGHTS_MAX;
use crate::replication::sender::FLYING_BYTES_MAX;
use crate::replication::sender::Ref;
use crate::replication::sender::Replication;
use crate::replication::sender::SendId;
use crate::replication::tests::actor;
use crate::replication::tests::region;
use crate::replication::wire::Frame;
use crate::replication::wire::FrameWriter;
use crate::replication::wire::Head;
use crate::replication::wire::Kind;
use crate::usage::actor::Actor;
use crate::usage::actor::ActorId;

/// The counts of a counter by process: (region, incarnation).
pub type Counts = BTreeMap<(usize, u64), u64>;
/// The counters of a region.
pub type Ledger = BTreeMap<u64, Counts>;

/// A region.
pub struct Region {
    pub incarnation: u64,
    pub ledger: Ledger,
    pub machine: Replication,
    pub round: u64,
    changed: BTreeSet<u64>,
    /// Of these all slots are told in the next round.
    whole: BTreeSet<u64>,
    /// What was gathered: round, counter, own count.
    gathered: Vec<(u64, u64, u64)>,
    /// What a crash would find.
    disk: Ledger,
    /// Per peer: the process that the link leads to.
    links: Vec<Option<u64>>,
    /// Per peer: the process that a link last led to.
    met: Vec<Option<u64>>,
    /// Actions that were not carried out yet.
    todo: Vec<Action>,
    /// Where the walk of (peer, pass) stands.
    walks: BTreeMap<(usize, u64), u64>,
}

/// A frame under way.
#[derive(Clone)]
struct Message {
    from: (usize, u64),
    to: (usize, u64),
    id: SendId,
    bytes: Bytes,
    /// The link that it is on still stands.
    on_link: bool,
}

/// A reply under way.
struct Answer {
    to: (usize, u64),
    from: usize,
    id: SendId,
    is_good: bool,
}

/// All regions.
pub struct World {
    pub regions: Vec<Region>,
    pub boot: Span,
    messages: Vec<Message>,
    answers: Vec<Answer>,
    incarnations: u64,
    /// Counters that died everywhere.
    dead: BTreeSet<u64>,
    /// Entries in a frame at most, so that rounds have parts.
    frame_entries_max: usize,
}

impl World {
    pub fn new(count: usize, frame_entries_max: usize) -> Self {
        let mut world = Self {
            regions: Vec::new(),
            boot: Span::from_ms(1),
            messages: Vec::new(),
            answers: Vec::new(),
            incarnations: 100,
            dead: BTreeSet::new(),
            frame_entries_max,
        };
        for number in 0..count {
            let region = world.started(number, Ledger::new(), count);
            world.regions.push(region);
        }
        world
    }

    fn started(&mut self, number: usize, ledger: Ledger, count: usize) -> Region {
        self.incarnations += 1;
        Region {
            incarnation: self.incarnations,
            disk: ledger.clone(),
            ledger,
            machine: Replication::new(actor(number, self.incarnations)),
            round: 0,
            changed: BTreeSet::new(),
            whole: BTreeSet::new(),
            gathered: Vec::new(),
            links: vec![None; count],
            met: vec![None; count],
            todo: Vec::new(),
            walks: BTreeMap::new(),
        }
    }

    fn is_live(&self, (number, incarnation): (usize, u64)) -> bool {
        self.regions[number].incarnation == incarnation
    }

    pub fn charge(&mut self, at: usize, counter: u64, units: u64) {
        if self.dead.contains(&counter) {
            return;
        }
        let region = &mut self.regions[at];
        let slot = (at, region.incarnation);
        *region
            .ledger
            .entry(counter)
            .or_default()
            .entry(slot)
            .or_default() += units;
        region.changed.insert(counter);
    }

    /// The counter's time is over, everywhere.
    pub fn bury(&mut self, counter: u64) {
        self.dead.insert(counter);
        for region in &mut self.regions {
            region.ledger.remove(&counter);
            region.disk.remove(&counter);
            region.changed.remove(&counter);
            region.gathered.retain(|(_, known, _)| *known != counter);
        }
    }

    pub fn save(&mut self, at: usize) {
        self.regions[at].disk = self.regions[at].ledger.clone();
    }

    /// Frames of counters; a round's have the own slot only, but for what was learnt of earlier processes.
    fn encode(
        &self,
        at: usize,
        kind: Kind,
        counters: impl Iterator<Item = u64>,
    ) -> Vec<(Bytes, Vec<Ref>)> {
        let region = &self.regions[at];
        let mut frames = Vec::new();
        let mut actors: Vec<Actor> = vec![actor(at, region.incarnation)];
        let mut writer = FrameWriter::new(ActorId(0));
        let mut refs = Vec::new();
        let mut counters = counters
            .filter(|counter| region.ledger.contains_key(counter))
            .peekable();
        if counters.peek().is_none() && kind != Kind::Round {
            return frames;
        }
        let number = |actors: &mut Vec<Actor>, wanted: Actor| {
            let at = actors.iter().position(|known| *known == wanted);
            let at = at.unwrap_or_else(|| {
                actors.push(wanted);
                actors.len() - 1
            });
            ActorId(u32::try_from(at).expect("few"))
        };
        while let Some(counter) = counters.next() {
            let key = counter.to_string();
            writer.begin_entry("api", "acme", &key, 1, Timestamp::MAX, false, None);
            writer.window(WindowId(0));
            for ((of, incarnation), p) in &region.ledger[&counter] {
                let is_own = (*of, *incarnation) == (at, region.incarnation);
                if kind != Kind::Round || is_own || region.whole.contains(&counter) {
                    let id = number(&mut actors, actor(*of, *incarnation));
                    writer.slot(id, *p, 0);
                }
            }
            writer.end_entry();
            refs.push(Ref(counter));
            if writer.entries() >= self.frame_entries_max && counters.peek().is_some() {
                let full = std::mem::replace(&mut writer, FrameWriter::new(ActorId(0)));
                let head = Head::single(kind, region.round);
                let bytes = full.finish(&head, |id| actors.get(id.0 as usize));
                frames.push((bytes, std::mem::take(&mut refs)));
            }
        }
        let head = Head::single(kind, region.round);
        let bytes = writer.finish(&head, |id| actors.get(id.0 as usize));
        frames.push((bytes, refs));
        frames
    }

    /// Gathers what changed, or gives a sign of life.
    pub fn gather(&mut self, at: usize) {
        let changed = std::mem::take(&mut self.regions[at].changed);
        self.regions[at].round += 1;
        let frames = self.encode(at, Kind::Round, changed.iter().copied());
        let boot = self.boot;
        let region = &mut self.regions[at];
        region.whole.clear();
        for counter in changed {
            let own = region
                .ledger
                .get(&counter)
                .and_then(|counts| counts.get(&(at, region.incarnation)));
            let own = own.copied().unwrap_or_default();
            region.gathered.push((region.round, counter, own));
        }
        let actions = region.machine.round(boot, region.round, frames);
        self.take(at, actions);
    }

    pub fn tick(&mut self, at: usize) {
        let actions = self.regions[at].machine.tick(self.boot);
        self.take(at, actions);
    }

    fn take(&mut self, at: usize, actions: Vec<Action>) {
        for action in &actions {
            let (Action::Send { peer, .. }
            | Action::Encode { peer, .. }
            | Action::Everything { peer, .. }) = action;
            let peer = self.number(peer);
            let region = &self.regions[at];
            assert!(
                region.links[peer].is_some(),
                "told something without a link"
            );
            let figures = region
                .machine
                .figures(&super::region(peer))
                .expect("a known peer");
            assert!(figures.in_flight <= FLIGHTS_MAX);
            assert!(figures.flying_bytes <= FLYING_BYTES_MAX);
        }
        // A send cannot be put off: its link may be another one later.
        let (sends, others): (Vec<Action>, Vec<Action>) = actions
            .into_iter()
            .partition(|action| matches!(action, Action::Send { .. }));
        for send in sends {
            self.carry_out(at, send);
        }
        self.regions[at].todo.extend(others);
    }

    fn number(&self, name: &crate::domain::name::RegionName) -> usize {
        (0..self.regions.len())
            .find(|number| region(*number) == *name)
            .expect("a known region")
    }

    /// Carries out an action that waits.
    pub fn act(&mut self, at: usize, which: usize) {
        if self.regions[at].todo.is_empty() {
            return;
        }
        let which = which % self.regions[at].todo.len();
        let action = self.regions[at].todo.swap_remove(which);
        self.carry_out(at, action);
    }

    fn carry_out(&mut self, at: usize, action: Action) {
        let boot = self.boot;
        match action {
            Action::Send { peer, id, bytes } => {
                let to = self.number(&peer);
                let process = self.regions[at].links[to].expect("a link");
                self.messages.push(Message {
                    from: (at, self.regions[at].incarnation),
                    to: (to, process),
                    id,
                    bytes,
                    on_link: true,
                });
            }
            Action::Encode { peer, id, refs } => {
                let frames = self.encode(at, Kind::Backlog, refs.into_iter().map(|r| r.0));
                let machine = &mut self.regions[at].machine;
                let actions = machine.encoded(&peer, id, frames, boot);
                self.take(at, actions);
            }
            Action::Everything { peer, pass } => {
                let to = self.number(&peer);
                let region = &mut self.regions[at];
                let from = region.walks.entry((to, pass)).or_default();
                let step: Vec<u64> = region
                    .ledger
                    .range(*from..)
                    .take(3)
                    .map(|(counter, _)| *counter)
                    .collect();
                let is_last = step.len() < 3;
                *from = step.last().map_or(*from, |last| last + 1);
                let refs = step.into_iter().map(Ref);
                let actions = region.machine.mark_all(&peer, pass, refs, is_last, boot);
                self.take(at, actions);
            }
        }
    }

    fn merge(&mut self, at: usize, bytes: &[u8]) {
        let frame = Frame::read(bytes).expect("a frame");
        let actors: Vec<(usize, u64)> = frame
            .actors()
            .map(|named| {
                let name = crate::domain::name::RegionName::new(named.region).expect("a name");
                (self.number(&name), named.incarnation)
            })
            .collect();
        if frame.head().kind == Kind::Everything {
            let (from, incarnation) = actors[0];
            let machine = &mut self.regions[at].machine;
            machine.told_everything(&region(from), incarnation, self.boot);
        }
        for entry in frame.entries() {
            let counter: u64 = entry.key.parse().expect("a number");
            if self.dead.contains(&counter) {
                continue;
            }
            let here = &mut self.regions[at];
            for slot in entry.windows().flat_map(|window| window.slots()) {
                let who = actors[slot.actor as usize];
                let counts = here.ledger.entry(counter).or_default();
                let known = counts.entry(who).or_default();
                // What is learnt of a process that is no more, nobody else may be left to tell.
                let newer = if who.0 == at {
                    Some(here.incarnation)
                } else {
                    here.met[who.0]
                };
                if slot.p > *known && newer.is_some_and(|newer| newer != who.1) {
                    here.changed.insert(counter);
                    here.whole.insert(counter);
                }
                *known = slot.p.max(*known);
            }
        }
    }

    /// A message arrives, `keep`: and will arrive again; `fails`: its reply will not.
    pub fn deliver(&mut self, which: usize, keep: bool, fails: bool) {
        if self.messages.is_empty() {
            return;
        }
        let which = which % self.messages.len();
        let message = if keep {
            self.messages[which].clone()
        } else {
            self.messages.remove(which)
        };
        if self.is_live(message.to) {
            self.merge(message.to.0, &message.bytes);
            self.answers.push(Answer {
                to: message.from,
                from: message.to.0,
                id: message.id,
                is_good: !fails,
            });
        }
    }

    /// A message is lost, and its sender told so at some time.
    pub fn lose(&mut self, which: usize) {
        if self.messages.is_empty() {
            return;
        }
        let which = which % self.messages.len();
        let message = self.messages.remove(which);
        self.answers.push(Answer {
            to: message.from,
            from: message.to.0,
            id: message.id,
            is_good: false,
        });
    }

    /// A reply arrives.
    pub fn answer(&mut self, which: usize) {
        if self.answers.is_empty() {
            return;
        }
        let which = which % self.answers.len();
        let answer = self.answers.remove(which);
        if !self.is_live(answer.to) {
            return;
        }
        let (boot, peer) = (self.boot, region(answer.from));
        let machine = &mut self.regions[answer.to.0].machine;
        let actions = if answer.is_good {
            machine.replied(&peer, answer.id, boot)
        } else {
            machine.failed(&peer, answer.id, boot)
        };
        self.take(answer.to.0, actions);
    }

    /// A link comes up, to whatever process runs there now.
    pub fn connect(&mut self, from: usize, to: usize) {
        let process = self.regions[to].incarnation;
        if from == to || self.regions[from].links[to] == Some(process) {
            return;
        }
        self.leave(from, to);
        // A region takes nothing from a process any more once it has met the one after it.
        self.messages.retain(|message| {
            message.to.0 != from || message.from.0 != to || message.from.1 == process
        });
        let boot = self.boot;
        let region = &mut self.regions[from];
        region.links[to] = Some(process);
        region.met[to] = Some(process);
        let actions = region
            .machine
            .peer_connected(&super::region(to), process, boot);
        self.take(from, actions);
    }

    /// Messages of a link that is no more may still arrive; their replies are about nothing then.
    fn leave(&mut self, from: usize, to: usize) {
        for message in &mut self.messages {
            if message.from.0 == from && message.to.0 == to {
                message.on_link = false;
            }
        }
        self.regions[from].todo.retain(|action| {
            let (Action::Send { peer, .. }
            | Action::Encode { peer, .. }
            | Action::Everything { peer, .. }) = action;
            *peer != super::region(to)
        });
    }

    pub fn disconnect(&mut self, from: usize, to: usize) {
        if from == to || self.regions[from].links[to].take().is_none() {
            return;
        }
        self.leave(from, to);
        self.regions[from].machine.peer_lost(&region(to));
    }

    /// A region starts again from its disk.
    pub fn restart(&mut self, at: usize) {
        let disk = std::mem::take(&mut self.regions[at].disk);
        let count = self.regions.len();
        self.regions[at] = self.started(at, disk, count);
    }

    /// No peer is said to have acknowledged what its process does not have.
    pub fn check(&self) {
        for (at, region) in self.regions.iter().enumerate() {
            for (to, peer) in self.regions.iter().enumerate() {
                if region.links[to] != Some(peer.incarnation) {
                    continue;
                }
                let acked = region.machine.acked_round(&super::region(to));
                assert!(acked <= region.round);
                for (round, counter, own) in &region.gathered {
                    if *round > acked {
                        continue;
                    }
                    let slot = (at, region.incarnation);
                    let merged = peer.ledger.get(counter).and_then(|known| known.get(&slot));
                    let merged = merged.copied().unwrap_or_default();
                    assert!(
                        merged >= *own,
                        "{at} says that {to} acknowledged round {acked}; of counter {counter} it has \
                         {merged} of {own} gathered in round {round}"
                    );
                }
            }
        }
    }

    /// Everything works from now on; after `rounds` rounds all know all.
    pub fn settle(&mut self, rounds: usize) {
        let count = self.regions.len();
        for _ in 0..rounds {
            for at in 0..count {
                for to in 0..count {
                    self.connect(at, to);
                }
            }
            self.boot = self.boot.plus(Span::from_ms(100));
            for at in 0..count {
                self.gather(at);
                self.tick(at);
            }
            while self.regions.iter().any(|region| !region.todo.is_empty())
                || !self.messages.is_empty()
                || !self.answers.is_empty()
            {
                for at in 0..count {
                    self.act(at, 0);
                }
                self.deliver(0, false, false);
                self.answer(0);
                self.check();
            }
        }
        for at in 0..count {
            assert_eq!(
                self.regions[at].ledger, self.regions[0].ledger,
                "region {at} differs"
            );
            for to in (0..count).filter(|to| *to != at) {
                let (machine, to) = (&self.regions[at].machine, region(to));
                assert_eq!(machine.acked_round(&to), self.regions[at].round);
                assert_eq!(machine.backlog_len(&to), 0);
                assert_eq!(machine.lag(&to, self.boot), Span::ZERO);
                assert!(machine.is_caught_up(&to));
                assert_eq!(machine.figures(&to).expect("known").in_flight, 0);
            }
        }
    }

    /// Messages whose link broke never arrive.
    pub fn forget_ghosts(&mut self) {
        self.messages.retain(|message| message.on_link);
    }
}
