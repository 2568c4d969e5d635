//! Belonging to a cluster: founding, joining, enrolling, leading, and who should lead.
//!
//! - An empty region founds when all configured peers are empty too and its name sorts first; without peers
//!   at once. Otherwise it waits until it is added.
//! - The leader takes a region back whose directory was wiped or restored: the name is a member's, the voter
//!   id is new.
//! - Every process enrolls once; until then it is granted nothing.
//! - The leader hands over to the region that the operators prefer, once that one is up and caught up.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::mpsc;
use tokio::sync::watch;

use crate::consensus;
use crate::consensus::Consensus;
use crate::consensus::Member;
use crate::consensus::Unreachable;
use crate::consensus::Wire;
use crate::domain::time::Span;
use crate::grants::message::Pulse;
use crate::grants::message::ToLeader;
use crate::machine::command::Command;
use crate::peer::Handler;
use crate::peer::Identity;
use crate::peer::Peers;
use crate::peer::Service;
use crate::region::config::Config;
use crate::region::entropy;
use crate::region::exchange::tell;
use crate::region::links;
use crate::region::moves::Asked;
use crate::region::outbox::Letter;
use crate::region::outbox::Words;
use crate::region::proposals::WRITE_DEADLINE;
use crate::region::state::Region;

/// A region that starts waits so long for a leader that tells it what was committed.
const CAUGHT_UP_WITHIN: Duration = Duration::from_secs(1);
/// How often the leader looks after the members.
pub(super) const SURVEY_INTERVAL: Duration = Duration::from_secs(1);
/// How often a region tells the leader that it lives.
const PULSE_INTERVAL: Duration = Duration::from_millis(200);
/// A leader that has not heard a majority for so long does not speak as one. Another may have been elected by
/// then, no sooner.
const MAJORITY_WITHIN: Duration = Duration::from_millis(1_000);
/// The same, to a leader that has not answered yet.
const GREETING_INTERVAL: Duration = Duration::from_millis(20);
/// How long a new leader waits for its first entry.
const BEGIN_WITHIN: Span = Span::from_seconds(5);
/// How often waiting checks and the leader's rounds are looked at.
const TICK_INTERVAL: Duration = Duration::from_millis(5);
/// How often a region that wants to enroll looks whether its cluster has a name.
const ENROLL_STEP: Duration = Duration::from_millis(5);
/// How long one try to enroll may take.
const ENROLL_DEADLINE: Span = Span::from_seconds(5);
/// A leader that hands over waits so long to hear of its successor.
const SUCCESSOR_WITHIN: Duration = Duration::from_secs(1);
/// A region without peers founds its cluster in this time.
const FOUNDING: Span = Span::from_seconds(15);

/// The way of the log's messages: the links between regions.
pub struct Links(pub Peers);

impl Wire for Links {
    fn call(
        &self,
        to: &Member,
        message: Vec<u8>,
        deadline: Duration,
    ) -> BoxFuture<'static, Result<Vec<u8>, Unreachable>> {
        let deadline = Span::from_nanos_saturating(deadline.as_nanos());
        let called = self.0.call(
            &to.region,
            Service::Consensus,
            Bytes::from(message),
            deadline,
        );
        async move {
            called
                .await
                .map(|reply| reply.to_vec())
                .map_err(|error| Unreachable(error.to_string()))
        }
        .boxed()
    }
}

/// Takes what peers send. Holds the region weakly: the region holds the peers.
pub struct Served(pub std::sync::Weak<Region>);

impl Handler for Served {
    fn handle(
        &self,
        from: &Identity,
        service: Service,
        body: Bytes,
    ) -> Option<BoxFuture<'static, Bytes>> {
        let region = self.0.upgrade()?;
        match service {
            Service::Consensus => {
                let replied = region.consensus()?.receive(from.voter, body.to_vec());
                Some(replied.map(Bytes::from).boxed())
            }
            Service::Strict => {
                match postcard::from_bytes::<Words>(&body) {
                    Ok(Words::ToLeader(words)) => region.hear_regions(&from.region, words),
                    Ok(Words::ToRegion(words)) => region.hear_leader(&words),
                    Ok(Words::Progress(progress)) => region.hear_progress(progress),
                    Err(error) => {
                        tracing::warn!(region = %from.region, %error, "words that cannot be read");
                    }
                }
                None
            }
            Service::Forward => {
                let asked = postcard::from_bytes::<Asked>(&body).ok()?;
                Some(
                    async move {
                        let forwarded = region.serve_asked(asked, WRITE_DEADLINE).await;
                        Bytes::from(postcard::to_allocvec(&forwarded).unwrap_or_default())
                    }
                    .boxed(),
                )
            }
            Service::Usage => region.hear_usage(from, body),
        }
    }
}

