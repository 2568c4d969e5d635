//! Log time: the clock that every entry of the log carries.
//!
//! Within a term it runs on the leader's boot clock and is slewed towards the median of the voters' region
//! times, by at most [`SLEW_PPM`]: it is never stepped and never falls, so no window is cut short or opened
//! twice by a clock that is set. A term begins at the later of the last log time and that median; the time
//! between is the [`LogTime::jump`], and a bucket earns nothing over it, since a clock that is ahead would
//! otherwise make units.
//!
//! The slew is so slow that a region may go by its own boot clock between two exchanges, if it allows for
//! twice as much drift.

use std::collections::BTreeMap;

use crate::domain::name::RegionName;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;

/// By how many millionths log time may run faster or slower than the boot clock.
pub const SLEW_PPM: u64 = 500;
/// A leader whose own clock is farther from the median than this should hand over.
pub const OFF_MEDIAN_MAX: Span = Span::from_ms(500);
/// What a voter told of its clock is used for this long.
pub const SAMPLE_KEPT: Span = Span::from_seconds(10);

const PPM: u128 = 1_000_000;

/// How log time follows the clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discipline {
    /// Runs on the boot clock and is slewed.
    Slewed,
    /// Is the leader's region time whenever that is ahead, and stands still otherwise: for regions whose
    /// clocks are set by hand.
    Follows,
}

/// One reading of the leader's clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The boot clock.
    pub boot: Span,
    /// The region time.
    pub region_time: Timestamp,
}

/// A voter's clock, as far as it is known.
#[derive(Clone, Copy, Debug)]
struct Sample {
    /// Region time less the leader's boot clock, in nanoseconds.
    ahead: i128,
    /// The boot clock then.
    at: Span,
}

/// The leader's clock of one term.
#[derive(Clone, Debug)]
pub struct LogTime {
    discipline: Discipline,
    own: RegionName,
    boot: Span,
    log: Timestamp,
    /// Slew that was earned and is less than a nanosecond, in millionths.
    slew_left: u128,
    jump: Span,
    voters: BTreeMap<RegionName, Option<Sample>>,
}

/// The middle one of some region times; of two, the earlier. `None` without any.
pub fn median(times: impl IntoIterator<Item = Timestamp>) -> Option<Timestamp> {
    let mut times: Vec<Timestamp> = times.into_iter().collect();
    times.sort_unstable();
    let middle = times.len().checked_sub(1)? / 2;
    times.get(middle).copied()
}

impl LogTime {
    /// The clock of a term that begins at `now` in region `own`. `last_log` is the latest log time that an
    /// entry carried, `voters` is what is known of the voters' region times, the own one aside.
    pub fn start(
        discipline: Discipline,
        own: RegionName,
        now: Reading,
        last_log: Timestamp,
        voters: &[(RegionName, Option<Timestamp>)],
    ) -> Self {
        let mut clock = Self {
            discipline,
            own,
            boot: now.boot,
            log: last_log,
            slew_left: 0,
            jump: Span::ZERO,
            voters: BTreeMap::new(),
        };
        clock.set_voters(voters.iter().map(|(voter, _)| voter.clone()));
        clock.tell(now.boot, &clock.own.clone(), now.region_time);
        for (voter, time) in voters {
            if let Some(time) = time
                && *voter != clock.own
            {
                clock.tell(now.boot, voter, *time);
            }
        }
        let begin = match discipline {
            Discipline::Slewed => clock.target(now.boot),
            Discipline::Follows => Some(now.region_time),
        };
        clock.log = last_log.max(begin.unwrap_or(now.region_time));
        clock.jump = clock.log.since(last_log);
        clock
    }

    /// How far log time went on when the term began. Buckets earn nothing over it.
    pub const fn jump(&self) -> Span {
        self.jump
    }

    /// Whose clocks count. What others told is forgotten.
    pub fn set_voters(&mut self, voters: impl IntoIterator<Item = RegionName>) {
        let mut kept = BTreeMap::new();
        for voter in voters {
            let sample = self.voters.get(&voter).copied().flatten();
            kept.insert(voter, sample);
        }
        self.voters = kept;
    }

