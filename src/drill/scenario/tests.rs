//! Scenarios that ship can be read, and what is wrong in one is told with its line.

use super::Scenario;
use crate::drill::shipped::SHIPPED;

#[test]
fn every_shipped_scenario_is_one() {
    for shipped in SHIPPED {
        let read = Scenario::parse(shipped.name, shipped.text);
        if let Err(error) = read {
            panic!("{}", error.in_file(shipped.name));
        }
    }
}
