//! One fuzz target for every decoder in `targets.rs`.
//!
//! `HIGHWATER_FUZZ=catalogue` names one; without it the first byte of the input picks one.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;

#[expect(
    dead_code,
    reason = "the samples are for the corpus and for `cargo test`"
)]
#[path = "../targets.rs"]
mod targets;

static CHOSEN: LazyLock<Option<&'static targets::Target>> = LazyLock::new(|| {
    let name = std::env::var("HIGHWATER_FUZZ").ok()?;
    let known = targets::by_name();
    let target = known.get(name.as_str());
    Some(target.unwrap_or_else(|| panic!("{name} is none of {:?}", known.keys())))
});

fuzz_target!(|data: &[u8]| {
    match (*CHOSEN, data.split_first()) {
        (Some(target), _) => {
            (target.run)(data);
        }
        (None, Some((first, rest))) => {
            let index = usize::from(*first) % targets::TARGETS.len();
            (targets::TARGETS[index].run)(rest);
        }
        (None, None) => {}
    }
});