    /// `voter`'s region time was `region_time` when the boot clock showed `boot`: a pulse's time and half a
    /// round trip. Those that do not vote are not heard.
    pub fn tell(&mut self, boot: Span, voter: &RegionName, region_time: Timestamp) {
        if let Some(sample) = self.voters.get_mut(voter) {
            let ahead = i128::from(region_time.as_nanos()) - i128::from(boot.as_nanos());
            *sample = Some(Sample { ahead, at: boot });
        }
    }

    fn fresh(&self, boot: Span) -> impl Iterator<Item = Timestamp> + '_ {
        let samples = self.voters.values().copied().flatten();
        samples
            .filter(move |sample| boot.minus(sample.at) <= SAMPLE_KEPT)
            .map(move |sample| time_of(sample, boot))
    }

    /// The median of the voters' region times by now; `None` when none told anything lately.
    pub fn target(&self, boot: Span) -> Option<Timestamp> {
        median(self.fresh(boot))
    }

    /// How far the leader's own region time is from the median, either way. Above [`OFF_MEDIAN_MAX`] another
    /// region should lead.
    pub fn off_median(&self, now: Reading) -> Span {
        let Some(target) = self.target(now.boot) else {
            return Span::ZERO;
        };
        now.region_time
            .since(target)
            .plus(target.since(now.region_time))
    }

    /// Voters whose clocks are near the median: those that may lead.
    pub fn near_median(&self, boot: Span) -> impl Iterator<Item = &RegionName> {
        let target = self.target(boot);
        self.voters.iter().filter_map(move |(voter, sample)| {
            let sample = sample.filter(|sample| boot.minus(sample.at) <= SAMPLE_KEPT)?;
            let (time, target) = (time_of(sample, boot), target?);
            let off = time.since(target).plus(target.since(time));
            (off <= OFF_MEDIAN_MAX).then_some(voter)
        })
    }

    /// Log time by now; never earlier than any told before.
    pub fn read(&mut self, now: Reading) -> Timestamp {
        self.tell(now.boot, &self.own.clone(), now.region_time);
        match self.discipline {
            Discipline::Follows => self.log = self.log.max(now.region_time),
            Discipline::Slewed => {
                let elapsed = now.boot.minus(self.boot);
                let earned = u128::from(elapsed.as_nanos()) * u128::from(SLEW_PPM) + self.slew_left;
                self.slew_left = earned % PPM;
                let allowed = Span::from_nanos_saturating(earned / PPM);
                let straight = self.log.plus(elapsed);
                let target = self.target(now.boot).unwrap_or(straight);
                let faster = target.since(straight).min(allowed);
                let slower = straight.since(target).min(allowed);
                self.log = straight.plus(faster).minus(slower).max(self.log);
            }
        }
        self.boot = self.boot.max(now.boot);
        self.log
    }
}

