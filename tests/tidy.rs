//! Rules of this code base that the compiler does not know.
//!
//! Every rule is a test, so it keeps itself. When one of these fails, the message says what to do.

use std::fs;
use std::path::Path;
use std::path::PathBuf;

/// Modules from the bottom to the top; a module imports only from those before it.
const ORDER: [&str; 22] = [
    "domain",
    "algorithm",
    "catalogue",
    "usage",
    "grants",
    "ledger",
    "replication",
    "machine",
    "drill",
    "simulate",
    "client",
    "store",
    "telemetry",
    "consensus",
    "peer",
    "region",
    "http",
    "grpc",
    "resp",
    "admin",
    "server",
    "cli",
];
/// Modules without clock, randomness, input or output.
const PURE: [&str; 10] = [
    "domain",
    "algorithm",
    "catalogue",
    "usage",
    "grants",
    "ledger",
    "replication",
    "machine",
    "drill",
    "simulate",
];
/// Files longer than this are split.
const LINES_MAX: usize = 600;

fn rust_files(below: &str) -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(below);
    let mut files = Vec::new();
    let mut folders = vec![root];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the project") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                if path
                    .file_name()
                    .is_some_and(|name| name != "target" && name != "corpus")
                {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).expect("a source file");
                files.push((path, text));
            }
        }
    }
    assert!(!files.is_empty(), "no source files below {below}");
    files
}

fn module_of(path: &Path) -> Option<String> {
    let below = path
        .strip_prefix(Path::new(env!("CARGO_MANIFEST_DIR")).join("src"))
        .ok()?;
    let first = below.components().next()?.as_os_str().to_str()?;
    Some(first.trim_end_matches(".rs").to_owned())
}

fn is_test(path: &Path) -> bool {
    path.components()
        .any(|part| part.as_os_str() == "tests" || part.as_os_str() == "tests.rs")
}

/// The text before the unit tests of a file.
fn production(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod ").next().unwrap_or(text)
}

fn assert_none(faults: &[String], what_to_do: &str) {
    assert!(faults.is_empty(), "{what_to_do}\n{}", faults.join("\n"));
}

#[test]
fn every_file_opens_with_why_it_exists() {
    let faults = ["src", "tests"]
        .into_iter()
        .flat_map(rust_files)
        .filter(|(_, text)| !text.starts_with("//!"))
        .map(|(path, _)| path.display().to_string());
    assert_none(
        &faults.collect::<Vec<String>>(),
        "begin these files with //! and what they are for:",
    );
}

#[test]
fn no_file_is_too_long_to_know() {
    let faults = ["src", "tests"]
        .into_iter()
        .flat_map(rust_files)
        .filter_map(|(path, text)| {
            let lines = text.lines().count();
            (lines > LINES_MAX).then(|| format!("{}: {lines} lines", path.display()))
        });
    assert_none(
        &faults.collect::<Vec<String>>(),
        "split these files by what they are about:",
    );
}

#[test]
fn imports_point_downwards() {
    let rank = |module: &str| ORDER.iter().position(|known| *known == module);
    let mut faults = Vec::new();
    for (path, text) in rust_files("src") {
        let Some(own) = module_of(&path).and_then(|module| rank(&module)) else {
            continue;
        };
        for (number, line) in production(&text).lines().enumerate() {
            let code = line.split("//").next().unwrap_or(line);
            for used in code.split("crate::").skip(1) {
                let module: String = used
                    .chars()
                    .take_while(|c| c.is_alphanumeric() || *c == '_')
                    .collect();
                if rank(&module).is_some_and(|used| used > own) {
                    faults.push(format!("{}:{}: uses {module}", path.display(), number + 1));
                }
            }
        }
    }
    assert_none(
        &faults,
        "a module imports only from those below it; move the type down or pass the value in:",
    );
}

#[test]
fn every_module_has_its_place_in_the_order() {
    let faults = rust_files("src")
        .into_iter()
        .filter_map(|(path, _)| module_of(&path))
        .filter(|module| {
            !["lib", "main"].contains(&module.as_str()) && !ORDER.contains(&module.as_str())
        });
    assert_none(
        &faults.collect::<Vec<String>>(),
        "give these modules a place in ORDER:",
    );
}

#[test]
fn only_the_clock_reads_time_and_only_entropy_draws() {
    let clock = [
        "SystemTime::now",
        "Instant::now",
        "Timestamp::now(",
        "Zoned::now",
        "clock_gettime",
        "BOOTTIME",
    ];
    let random = ["rand::", "thread_rng", "from_entropy", "OsRng"];
    let mut faults = Vec::new();
    for (path, text) in rust_files("src") {
        if is_test(&path) {
            continue;
        }
        let name = path.display().to_string();
        let allowed: &[&str] = if name.ends_with("region/clock.rs") {
            &random
        } else if name.ends_with("region/entropy.rs") {
            &clock
        } else {
            &[]
        };
        for (number, line) in production(&text).lines().enumerate() {
            let code = line.split("//").next().unwrap_or(line);
            let found = clock
                .iter()
                .chain(&random)
                .find(|word| code.contains(**word));
            let is_own = name.ends_with("region/clock.rs") || name.ends_with("region/entropy.rs");
            if let Some(word) = found
                && (!is_own || allowed.contains(word))
            {
                faults.push(format!("{name}:{}: {word}", number + 1));
            }
        }
    }
    assert_none(&faults, "take `now` and random values as arguments:");
}

#[test]
fn pure_modules_neither_wait_nor_read_nor_write() {
    let words = [
        "tokio::", "std::fs", "std::net", "std::io", "std::env", "async fn", ".await", "println!",
        "rusqlite",
    ];
    let mut faults = Vec::new();
    for (path, text) in rust_files("src") {
        if is_test(&path) || !module_of(&path).is_some_and(|module| PURE.contains(&module.as_str()))
        {
            continue;
        }
        for (number, line) in production(&text).lines().enumerate() {
            let code = line.split("//").next().unwrap_or(line);
            if let Some(word) = words.iter().find(|word| code.contains(**word)) {
                faults.push(format!("{}:{}: {word}", path.display(), number + 1));
            }
        }
    }
    assert_none(&faults, "these modules are pure; do this in `region`:");
}

#[test]
fn no_import_is_a_glob() {
    let mut faults = Vec::new();
    for (path, text) in rust_files("src") {
        if text.starts_with("//! Made by ") {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            let is_glob = line.trim_start().starts_with("use ") && line.contains("::*");
            if is_glob && line.trim() != "use super::*;" {
                faults.push(format!("{}:{}", path.display(), number + 1));
            }
        }
    }
    assert_none(&faults, "name what is imported:");
}

#[test]
fn no_queue_is_unbounded() {
    let faults = rust_files("src")
        .into_iter()
        .filter(|(_, text)| text.contains("unbounded"))
        .map(|(path, _)| path.display().to_string());
    assert_none(
        &faults.collect::<Vec<String>>(),
        "give these channels a bound:",
    );
}
