//! Reads commands: arrays of bulk strings as all clients send them, and lines as people type them.
//!
//! Pure: bytes in, words out, nothing copied but what is quoted in a line. What announces more than the bounds is
//! refused at its announcement, before any of it is kept.

use std::borrow::Cow;

use smallvec::SmallVec;
use thiserror::Error;

/// Most words of one command.
pub const WORDS_MAX: usize = 1_024;
/// Most bytes of one word.
pub const WORD_BYTES_MAX: usize = 16 * 1_024;
/// Most bytes of one command.
pub const COMMAND_BYTES_MAX: usize = 64 * 1_024;
/// Most bytes of a line that announces a length: a sign and 19 digits.
const LENGTH_BYTES_MAX: usize = 24;

/// A command's words; the first is its name.
pub type Words<'b> = SmallVec<[Cow<'b, [u8]>; 8]>;

/// A command and how many bytes it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command<'b> {
    /// Empty for an empty line or array, which is no command and is answered by nothing.
    pub words: Words<'b>,
    /// Bytes from its beginning to its end.
    pub length: usize,
}

/// Why bytes are no command. Nothing after them can be understood.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ProtocolError {
    /// A length is no number, or too large.
    #[error("invalid multibulk length")]
    Words,
    /// The same of a word.
    #[error("invalid bulk length")]
    Word,
    /// A word does not begin as one.
    #[error("expected '$'")]
    NoWord,
    /// A word is longer than it said.
    #[error("expected CRLF after a bulk string")]
    NoEnd,
    /// A line has a quote that does not end.
    #[error("unbalanced quotes in request")]
    Quotes,
    /// All words together are too long.
    #[error("too big request")]
    TooLong,
    /// A request of a browser, or of a server that was tricked into one: its body would be taken for commands.
    #[error("this is HTTP; it is answered at listen.check")]
    Http,
}

/// The first command of `bytes`; `None` when it has not arrived in full.
///
/// # Errors
/// When it is none.
pub fn command(bytes: &[u8]) -> Result<Option<Command<'_>>, ProtocolError> {
    match bytes.first() {
        None => Ok(None),
        Some(b'*') => array(bytes),
        Some(_) => line(bytes),
    }
}

fn array(bytes: &[u8]) -> Result<Option<Command<'_>>, ProtocolError> {
    let Some((count, mut at)) = length(bytes, 1, ProtocolError::Words)? else {
        return Ok(None);
    };
    let mut words = Words::new();
    // A length below zero is an empty array.
    let count = usize::try_from(count.max(0)).map_err(|_| ProtocolError::Words)?;
    if count > WORDS_MAX {
        return Err(ProtocolError::Words);
    }
    for _ in 0..count {
        match bytes.get(at) {
            None => return Ok(None),
            Some(b'$') => {}
            Some(_) => return Err(ProtocolError::NoWord),
        }
        let Some((size, start)) = length(bytes, at + 1, ProtocolError::Word)? else {
            return Ok(None);
        };
        let size = usize::try_from(size).map_err(|_| ProtocolError::Word)?;
        if size > WORD_BYTES_MAX {
            return Err(ProtocolError::Word);
        }
        let end = start + size;
        if end + 2 > COMMAND_BYTES_MAX {
            return Err(ProtocolError::TooLong);
        }
        let (Some(word), Some(after)) = (bytes.get(start..end), bytes.get(end..end + 2)) else {
            return Ok(None);
        };
        if after != b"\r\n" {
            return Err(ProtocolError::NoEnd);
        }
        words.push(Cow::Borrowed(word));
        at = end + 2;
    }
    Ok(Some(Command { words, length: at }))
}

/// The number at `from`, and where its line ends.
fn length(
    bytes: &[u8],
    from: usize,
    fault: ProtocolError,
) -> Result<Option<(i64, usize)>, ProtocolError> {
    let rest = bytes.get(from..).unwrap_or_default();
    let window = &rest[..rest.len().min(LENGTH_BYTES_MAX)];
    let Some(end) = memchr::memchr(b'\r', window) else {
        return if window.len() == LENGTH_BYTES_MAX {
            Err(fault)
        } else {
            Ok(None)
        };
    };
    match rest.get(end + 1) {
        None => Ok(None),
        Some(b'\n') => {
            let number = integer(&window[..end]).ok_or(fault)?;
            Ok(Some((number, from + end + 2)))
        }
        Some(_) => Err(fault),
    }
}