/// The place of this region among the configured ones, by name: who stands for election first.
fn rank(config: &Config) -> usize {
    let before = |peer: &&crate::region::config::Peer| peer.region < config.region;
    config.peers.iter().filter(before).count()
}

/// Gives the region its links and its log, and lets it take part until `stopped` turns true. A region with
/// peers serves by what it has until it hears from them.
///
/// # Errors
/// When the log cannot be read.
pub async fn join(
    config: &Config,
    region: &Arc<Region>,
    letters: mpsc::Receiver<Letter>,
    stopped: &watch::Receiver<bool>,
) -> anyhow::Result<Peers> {
    let served = Arc::new(Served(Arc::downgrade(region)));
    let peers = links::start(region, config, served);
    let consensus = Consensus::start(
        region.store.clone(),
        region.store.identity().voter,
        config.region.clone(),
        consensus::Settings::ranked(rank(config)),
        Arc::new(Links(peers.clone())),
        Arc::clone(&region.replica) as Arc<dyn consensus::Machine>,
    )
    .await
    .context("the replicated log in log.db")?;
    region.set_consensus(consensus);
    if config.peers.len() == 1 {
        tracing::warn!(
            "a cluster of two regions: the loss of either stops strict limits and changes of the catalogue until it \
             is back; a third region prevents that"
        );
    }
    tokio::spawn(Arc::clone(region).deliver(letters));
    tokio::spawn(Arc::clone(region).take_part(stopped.clone()));
    Ok(peers)
}

/// Tells peers what is counted here until `stopped` turns true. To be called when the counts on disk were read: a peer
/// is told everything once for each process, and what comes into the ledger later without a charge is not news.
pub fn tell_peers(region: &Arc<Region>, stopped: &watch::Receiver<bool>) {
    let telling = tokio::spawn(tell::run(Arc::clone(region), stopped.clone()));
    tokio::spawn(async move {
        if let Err(error) = telling.await {
            tracing::error!(%error, "counts are not told to other regions any more: restart this region");
        }
    });
}

impl Region {
    /// Waits a moment until this process has enrolled, which it does behind all that was committed before its
    /// start. What a process that was killed went by may be further than what it had written down, of the entries
    /// and of how many of them are committed; the next one would serve by an older catalogue until somebody tells
    /// it more. A region that reaches nobody serves by what it has, and one that was in no cluster waits elsewhere.
    pub async fn wait_until_caught_up(&self) {
        if self.store.identity().cluster.is_none() {
            return;
        }
        let mut enrolled = self.enrolled.subscribe();
        let is_enrolled = enrolled.wait_for(|is_enrolled| *is_enrolled);
        if tokio::time::timeout(CAUGHT_UP_WITHIN, is_enrolled)
            .await
            .is_err()
        {
            tracing::info!("no leader is in reach: serving by the catalogue that is known here");
        }
    }

    /// Waits until this process has enrolled in its cluster: a region without peers founds one first.
    ///
    /// # Errors
    /// When that takes too long.
    pub async fn wait_until_enrolled(&self) -> anyhow::Result<()> {
        let mut enrolled = self.enrolled.subscribe();
        tokio::time::timeout(FOUNDING.to_std(), enrolled.wait_for(|enrolled| *enrolled))
            .await
            .context("no cluster of this region alone could be founded: see the log")??;
        Ok(())
    }

    /// Finds or founds the cluster, and does what belonging to it takes, until `stop` turns true.
    pub async fn take_part(self: Arc<Self>, mut stop: watch::Receiver<bool>) {
        let parts = [
            tokio::spawn(Arc::clone(&self).found_or_wait()),
            tokio::spawn(Arc::clone(&self).enroll()),
            tokio::spawn(Arc::clone(&self).follow_leadership()),
            tokio::spawn(Arc::clone(&self).look_after_members()),
            tokio::spawn(Arc::clone(&self).pulse()),
            tokio::spawn(Arc::clone(&self).tick()),
            tokio::spawn(Arc::clone(&self).follow_catalogue()),
        ];
        crate::region::timers::stopped(&mut stop).await;
        for part in parts {
            part.abort();
        }
    }

    fn self_as_member(&self) -> Member {
        Member {
            voter: self.store.identity().voter,
            region: self.name.clone(),
            url: self.peer_url.clone(),
        }
    }

