//! A process that was asked to end.

use crate::domain::name::RegionName;
use crate::grants::account::Account;
use crate::simulate::log;

use super::Context;
use super::Event;
use super::GIVE_BACK;
use super::GREETING;
use super::Out;
use super::PULSE;
use super::Process;
use super::SUCCESSOR_WITHIN;
use super::Stage;

impl Process {
    /// Before it ends: hands the lead over and gives units back.
    pub(super) fn leave(&mut self, context: &mut Context<'_>) {
        match self.stage {
            Stage::Runs => {}
            Stage::Leaves(since) => {
                let leads = self.log.as_ref().is_some_and(log::Node::leads);
                let knows = self.leader().is_some_and(|leader| leader != self.index);
                let is_late =
                    context.at.boot.minus(since) > SUCCESSOR_WITHIN.plus(SUCCESSOR_WITHIN);
                if leads && !is_late {
                    if let Some(to) = self.caught_up(context, |_| true) {
                        self.hand_over(context, to);
                    }
                    context.later(PULSE, Event::Leaving);
                } else if knows || is_late || self.names.len() == 1 {
                    self.stage = Stage::GivesBack;
                    let accounts: Vec<Account> = self.seats.keys().cloned().collect();
                    for account in accounts {
                        self.with_seat(context, &account, |reservation, now, effects| {
                            reservation.give_back_all(now, effects);
                        });
                    }
                    self.carry_all_told(context);
                    context.later(GIVE_BACK, Event::Leaving);
                } else {
                    context.later(GREETING, Event::Leaving);
                }
            }
            Stage::GivesBack => {
                self.flush(context);
                context.out.push(Out::Ended);
            }
        }
    }

    /// A member of those wanted that is linked and has everything.
    pub(in crate::simulate) fn caught_up(
        &self,
        context: &Context<'_>,
        is_wanted: impl Fn(&RegionName) -> bool,
    ) -> Option<usize> {
        let log = self.log.as_ref()?;
        (0..self.names.len()).find(|region| {
            *region != self.index
                && self.names.get(*region).is_some_and(&is_wanted)
                && self.is_linked(*region)
                && log.is_caught_up(&context.disk.log, *region)
        })
    }
}
