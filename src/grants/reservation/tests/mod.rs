//! A reservation against a leader that is played by the test.

mod asking;
mod buckets;
mod laws;
mod waiting;
mod windows;

use crate::domain::name::LimitName;
use crate::domain::name::RegionName;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::domain::time::Window;
use crate::grants::account::Account;
use crate::grants::account::Holder;
use crate::grants::account::PoolStanding;
use crate::grants::exchange::Exchange;
use crate::grants::message::Answer;
use crate::grants::message::Ask;
use crate::grants::message::Dry;
use crate::grants::message::LogStamp;
use crate::grants::message::Recall;
use crate::grants::message::Report;
use crate::grants::message::ToLeader;
use crate::grants::reservation::Effect;
use crate::grants::reservation::Now;
use crate::grants::reservation::Reservation;
use crate::grants::reservation::Spend;
use crate::grants::reservation::Ticket;
use crate::grants::reservation::Times;
use crate::grants::reservation::Verdict;

/// Half of the round trip that the leader's answers seem to take.
const HALF_TRIP: Span = Span::from_ms(10);

fn account() -> Account {
    Account {
        tenant: "acme".into(),
        limit: LimitName::new("exports").expect("a name"),
        key: "".into(),
        epoch: 7,
    }
}

fn holder() -> Holder {
    Holder {
        region: RegionName::new("eu").expect("a name"),
        incarnation: 11,
    }
}

/// A reservation, its exchange, and what it did. Log time is boot time here.
struct Scene {
    reservation: Reservation,
    exchange: Exchange,
    boot: Span,
    length: Span,
    out: Vec<Effect>,
}

impl Scene {
    /// Windows of `length_ms`, and a leader that was heard 20 ms ago.
    fn new(quota: u64, length_ms: u64) -> Self {
        let mut scene = Self::silent(quota, length_ms);
        scene.hear_clock();
        scene
    }

    /// No leader was ever heard.
    fn silent(quota: u64, length_ms: u64) -> Self {
        let boot = Span::from_ms(1_000);
        let length = Span::from_ms(length_ms);
        Self {
            reservation: Reservation::new(account(), holder(), quota, length, boot),
            exchange: Exchange::new(),
            boot,
            length,
            out: Vec::new(),
        }
    }

    fn log_time(&self) -> Timestamp {
        Timestamp::from_nanos(i64::try_from(self.boot.as_nanos()).expect("a small time"))
    }

    fn window(&self) -> Window {
        Window::aligned(self.log_time(), self.length)
    }

    fn stamp(&self, echo: Option<Span>) -> LogStamp {
        LogStamp {
            lease: None,
            term: 1,
            log_time: self
                .log_time()
                .minus(HALF_TRIP.min(self.boot.minus(echo.unwrap_or_default()))),
            echo,
        }
    }

    fn hear_clock(&mut self) {
        let sent = self.boot.minus(HALF_TRIP).minus(HALF_TRIP);
        let stamp = self.stamp(Some(sent));
        self.exchange.heard(&stamp, self.boot);
    }

    fn with<T>(
        &mut self,
        act: impl FnOnce(&mut Reservation, &Now<'_>, &mut Vec<Effect>) -> T,
    ) -> T {
        let now = Now {
            boot: self.boot,
            exchange: &self.exchange,
        };
        act(&mut self.reservation, &now, &mut self.out)
    }

    /// Time passes, and the reservation is ticked whenever it wants to be.
    fn pass(&mut self, ms: u64) {
        let until = self.boot.plus(Span::from_ms(ms));
        while self.reservation.due() <= until {
            self.boot = self.boot.max(self.reservation.due());
            let before = self.boot;
            self.with(Reservation::tick);
            assert!(
                self.reservation.due() > before,
                "a tick that changes nothing"
            );
        }
        self.boot = until;
    }

    /// A check of `units` that does not wait; whether it passed.
    fn spend(&mut self, units: u64) -> bool {
        self.with(|reservation, now, out| {
            if reservation.can_spend(units, None, now) != Spend::Ready {
                return false;
            }
            let spent = reservation.spend(units, None, now);
            assert!(spent.is_some(), "ready, and yet not here");
            reservation.after_spend(now, out);
            true
        })
    }

    fn wait(&mut self, ticket: u64, units: u64, ms: u64) {
        let deadline = self.boot.plus(Span::from_ms(ms));
        self.with(|reservation, now, out| {
            let times = Times {
                came: now.boot,
                deadline,
            };
            reservation.wait(Ticket(ticket), units, times, now, out);
        });
    }

    /// Everybody who was woken spends `units`.
    fn retry_all(&mut self, units: u64) {
        for (ticket, verdict) in self.verdicts() {
            assert_eq!(verdict, Verdict::Retry);
            let ticket = Ticket(ticket);
            self.with(|reservation, now, out| {
                assert!(reservation.spend(units, Some(ticket), now).is_some());
                reservation.done(ticket, now, out);
                reservation.after_spend(now, out);
            });
        }
    }

    fn granted(&mut self, granted: u64, dry: Option<Dry>, echo: Option<Span>) -> Option<Span> {
        let answer = self.answer_of(self.window(), granted, dry, echo);
        self.hear(&answer)
    }

    fn answer_of(
        &self,
        window: Window,
        granted: u64,
        dry: Option<Dry>,
        echo: Option<Span>,
    ) -> Answer {
        Answer {
            lapsed_to: 0,
            holder: holder(),
            account: account(),
            window,
            granted,
            dry,
            standing: PoolStanding {
                quota: 1_000,
                free: 500,
                ..PoolStanding::default()
            },
            stamp: self.stamp(echo),
        }
    }

    fn hear(&mut self, answer: &Answer) -> Option<Span> {
        self.exchange.heard(&answer.stamp, self.boot);
        self.with(|reservation, now, out| reservation.answer(answer, now, out))
    }

    fn recall(&mut self) -> Report {
        self.out.clear();
        let recall = Recall {
            holder: holder(),
            account: account(),
            window: self.window().id,
            round: 4,
        };
        self.with(|reservation, now, out| reservation.recall(&recall, now, out));
        self.reports().pop().expect("a recall is answered")
    }

    fn held(&mut self) -> u64 {
        self.with(|reservation, now, _| reservation.held(now))
    }

    /// What was asked since the last look.
    fn asks(&mut self) -> Vec<Ask> {
        let mut asks = Vec::new();
        self.out.retain(|effect| match effect {
            Effect::Send(ToLeader::Ask(ask)) => {
                asks.push(ask.clone());
                false
            }
            _ => true,
        });
        asks
    }

    /// What was reported since the last look.
    fn reports(&mut self) -> Vec<Report> {
        let mut reports = Vec::new();
        self.out.retain(|effect| match effect {
            Effect::Send(ToLeader::Report(report)) => {
                reports.push(report.clone());
                false
            }
            _ => true,
        });
        reports
    }

    /// Who was told what since the last look.
    fn verdicts(&mut self) -> Vec<(u64, Verdict)> {
        let mut verdicts = Vec::new();
        self.out.retain(|effect| match effect {
            Effect::Wake(Ticket(ticket), verdict) => {
                verdicts.push((*ticket, *verdict));
                false
            }
            Effect::Send(_) => true,
        });
        verdicts
    }
}

fn dry(ms: u64, recalling: bool) -> Option<Dry> {
    Some(Dry {
        lasts: Span::from_ms(ms),
        recalling,
    })
}