    /// Whether this region's log has never had an entry.
    fn is_empty(&self) -> bool {
        self.consensus()
            .is_none_or(|consensus| consensus.status().last_log_index.is_none())
    }

    async fn found_or_wait(self: Arc<Self>) {
        let (Some(consensus), Some(peers)) = (self.consensus(), self.peers()) else {
            return;
        };
        let mut changed = peers.changed();
        let mut applied = consensus.applied();
        if self.is_empty() && !peers.regions().is_empty() {
            let wanted: Vec<String> = peers.regions().iter().map(ToString::to_string).collect();
            tracing::info!(
                peers = wanted.join(", "),
                "no cluster yet: one is founded when all peers are up and as empty; else this region waits to be taken in"
            );
        }
        while self.is_empty() {
            if let Some(members) = self.founders() {
                match consensus.found(members).await {
                    Ok(()) => {
                        self.found_machine().await;
                        break;
                    }
                    Err(error) => {
                        tracing::warn!(%error, "no cluster was founded; trying again");
                        tokio::time::sleep(SURVEY_INTERVAL).await;
                    }
                }
            }
            tokio::select! {
                _ = changed.changed() => {}
                _ = applied.changed() => {}
                () = tokio::time::sleep(SURVEY_INTERVAL) => {}
            }
        }
        // A founder may have died between its first entry and the one that names the cluster.
        loop {
            let named = self.replica.core().machine.cluster();
            if let Some(cluster) = named {
                self.join(cluster).await;
                return;
            }
            if consensus.leadership().borrow().is_ready {
                self.found_machine().await;
            }
            tokio::select! {
                _ = applied.changed() => {}
                () = tokio::time::sleep(SURVEY_INTERVAL) => {}
            }
        }
    }

    /// Notes which cluster this directory belongs to, and tells the peers.
    async fn join(&self, cluster: u64) {
        if let Err(error) = self.store.set_cluster(cluster).await {
            tracing::warn!(%error, "the cluster's id could not be kept; the next start asks again");
        }
        if let Some(peers) = self.peers() {
            peers.set_identity(|identity| {
                identity.cluster_id = Some(cluster);
                identity.is_empty = false;
            });
        }
    }

    /// Who would found a cluster now, if it is this region's turn.
    fn founders(&self) -> Option<Vec<Member>> {
        let mut members = vec![self.self_as_member()];
        for peer in self.peers()?.status() {
            let identity = peer.identity.filter(|_| peer.is_connected)?;
            if !identity.is_empty || peer.region < self.name {
                return None;
            }
            members.push(Member {
                voter: identity.voter,
                region: peer.region,
                url: peer.url,
            });
        }
        Some(members)
    }

    async fn found_machine(self: &Arc<Self>) {
        let adopted = self.adopted.lock().take();
        let command = Command::Found {
            cluster: entropy::bits64(),
            adopted,
        };
        if let Err(error) = self.propose(command, ENROLL_DEADLINE).await {
            tracing::warn!(%error, "the cluster has no name yet; trying again");
        }
    }

    /// Enrolls this process, and again when its region was let go and taken in again.
    async fn enroll(self: Arc<Self>) {
        let holder = self.reservations.holder();
        // The entry that names the cluster brings the catalogue that a directory had before.
        while self.replica.core().machine.cluster().is_none() {
            tokio::time::sleep(ENROLL_STEP).await;
        }
        loop {
            let command = Command::Enroll(holder.clone());
            match self.propose(command, ENROLL_DEADLINE).await {
                Ok(_) => {
                    self.caught_up.store(true, Ordering::Release);
                    self.enrolled.send_replace(true);
                    self.wait_until_departed().await;
                }
                Err(error) => {
                    tracing::debug!(%error, "not enrolled yet");
                    tokio::time::sleep(PULSE_INTERVAL).await;
                }
            }
        }
    }

    /// Ready when the book knows no process of this region and the region is a member.
    async fn wait_until_departed(&self) {
        loop {
            tokio::time::sleep(SURVEY_INTERVAL).await;
            let newest = self.replica.core().machine.book().newest(&self.name);
            let members = self.replica.members();
            let mut all = members.voters.iter().chain(&members.learners);
            if newest.is_none() && all.any(|member| member.region == self.name) {
                self.enrolled.send_replace(false);
                return;
            }
        }
    }

