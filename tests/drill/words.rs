//! What the command says without running anything.

use crate::command::drill;
use crate::command::highwater;
use crate::command::said;
use crate::command::told;
use crate::command::write;

/// All that the documentation names.
const SHIPPED: [&str; 16] = [
    "region-crash",
    "leader-loss",
    "leader-transfer",
    "partition-majority",
    "partition-minority",
    "one-way-link",
    "slow-link",
    "flapping-link",
    "clock-skew",
    "disk-full",
    "restart-from-backup",
    "wiped-region",
    "rolling-restart",
    "rejoin-after-hours",
    "burst-everywhere",
    "evacuate-region",
];

#[test]
fn the_list_names_every_shipped_drill_and_every_file_is_shipped() {
    let output = drill(&["list"]);
    assert!(output.status.success(), "{}", told(&output));
    let said = said(&output);
    for name in SHIPPED {
        assert!(
            said.lines().any(|line| line.starts_with(name)),
            "{name}\n{said}"
        );
    }
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/ops/drills");
    let mut files: Vec<String> = std::fs::read_dir(directory)
        .expect("the drills")
        .map(|file| {
            file.expect("a file")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    files.sort();
    let mut names: Vec<String> = SHIPPED.iter().map(|name| format!("{name}.toml")).collect();
    names.sort();
    assert_eq!(files, names);
    let output = drill(&["list", "--output", "json"]);
    let rows: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(rows.as_array().map(Vec::len), Some(SHIPPED.len() + 1));
}

#[test]
fn a_dry_run_says_what_would_be_done_and_does_nothing() {
    for name in SHIPPED {
        let output = drill(&["run", name, "--dry-run"]);
        assert_eq!(output.status.code(), Some(0), "{}", told(&output));
        let said = said(&output);
        assert!(said.starts_with(&format!("{name}: ")), "{said}");
        assert!(said.contains("Expected:\n"), "{said}");
    }
    let chaos = drill(&["run", "chaos", "--seed", "7", "--for", "5m", "--dry-run"]);
    assert_eq!(chaos.status.code(), Some(0), "{}", told(&chaos));
    let output = drill(&["run", "leader-loss", "--dry-run"]);
    assert!(said(&output).contains("  at 6 s: kill leader, for 8 s\n"));
    assert!(said(&output).contains("Regions, each a process of its own"));
}

#[test]
fn a_faulty_file_is_told_by_name_and_line_and_ends_with_two() {
    let directory = tempfile::tempdir().expect("a directory");
    let text = include_str!("../../ops/drills/leader-loss.toml");
    let faulty = text
        .replace("do = \"kill\"", "do = \"kil\"")
        .replace("rate  = 10", "rate  = 10\nwibble = 1");
    let path = write(directory.path(), "faulty.toml", &faulty);
    let output = drill(&["run", &path, "--dry-run"]);
    assert_eq!(output.status.code(), Some(2));
    let line = 1 + faulty
        .lines()
        .position(|line| line == "wibble = 1")
        .expect("a line");
    assert!(
        told(&output).contains(&format!("{path}:{line}: unknown field `wibble`")),
        "{}",
        told(&output)
    );
    let path = write(
        directory.path(),
        "kil.toml",
        &text.replace("do = \"kill\"", "do = \"kil\""),
    );
    let output = drill(&["run", &path]);
    assert_eq!(output.status.code(), Some(2));
    let line = 1 + text
        .lines()
        .position(|line| line.contains("\"kill\""))
        .expect("a line");
    assert!(
        told(&output).contains(&format!("{path}:{line}: do: \"kil\" is not known")),
        "{}",
        told(&output)
    );
}

#[test]
fn what_cannot_be_run_ends_with_two_and_says_why() {
    let table: [(&[&str], &str); 7] = [
        (&["run", "no-such-drill"], "see `highwater drill list`"),
        (&["run", "no/such/file.toml"], "cannot be read"),
        (
            &["run", "leader-loss", "--report", "x.pdf"],
            "ends in .json or .html",
        ),
        (
            &["run", "leader-loss", "--cluster", "no/such/file.toml"],
            "cannot be read",
        ),
        (
            &["run", "leader-loss", "--for", "20m"],
            "--for is for the drill `chaos`",
        ),
        (&["run", "chaos", "--for", "1s"], "give 20s to 60m"),
        (
            &["run", "chaos", "--for", "2h"],
            "more than 60m are for --simulate",
        ),
    ];
    for (arguments, message) in table {
        let output = drill(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(
            told(&output).contains(message),
            "{arguments:?}: {}",
            told(&output)
        );
    }
}

#[test]
fn help_has_examples() {
    for arguments in [&["drill", "--help"][..], &["drill", "run", "--help"]] {
        let output = highwater().args(arguments).output().expect("runs");
        assert!(output.status.success());
        assert!(
            said(&output).contains("Examples:\n  highwater drill "),
            "{}",
            said(&output)
        );
    }
}

/// Every runbook names a drill that ships, and commands that the program has.
#[test]
fn runbooks_name_drills_and_commands_that_there_are() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/ops/runbooks");
    let mut count = 0;
    for file in std::fs::read_dir(directory).expect("the runbooks") {
        let path = file.expect("a file").path();
        let text = std::fs::read_to_string(&path).expect("text");
        let name = path.display();
        count += 1;
        let rehearsed = SHIPPED
            .iter()
            .filter(|drill| text.contains(&format!("highwater drill run {drill}")));
        assert!(rehearsed.count() > 0, "{name} names no drill");
        let commands = text
            .lines()
            .filter_map(|line| line.trim().strip_prefix("highwater "));
        for command in commands {
            let words: Vec<&str> = command
                .split_whitespace()
                .take_while(|word| {
                    word.bytes()
                        .all(|byte| byte.is_ascii_lowercase() || byte == b'-')
                        && !word.starts_with('-')
                })
                .take(2)
                .collect();
            let has_parts = [
                "leader", "region", "drill", "limits", "tokens", "plans", "tenants",
            ];
            let parts = if has_parts.contains(&words[0]) {
                &words[..]
            } else {
                &words[..1]
            };
            let output = highwater()
                .args(parts)
                .arg("--help")
                .output()
                .expect("runs");
            assert!(output.status.success(), "{name}: highwater {command}");
        }
        for metric in text
            .split('`')
            .filter(|word| word.starts_with("highwater_") || word.starts_with("rate_limit_"))
        {
            let metric = metric.split('{').next().unwrap_or_default();
            assert!(
                METRICS.contains(metric.trim_end_matches("_total")),
                "{name}: {metric}"
            );
        }
    }
    assert_eq!(count, 8);
}

/// Where every metric has its name.
const METRICS: &str = concat!(
    include_str!("../../src/telemetry/metrics.rs"),
    include_str!("../../src/telemetry/meters.rs"),
    include_str!("../../src/telemetry/peers.rs"),
    include_str!("../../src/telemetry/usage.rs"),
);