fn time_of(sample: Sample, boot: Span) -> Timestamp {
    let nanos = sample.ahead + i128::from(boot.as_nanos());
    let clamped = nanos.clamp(i128::from(i64::MIN), i128::from(i64::MAX));
    Timestamp::from_nanos(i64::try_from(clamped).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prop_assert;
    use proptest::proptest;

    use super::*;

    fn region(name: &str) -> RegionName {
        RegionName::new(name).expect("a region's name")
    }

    fn ms(ms: i64) -> Timestamp {
        Timestamp::from_unix_ms(ms)
    }

    fn reading(boot_ms: u64, region_ms: i64) -> Reading {
        Reading {
            boot: Span::from_ms(boot_ms),
            region_time: ms(region_ms),
        }
    }

    fn voters(b: Option<i64>, c: Option<i64>) -> Vec<(RegionName, Option<Timestamp>)> {
        vec![
            (region("a"), None),
            (region("b"), b.map(ms)),
            (region("c"), c.map(ms)),
        ]
    }

    fn slewed(now: Reading, last: i64, b: Option<i64>, c: Option<i64>) -> LogTime {
        let voters = voters(b, c);
        LogTime::start(Discipline::Slewed, region("a"), now, ms(last), &voters)
    }

    #[test]
    fn a_term_begins_at_the_median_or_the_last_log_time() {
        let now = reading(5, 90_000);
        let mut clock = slewed(now, 10_000, Some(20_000), Some(30_000));
        assert_eq!(clock.read(now), ms(30_000));
        assert_eq!(clock.jump(), Span::from_ms(20_000));
        assert_eq!(clock.off_median(now), Span::from_ms(60_000));
        let mut clock = slewed(now, 40_000, Some(20_000), Some(30_000));
        assert_eq!(clock.read(now), ms(40_000));
        assert_eq!(clock.jump(), Span::ZERO);
        let mut alone = slewed(now, 0, None, None);
        assert_eq!(alone.read(now), ms(90_000));
    }

    #[test]
    fn those_may_lead_whose_clocks_are_near_the_median() {
        let now = reading(0, 61_000);
        let clock = slewed(now, 0, Some(60_000), Some(59_000));
        let near: Vec<&RegionName> = clock.near_median(now.boot).collect();
        assert_eq!(near, [&region("b")]);
        let late = Span::from_seconds(60);
        assert_eq!(
            clock.near_median(late).count(),
            0,
            "nobody was heard lately"
        );
    }

    #[test]
    fn it_is_slewed_and_never_stepped() {
        // The others are a second ahead of where the term begins.
        let mut clock = slewed(reading(0, 1_000), 1_000, Some(1_000), Some(1_000));
        for voter in ["b", "c"] {
            clock.tell(Span::ZERO, &region(voter), ms(2_000));
        }
        let mut boot_ms = 0;
        let mut last = ms(1_000);
        while boot_ms < 8_000 {
            boot_ms += 1;
            let now = clock.read(reading(boot_ms, 1_000 + boot_ms as i64));
            let step = now.since(last).as_nanos();
            assert!((999_500..=1_000_500).contains(&step), "{step}");
            last = now;
        }
        // 500 ppm of 8 s, whole however small the steps were.
        assert_eq!(last.since(ms(9_000)), Span::from_ms(4));
        // A minute back and it runs slower, but on.
        for voter in ["b", "c"] {
            clock.tell(Span::from_ms(8_000), &region(voter), ms(-60_000));
        }
        let now = clock.read(reading(10_000, 11_000));
        assert_eq!(now.since(last), Span::from_ms(1_999));
    }

    #[test]
    fn old_samples_and_those_who_do_not_vote_are_not_heard() {
        let mut clock = slewed(reading(0, 0), 0, Some(500), Some(600));
        clock.tell(Span::ZERO, &region("z"), ms(99_000));
        assert_eq!(clock.target(Span::ZERO), Some(ms(500)));
        let now = reading(10_001, 10_001);
        clock.read(now);
        assert_eq!(clock.target(now.boot), Some(ms(10_001)));
        clock.set_voters([region("b")]);
        assert_eq!(clock.target(now.boot), None);
    }

    #[test]
    fn it_follows_a_clock_that_is_set_by_hand() {
        let mut clock = LogTime::start(
            Discipline::Follows,
            region("a"),
            reading(0, 5_000),
            ms(1_000),
            &voters(Some(90_000), None),
        );
        assert_eq!(clock.read(reading(700, 5_000)), ms(5_000));
        assert_eq!(clock.read(reading(701, 65_000)), ms(65_000));
        assert_eq!(clock.read(reading(702, 4_000)), ms(65_000));
    }

    proptest! {
        #[test]
        fn it_never_falls_and_never_runs_off(
            steps in vec((0_u64..5_000_000_000, -100_000_i64..100_000, 0_usize..3), 1..60),
        ) {
            let mut clock = slewed(reading(0, 0), 0, None, None);
            let (mut boot, mut last) = (Span::ZERO, Timestamp::EPOCH);
            for (nanos, told, voter) in steps {
                boot = boot.plus(Span::from_nanos(nanos));
                clock.tell(boot, &region(["a", "b", "c"][voter]), ms(told));
                let now = clock.read(Reading { boot, region_time: ms(told) });
                let slew = nanos / 2_000 + 1;
                let step = now.since(last).as_nanos();
                prop_assert!(now >= last && step + slew >= nanos && step <= nanos + slew);
                last = now;
            }
        }
    }
}
