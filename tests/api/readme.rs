//! The README's page of examples, run as they are written.

use std::fs;
use std::path::Path;

use crate::server::Server;

fn readme() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    fs::read_to_string(path).expect("the README")
}

/// The fenced blocks of one language, in order.
fn blocks<'a>(text: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("```{language}\n");
    text.split(fence.as_str())
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .collect()
}

/// The words of a command line: quotes as a shell takes them, comments left out.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None::<char>);
    for character in line.chars() {
        match (quote, character) {
            (Some(open), c) if c == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            (None, ' ') => words.extend(word.take()),
            (None, '#') if word.is_none() => break,
            _ => word.get_or_insert_default().push(character),
        }
    }
    words.extend(word);
    words
}

/// A `curl` line as method, path and query, headers, body.
fn request(words: &[String]) -> (String, Vec<(String, String)>, Option<String>) {
    let (mut path, mut headers, mut body) = (String::new(), Vec::new(), None);
    let mut rest = words.iter().skip(1);
    while let Some(word) = rest.next() {
        match word.as_str() {
            "-s" => {}
            "-d" => body = rest.next().cloned(),
            "-H" => {
                let header = rest.next().expect("a header");
                let (name, value) = header.split_once(": ").expect("name: value");
                headers.push((name.to_owned(), value.to_owned()));
            }
            address => {
                let at = address.find("/v1/").expect("a path of the check API");
                path = address[at..].to_owned();
            }
        }
    }
    (path, headers, body)
}

#[test]
fn the_examples_of_the_readme_work_as_they_are_written() {
    let text = readme();
    let server = Server::start();
    let file = server.directory().join("limits.toml");
    fs::write(&file, blocks(&text, "toml")[0]).expect("the README's limits");
    let file = file.to_str().expect("a path");

    let mut commands = 0;
    let mut requests = 0;
    let mut hold = String::new();
    let lines = blocks(&text, "sh");
    for line in lines.iter().flat_map(|block| block.lines()) {
        let words: Vec<String> = words(line)
            .into_iter()
            .map(|word| word.replace("$HOLD", &hold))
            .map(|word| {
                if word == "limits.toml" {
                    file.to_owned()
                } else {
                    word
                }
            })
            .collect();
        match words.first().map(String::as_str) {
            Some("highwater") => {
                let arguments: Vec<&str> = words.iter().skip(1).map(String::as_str).collect();
                let output = server.cli(&arguments);
                // Before it is applied the file differs from an empty catalogue.
                let wanted = i32::from(arguments.first() == Some(&"diff"));
                let said = String::from_utf8_lossy(&output.stderr);
                assert_eq!(output.status.code(), Some(wanted), "{line}: {said}");
                commands += 1;
            }
            Some("curl") if line.contains("acme") || line.contains("$HOLD") => {
                let (path, headers, body) = request(&words);
                let headers: Vec<(&str, &str)> = headers
                    .iter()
                    .map(|(name, value)| (name.as_str(), value.as_str()))
                    .collect();
                let answer = match body {
                    None => server.get(&path),
                    Some(body) => {
                        let body = serde_json::from_str(&body).expect("JSON");
                        server.post_with(&path, &headers, &body)
                    }
                };
                assert_eq!(answer.status, 200, "{line}: {answer:?}");
                if path == "/v1/holds" {
                    hold = answer.body["hold"].as_str().expect("a hold").to_owned();
                }
                requests += 1;
            }
            _ => {}
        }
    }
    assert!(
        commands >= 6 && requests >= 7,
        "{commands} commands, {requests} requests"
    );
}
