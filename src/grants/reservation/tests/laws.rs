//! Laws under arbitrary messages: nothing is minted, nothing is used outside its window, everybody has a
//! verdict in time.

use std::collections::BTreeMap;

use proptest::prelude::ProptestConfig;
use proptest::prelude::Strategy;
use proptest::prelude::any;
use proptest::prop_oneof;
use proptest::proptest;

use super::*;
use crate::domain::time::WindowId;
use crate::grants::account::Totals;
use crate::grants::message::Refused;
use crate::grants::message::Why;

#[derive(Clone, Debug)]
enum Step {
    Pass(u64),
    Check(u64),
    Wait(u64, u64),
    Retry,
    Leave,
    /// The leader grants up to what the chosen ask wants, and answers.
    Grant(usize, u64, u8),
    /// An answer of some time ago arrives again.
    Again(usize),
    Recall(usize),
    Refuse(usize, u8),
    Charge(u64),
    Clock,
    Term,
    GiveBack,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0_u64..400).prop_map(Step::Pass),
        1 => (400_u64..6_000).prop_map(Step::Pass),
        6 => (0_u64..4).prop_map(Step::Check),
        6 => ((1_u64..6), (0_u64..700)).prop_map(|(units, ms)| Step::Wait(units, ms)),
        4 => (0_u8..1).prop_map(|_| Step::Retry),
        1 => (0_u8..1).prop_map(|_| Step::Leave),
        8 => (any::<usize>(), 0_u64..20, 0_u8..6).prop_map(|(at, more, dry)| Step::Grant(at, more, dry)),
        4 => any::<usize>().prop_map(Step::Again),
        2 => any::<usize>().prop_map(Step::Recall),
        1 => (any::<usize>(), 0_u8..3).prop_map(|(at, why)| Step::Refuse(at, why)),
        1 => (0_u64..5).prop_map(Step::Charge),
        2 => (0_u8..1).prop_map(|_| Step::Clock),
        1 => (0_u8..1).prop_map(|_| Step::Term),
        1 => (0_u8..1).prop_map(|_| Step::GiveBack),
    ];
    proptest::collection::vec(step, 1..120)
}

/// The leader's side: what was granted, and everything that was ever said.
#[derive(Default)]
struct Bank {
    granted: BTreeMap<WindowId, u64>,
    said: Vec<Answer>,
    asks: Vec<Ask>,
    told: BTreeMap<WindowId, Totals>,
    spent: BTreeMap<WindowId, u64>,
    waiting: BTreeMap<u64, Span>,
    next_ticket: u64,
    term: u64,
}

fn step(scene: &mut Scene, bank: &mut Bank, step: &Step) {
    match *step {
        Step::Pass(ms) => {
            let until = scene.boot.plus(Span::from_ms(ms));
            while scene.reservation.due() <= until {
                scene.boot = scene.boot.max(scene.reservation.due());
                scene.with(Reservation::tick);
                collect(scene, bank);
                assert_in_time(scene, bank);
            }
            scene.boot = until;
        }
        Step::Check(units) => {
            let spent =
                scene.with(
                    |reservation, now, out| match reservation.can_spend(units, None, now) {
                        Spend::Ready => {
                            let window = reservation.spend(units, None, now);
                            assert!(window.is_some() || units == 0);
                            reservation.after_spend(now, out);
                            window
                        }
                        Spend::Dry { .. } => {
                            reservation.refuse(units, now, out);
                            None
                        }
                        Spend::Short => None,
                    },
                );
            note_spent(scene, bank, spent, units);
        }
        Step::Wait(units, ms) => {
            bank.next_ticket += 1;
            bank.waiting
                .insert(bank.next_ticket, scene.boot.plus(Span::from_ms(ms)));
            scene.wait(bank.next_ticket, units, ms);
        }
        Step::Retry => retry(scene, bank),
        Step::Leave => {
            if let Some(ticket) = bank.waiting.keys().next_back().copied() {
                bank.waiting.remove(&ticket);
                scene.with(|reservation, now, out| reservation.done(Ticket(ticket), now, out));
            }
        }
        Step::Grant(at, more, word) => grant(scene, bank, at, more, word),
        Step::Again(at) => {
            if !bank.said.is_empty() {
                let answer = bank.said[at % bank.said.len()].clone();
                scene.hear(&answer);
            }
        }
        Step::Recall(at) => {
            let windows: Vec<WindowId> = bank.granted.keys().copied().collect();
            if !windows.is_empty() {
                let recall = Recall {
                    holder: holder(),
                    account: account(),
                    window: windows[at % windows.len()],
                    round: 1,
                };
                scene.with(|reservation, now, out| reservation.recall(&recall, now, out));
            }
        }
        Step::Refuse(at, why) => {
            let echo = (!bank.asks.is_empty()).then(|| bank.asks[at % bank.asks.len()].sent_boot);
            let refused = Refused {
                holder: holder(),
                account: account(),
                why: [
                    Why::WindowClosed,
                    Why::Capacity,
                    Why::Changed { version: 1 },
                ][usize::from(why)],
                stamp: scene.stamp(echo),
            };
            scene.with(|reservation, now, out| reservation.refused(&refused, now, out));
        }
        Step::Charge(units) => {
            scene.with(|reservation, now, _| reservation.take_for_charge(units, now));
        }
        Step::Clock => scene.hear_clock(),
        Step::Term => {
            bank.term += 1;
            let mut stamp = scene.stamp(Some(scene.boot.minus(Span::from_ms(30))));
            stamp.term = bank.term;
            scene.exchange.heard(&stamp, scene.boot);
        }
        Step::GiveBack => {
            scene.with(Reservation::give_back_all);
            scene.reservation.is_draining = false;
        }
    }
}