    async fn follow_leadership(self: Arc<Self>) {
        let Some(consensus) = self.consensus() else {
            return;
        };
        let mut leadership = consensus.leadership();
        loop {
            let seen = leadership.borrow_and_update().clone();
            if seen.is_self && seen.is_ready {
                if self.begin_to_lead(seen.term) {
                    tokio::spawn({
                        let region = Arc::clone(&self);
                        // Whatever becomes of it: another entry of the term does as well, only later.
                        async move { region.append_within(Command::Begin, BEGIN_WITHIN).await }
                    });
                }
            } else if !seen.is_self {
                self.end_to_lead();
            }
            if leadership.changed().await.is_err() {
                return;
            }
        }
    }

    async fn follow_catalogue(self: Arc<Self>) {
        let mut version = 0;
        let Some(consensus) = self.consensus() else {
            return;
        };
        let mut applied = consensus.applied();
        while applied.changed().await.is_ok() {
            let view = self.view_full();
            if view.version() == version {
                continue;
            }
            version = view.version();
            let mut effects = Vec::new();
            self.reservations
                .reconcile(&view, self.clock.now(), self.clock.boot(), &mut effects);
            self.carry_out(effects);
            self.requote();
        }
    }

    async fn pulse(self: Arc<Self>) {
        let Some(consensus) = self.consensus() else {
            return;
        };
        let mut leadership = consensus.leadership();
        loop {
            let seen = leadership.borrow_and_update().clone();
            // The sooner a new leader is heard, the sooner it is asked again for what checks wait for.
            let is_met = self.reservations.exchange().term() >= Some(seen.term);
            let pause = if is_met || seen.leader.is_none() {
                PULSE_INTERVAL
            } else {
                GREETING_INTERVAL
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                Ok(()) = leadership.changed() => {}
            }
            self.note_majority();
            let refill = self.reservations.exchange().measured_refill();
            self.outbox.to_leader(ToLeader::Pulse(Pulse {
                holder: self.reservations.holder().clone(),
                sent_boot: self.clock.boot(),
                refill: refill.unwrap_or(Span::ZERO),
                region_time: self.clock.now(),
            }));
        }
    }

    /// Notes whether a majority has been heard lately. A region that votes alone is one, however long ago it
    /// has last written.
    fn note_majority(&self) {
        let heard = self.consensus().is_none_or(|consensus| {
            let status = consensus.status();
            status.voters.len() <= 1
                || status
                    .since_majority
                    .is_none_or(|since| since <= MAJORITY_WITHIN)
        });
        self.has_majority.store(heard, Ordering::Relaxed);
        if heard {
            let boot = self.clock.boot().as_nanos();
            self.majority_noted.store(boot, Ordering::Relaxed);
        }
    }

    async fn tick(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(TICK_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.let_time_pass();
        }
    }

    /// What time brings for reservations and for the leader.
    pub fn let_time_pass(&self) {
        if self.clock.is_manual() {
            self.reservations.follow(self.clock.now());
        }
        let mut effects = Vec::new();
        self.reservations.tick(self.clock.boot(), &mut effects);
        self.carry_out(effects);
        self.tick_leader();
    }

    /// Before the process ends: hands the lead over and gives units back, so that nobody has to wait. In this order:
    /// what a leader was told of units that came back, and has not put into the log, is lost with the lead.
    pub async fn leave(&self) {
        if let (Some(consensus), Some(peers)) = (self.consensus(), self.peers())
            && consensus.leadership().borrow().is_self
            && let Some(target) = self.caught_up(consensus, peers, |_| true)
        {
            match consensus.transfer(target).await {
                Ok(()) => self.wait_for_another_leader(consensus).await,
                Err(error) => {
                    tracing::warn!(%error, "the lead could not be handed over; the others will elect");
                }
            }
        }
        self.give_back();
    }

    /// Gives back every unit that no check waits for. Repeated, it says so again: a leader that has just been elected
    /// may not have listened. Where this region leads itself, with nobody to hand over to, it goes into the log.
    pub fn give_back(&self) {
        let mut effects = Vec::new();
        self.reservations
            .give_back_all(self.clock.boot(), &mut effects);
        self.carry_out(effects);
        self.carry_all_told();
    }

    /// Waits a moment until this region knows who leads in its place.
    async fn wait_for_another_leader(&self, consensus: &Consensus) {
        let mut leadership = consensus.leadership();
        let another = leadership.wait_for(|now| now.leader.is_some() && !now.is_self);
        if tokio::time::timeout(SUCCESSOR_WITHIN, another)
            .await
            .is_err()
        {
            tracing::warn!("nobody is known to lead yet: units may be given back to nobody");
        }
    }
}
