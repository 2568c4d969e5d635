//! The README's page of the client is code that runs.

use std::fs;
use std::path::Path;

fn read(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    fs::read_to_string(path).expect("a file of the project")
}

#[test]
fn the_code_of_the_readme_is_that_of_the_example() {
    let (readme, example) = (read("README.md"), read("tests/client/example.rs"));
    let blocks = readme.split("```rust\n").skip(1);
    let blocks: Vec<&str> = blocks.filter_map(|rest| rest.split("```").next()).collect();
    assert!(!blocks.is_empty());
    for block in blocks {
        assert!(
            block.lines().count() > 5 && example.contains(block),
            "not in the example:\n{block}"
        );
    }
}