fn retry(scene: &mut Scene, bank: &mut Bank) {
    let verdicts = scene.verdicts();
    for (ticket, verdict) in &verdicts {
        let Some(deadline) = bank.waiting.get(ticket).copied() else {
            continue;
        };
        if *verdict != Verdict::Retry {
            bank.waiting.remove(ticket);
            continue;
        }
        let units = ticket % 5 + 1;
        let spent = scene.with(|reservation, now, out| {
            if reservation.can_spend(units, Some(Ticket(*ticket)), now) == Spend::Ready
                && ticket % 4 != 0
            {
                let window = reservation.spend(units, Some(Ticket(*ticket)), now);
                assert!(window.is_some());
                reservation.done(Ticket(*ticket), now, out);
                reservation.after_spend(now, out);
                return window;
            }
            // It lacks units here, or another limit.
            let times = Times {
                came: now.boot,
                deadline,
            };
            reservation.wait(Ticket(*ticket), units, times, now, out);
            None
        });
        if spent.is_some() {
            bank.waiting.remove(ticket);
        }
        note_spent(scene, bank, spent, units);
    }
}

fn grant(scene: &mut Scene, bank: &mut Bank, at: usize, more: u64, word: u8) {
    if bank.asks.is_empty() {
        return;
    }
    let ask = bank.asks[at % bank.asks.len()].clone();
    let window = Window::aligned(ask.at.unwrap_or(scene.log_time()), scene.length);
    let granted = bank.granted.entry(window.id).or_default();
    *granted = (*granted).max(ask.need_to.saturating_add(more).min(ask.want_to));
    let mut answer = scene.answer_of(window, *granted, None, Some(ask.sent_boot));
    answer.stamp.term = bank.term;
    answer.dry = match word {
        0 => dry(1_000, false),
        1 => dry(700, true),
        _ => None,
    };
    bank.said.push(answer.clone());
    // Every second one is lost or comes later.
    if word.is_multiple_of(2) {
        scene.hear(&answer);
    }
}

fn note_spent(scene: &Scene, bank: &mut Bank, window: Option<WindowId>, units: u64) {
    if let Some(window) = window {
        *bank.spent.entry(window).or_default() += units;
        assert_eq!(window, scene.window().id, "used outside its window");
    }
}