/// A whole number as Redis reads it: digits with at most a minus before them.
pub fn integer(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text.split_first() {
        Some((b'-', digits)) => (true, digits),
        _ => (false, text),
    };
    if digits.is_empty() || digits.len() > 19 {
        return None;
    }
    let mut number = 0_i128;
    for digit in digits {
        number = number * 10 + i128::from(char::from(*digit).to_digit(10)?);
    }
    i64::try_from(if negative { -number } else { number }).ok()
}

/// A command in one line.
fn line(bytes: &[u8]) -> Result<Option<Command<'_>>, ProtocolError> {
    let window = &bytes[..bytes.len().min(COMMAND_BYTES_MAX)];
    let Some(end) = memchr::memchr(b'\n', window) else {
        return if window.len() == COMMAND_BYTES_MAX {
            Err(ProtocolError::TooLong)
        } else {
            Ok(None)
        };
    };
    let text = &window[..end];
    let text = text.strip_suffix(b"\r").unwrap_or(text);
    let mut words = Words::new();
    let mut rest = text.trim_ascii_start();
    while !rest.is_empty() {
        if words.len() == WORDS_MAX {
            return Err(ProtocolError::Words);
        }
        let (word, after) = word(rest)?;
        if word.len() > WORD_BYTES_MAX {
            return Err(ProtocolError::Word);
        }
        words.push(word);
        rest = after.trim_ascii_start();
    }
    let is_http = |word: &Cow<'_, [u8]>| word.starts_with(b"HTTP/1.");
    let is_host = |word: &Cow<'_, [u8]>| word.eq_ignore_ascii_case(b"host:");
    if words.get(2).is_some_and(is_http) || words.first().is_some_and(is_host) {
        return Err(ProtocolError::Http);
    }
    Ok(Some(Command {
        words,
        length: end + 1,
    }))
}

/// The word at the beginning of a line, and what follows it.
fn word(line: &[u8]) -> Result<(Cow<'_, [u8]>, &[u8]), ProtocolError> {
    let quote = match line.split_first() {
        Some((quote @ (b'"' | b'\''), _)) => *quote,
        _ => {
            let end = line
                .iter()
                .position(u8::is_ascii_whitespace)
                .unwrap_or(line.len());
            let (word, after) = line.split_at(end);
            return Ok((Cow::Borrowed(word), after));
        }
    };
    let mut word = Vec::new();
    let mut rest = line.get(1..).unwrap_or_default();
    loop {
        match rest {
            [] => return Err(ProtocolError::Quotes),
            [end, after @ ..] if *end == quote => {
                // A word ends with its quote.
                if after
                    .first()
                    .is_some_and(|next| !next.is_ascii_whitespace())
                {
                    return Err(ProtocolError::Quotes);
                }
                return Ok((Cow::Owned(word), after));
            }
            [b'\\', b'\'', after @ ..] if quote == b'\'' => {
                word.push(b'\'');
                rest = after;
            }
            [b'\\', after @ ..] if quote == b'"' => rest = escape(after, &mut word)?,
            [byte, after @ ..] => {
                word.push(*byte);
                rest = after;
            }
        }
    }
}

