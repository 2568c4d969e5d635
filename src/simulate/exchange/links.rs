//! Links to peers: pings in both directions, and what they measure.

use crate::domain::time::Span;

use super::At;
use super::Body;
use super::Exchange;
use super::Limits;
use super::Outbox;
use super::PING_TICKS;
use super::SILENCE_MAX;

/// What is known of a peer's process.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Link {
    pub(super) met: u64,
    pub(super) heard: Option<Span>,
    pub(super) hears_us: bool,
    pub(super) is_up: bool,
    /// When its last ping was sent, by its boot clock, and when it came.
    ping: Option<(Span, Span)>,
    /// The round trip, once it is measured.
    round_trip: Option<Span>,
    /// How far its clock is ahead, in nanoseconds.
    ahead: Option<i64>,
}

impl Exchange {
    pub(super) fn follow_links(&mut self, at: At, limits: &impl Limits, out: &mut Outbox) {
        for peer in 0..self.links.len() {
            let link = self.links[peer];
            let hears = link
                .heard
                .is_some_and(|heard| at.boot.minus(heard) < SILENCE_MAX);
            if link.is_up && !hears {
                self.lose_link(at, limits, peer, out);
                self.links[peer].hears_us = false;
            }
            if peer != self.index && self.ticks % PING_TICKS == 1 {
                let hears = hears.then_some(link.met);
                let echo = link.ping.map(|(sent, came)| (sent, at.boot.minus(came)));
                let ping = Body::Ping {
                    hears,
                    sent: at,
                    echo,
                };
                out.push((peer, self.message(ping)));
            }
        }
    }

    pub(super) fn lose_link(
        &mut self,
        at: At,
        limits: &impl Limits,
        peer: usize,
        out: &mut Outbox,
    ) {
        self.links[peer].is_up = false;
        let name = self.names[peer].clone();
        self.machine.peer_lost(&name);
        self.turns.end(&name);
        let broken = self.calls.iter().filter(|(_, call)| call.peer == peer);
        for id in broken.map(|(id, _)| *id).collect::<Vec<u64>>() {
            self.settle(at, limits, id, None, out);
        }
    }

    pub(super) fn connect(&mut self, at: At, limits: &impl Limits, peer: usize, out: &mut Outbox) {
        self.links[peer].is_up = true;
        let name = self.names[peer].clone();
        self.turns.begin(&name, at.boot);
        let met = self.links[peer].met;
        let actions = self.machine.peer_connected(&name, met, at.boot);
        self.act(at, limits, actions, out);
    }

    pub(super) fn measure(&mut self, at: At, from: usize, sent: At, echo: Option<(Span, Span)>) {
        let link = &mut self.links[from];
        link.ping = Some((sent.boot, at.boot));
        if !self.measures {
            return;
        }
        if let Some((sent_here, kept)) = echo {
            let round_trip = at.boot.minus(sent_here).minus(kept);
            link.round_trip = Some(round_trip);
            let half = Span::from_nanos(round_trip.as_nanos() / 2);
            let there = sent.now.plus(half).as_nanos();
            link.ahead = Some(there.saturating_sub(at.now.as_nanos()));
        }
    }

    /// How long a message to a peer takes.
    pub(super) fn latency(&self, peer: usize) -> Span {
        match self.links[peer].round_trip {
            Some(round_trip) => Span::from_nanos(round_trip.as_nanos() / 2),
            None => self.latencies[peer],
        }
    }

    /// The way to a peer and back, once it is measured.
    pub fn round_trip(&self, peer: usize) -> Option<Span> {
        self.links[peer].round_trip
    }

    /// How far the clock of a peer is ahead, in nanoseconds, once it is measured.
    pub fn ahead(&self, peer: usize) -> Option<i64> {
        self.links[peer].ahead
    }

    /// The process of a peer that a link is up to.
    pub fn linked(&self, peer: usize) -> Option<u64> {
        self.links[peer].is_up.then_some(self.links[peer].met)
    }
}