/// Takes what the reservation sent; totals only grow, and what is told is out of the reservation.
fn collect(scene: &mut Scene, bank: &mut Bank) {
    for effect in &scene.out {
        let Effect::Send(message) = effect else {
            continue;
        };
        let told = match message {
            ToLeader::Ask(ask) => {
                assert!(ask.need_to <= ask.want_to);
                ask.at
                    .map(|at| (Window::aligned(at, scene.length).id, ask.totals))
            }
            ToLeader::Report(report) => Some((report.window, report.totals)),
            ToLeader::Pulse(_) => None,
        };
        if let Some((window, totals)) = told {
            let known = bank.told.entry(window).or_default();
            *known = known.merge(totals);
        }
    }
    bank.asks.extend(scene.asks());
    scene.reports();
    let reservation = &scene.reservation;
    for held in [&reservation.past, &reservation.current, &reservation.next]
        .into_iter()
        .flatten()
    {
        let id = held.window.id;
        let granted = bank.granted.get(&id).copied().unwrap_or_default();
        let spent = bank.spent.get(&id).copied().unwrap_or_default();
        let told = bank.told.get(&id).copied().unwrap_or_default();
        assert_eq!(held.totals.spent, spent);
        assert_eq!(
            held.totals.spent + held.totals.returned + held.units(),
            held.received
        );
        assert!(held.received <= granted, "{} > {granted}", held.received);
        assert!(told.returned <= held.totals.returned && told.spent <= held.totals.spent);
    }
    for (window, spent) in &bank.spent {
        let told = bank.told.get(window).copied().unwrap_or_default();
        let granted = bank.granted.get(window).copied().unwrap_or_default();
        assert!(spent + told.returned <= granted);
    }
}

/// Nobody waits beyond its deadline.
fn assert_in_time(scene: &Scene, bank: &Bank) {
    if let Some(queue) = &scene.reservation.queue {
        let first = queue.first_deadline().expect("somebody waits");
        assert!(first > scene.boot, "a deadline went by");
    }
    for (ticket, deadline) in &bank.waiting {
        let told = scene
            .out
            .iter()
            .any(|effect| matches!(effect, Effect::Wake(Ticket(who), _) if who == ticket));
        let waits = scene
            .reservation
            .queue
            .as_ref()
            .is_some_and(|queue| queue.contains(Ticket(*ticket)));
        assert!(told || waits, "{ticket} was forgotten");
        assert!(told || *deadline > scene.boot, "{ticket} waits too long");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn nothing_is_minted_or_used_outside_its_window_and_everybody_has_a_verdict(all in steps()) {
        let mut scene = Scene::new(60, 4_000);
        let mut bank = Bank { term: 1, ..Bank::default() };
        for one in &all {
            step(&mut scene, &mut bank, one);
            collect(&mut scene, &mut bank);
            assert_in_time(&scene, &bank);
        }
        step(&mut scene, &mut bank, &Step::Pass(20_000));
        retry(&mut scene, &mut bank);
        step(&mut scene, &mut bank, &Step::Pass(1_000));
        assert!(scene.reservation.queue.is_none());
    }

    #[test]
    fn no_number_panics(
        quota in any::<u64>(),
        length in any::<u64>(),
        answers in proptest::collection::vec(
            (any::<u64>(), any::<u64>(), any::<(i64, i64, i64)>(), any::<Option<u64>>(), any::<u64>(), any::<u64>()), 1..8),
    ) {
        let mut exchange = Exchange::new();
        let mut reservation =
            Reservation::new(account(), holder(), quota, Span::from_nanos(length), Span::ZERO);
        let mut out = Vec::new();
        for (ticket, (boot, granted, (start, end, log), echo, units, lasts)) in (0_u64..).zip(answers) {
            let boot = Span::from_nanos(boot);
            let stamp = LogStamp {
                lease: None,
                term: granted % 3,
                log_time: Timestamp::from_nanos(log),
                echo: echo.map(Span::from_nanos),
            };
            exchange.heard(&stamp, boot);
            exchange.refilled(Span::from_nanos(units));
            let now = Now { boot, exchange: &exchange };
            let times = Times { came: boot, deadline: Span::from_nanos(lasts) };
            reservation.wait(Ticket(ticket), units, times, &now, &mut out);
            let window = Window {
                id: WindowId(start),
                start: Timestamp::from_nanos(start),
                end: Timestamp::from_nanos(end),
            };
            let answer = Answer {
                lapsed_to: 0,
                holder: holder(),
                account: account(),
                window,
                granted,
                dry: Some(Dry { lasts: Span::from_nanos(lasts), recalling: granted % 2 == 0 }),
                standing: PoolStanding { quota, free: units, used: granted, used_by_holder: units, stranded: lasts, drawn: 0 },
                stamp,
            };
            let _ = reservation.answer(&answer, &now, &mut out);
            let _ = (reservation.can_spend(units, None, &now), reservation.spend(units, None, &now));
            reservation.after_spend(&now, &mut out);
            let _ = reservation.take_for_charge(units, &now);
            let _ = (reservation.view(&now), reservation.tick(&now, &mut out));
            reservation.give_back_all(&now, &mut out);
        }
    }
}