/// What an escape in double quotes stands for; what follows it.
fn escape<'b>(after: &'b [u8], word: &mut Vec<u8>) -> Result<&'b [u8], ProtocolError> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    if let [b'x', high, low, rest @ ..] = after
        && let (Some(high), Some(low)) = (digit(*high), digit(*low))
    {
        word.push(u8::try_from(high * 16 + low).unwrap_or_default());
        return Ok(rest);
    }
    let (escaped, rest) = after.split_first().ok_or(ProtocolError::Quotes)?;
    word.push(match escaped {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 8,
        b'a' => 7,
        other => *other,
    });
    Ok(rest)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::any;
    use proptest::prop_assert;
    use proptest::prop_assert_eq;
    use proptest::proptest;
    use proptest::sample::select;

    use super::*;

    fn read(bytes: &[u8]) -> Result<Option<(Vec<String>, usize)>, ProtocolError> {
        Ok(command(bytes)?.map(|command| {
            let text = |word: &Cow<'_, [u8]>| String::from_utf8_lossy(word).into_owned();
            (command.words.iter().map(text).collect(), command.length)
        }))
    }

    fn words(bytes: &[u8]) -> Vec<String> {
        read(bytes).expect("a command").expect("all of it").0
    }

    #[test]
    fn a_request_of_http_is_no_command() {
        for line in ["POST / HTTP/1.1\r\n", "Host: x\r\n", "host: x\n"] {
            assert_eq!(read(line.as_bytes()), Err(ProtocolError::Http), "{line}");
        }
        assert_eq!(words(b"ECHO HTTP/1.1\r\n"), ["ECHO", "HTTP/1.1"]);
    }

    #[test]
    fn an_array_is_read_however_it_is_cut() {
        let whole = b"*2\r\n$4\r\nECHO\r\n$5\r\na\r\n\0b\r\n*1\r\n$4\r\nPING\r\n";
        let first = 4 + 10 + 11;
        assert_eq!(
            read(whole),
            Ok(Some((vec!["ECHO".into(), "a\r\n\0b".into()], first)))
        );
        for cut in 0..first {
            assert_eq!(read(&whole[..cut]), Ok(None), "{cut}");
        }
        assert_eq!(words(&whole[first..]), ["PING"]);
        assert_eq!(read(b"*0\r\nx"), Ok(Some((vec![], 4))));
        assert_eq!(read(b"*-1\r\nx"), Ok(Some((vec![], 5))));
    }

    #[test]
    fn a_line_is_read_as_people_type_it() {
        assert_eq!(words(b"  PING\thello \r\n"), ["PING", "hello"]);
        assert_eq!(words(b"PING\n"), ["PING"]);
        assert_eq!(words(b"\r\n"), Vec::<String>::new());
        assert_eq!(
            words(b"ECHO \"a \\\"b\\\" \\x41\\n\" 'it\\'s' \"\"\r\n"),
            ["ECHO", "a \"b\" A\n", "it's", ""]
        );
        for bad in [
            "ECHO \"a\r\n",
            "ECHO 'a\r\n",
            "ECHO \"a\"b\r\n",
            "ECHO \"a\\\r\n",
        ] {
            assert_eq!(read(bad.as_bytes()), Err(ProtocolError::Quotes), "{bad}");
        }
    }

    #[test]
    fn what_is_out_of_bounds_is_refused_at_its_announcement() {
        for (bytes, error) in [
            ("*1025\r\n", ProtocolError::Words),
            ("*x\r\n", ProtocolError::Words),
            ("*+1\r\n", ProtocolError::Words),
            ("*\r\n", ProtocolError::Words),
            ("*1\r\r", ProtocolError::Words),
            ("*9999999999999999999999999999", ProtocolError::Words),
            ("*1\r\n$16385\r\n", ProtocolError::Word),
            ("*1\r\n$-1\r\n", ProtocolError::Word),
            ("*1\r\n$99999999999999999999\r\n", ProtocolError::Word),
            ("*1\r\n:1\r\n", ProtocolError::NoWord),
            ("*1\r\n$1\r\nab\r\n", ProtocolError::NoEnd),
        ] {
            assert_eq!(read(bytes.as_bytes()), Err(error), "{bytes}");
        }
        let long_word = format!("$16384\r\n{}\r\n", "x".repeat(16_384));
        let long = format!("*5\r\n{}", long_word.repeat(4));
        assert_eq!(read(long.as_bytes()), Err(ProtocolError::TooLong));
        assert_eq!(
            read(&[b'x'; COMMAND_BYTES_MAX]),
            Err(ProtocolError::TooLong)
        );
        assert_eq!(read(&[b'x'; COMMAND_BYTES_MAX - 1]), Ok(None));
    }

    #[test]
    fn integers_are_those_of_redis() {
        for (text, number) in [
            ("0", Some(0)),
            ("-1", Some(-1)),
            ("9223372036854775807", Some(i64::MAX)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("9223372036854775808", None),
            ("", None),
            ("-", None),
            ("+1", None),
            ("1.0", None),
            (" 1", None),
        ] {
            assert_eq!(integer(text.as_bytes()), number, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(words in vec(vec(any::<u8>(), 0..40), 1..12)) {
            let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
            for word in &words {
                bytes.extend(format!("${}\r\n", word.len()).into_bytes());
                bytes.extend(word);
                bytes.extend(b"\r\n");
            }
            let length = bytes.len();
            bytes.extend(b"*1\r\n");
            let read = command(&bytes).expect("a command").expect("all of it");
            prop_assert_eq!(read.length, length);
            let read: Vec<Vec<u8>> = read.words.iter().map(|word| word.to_vec()).collect();
            prop_assert_eq!(read, words);
        }

        #[test]
        fn more_bytes_change_nothing_that_was_understood(
            bytes in vec(select(b"*$0123 \r\n\"'\\xa-".to_vec()), 0..60),
            more in vec(any::<u8>(), 0..20),
        ) {
            let longer = [bytes.clone(), more].concat();
            match command(&bytes) {
                Ok(None) => {}
                Ok(Some(read)) => {
                    prop_assert!((1..=bytes.len()).contains(&read.length));
                    prop_assert_eq!(command(&longer), Ok(Some(read)));
                }
                Err(error) => prop_assert_eq!(command(&longer), Err(error)),
            }
        }
    }
}
