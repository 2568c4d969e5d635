//! Writes replies. Pure.

/// Which form of the protocol a client speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Version {
    /// What all clients understand.
    #[default]
    Resp2,
    /// With maps and a null of its own.
    Resp3,
}

/// Replies in the order of their commands.
#[derive(Debug, Default)]
pub struct Replies {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// The client's form.
    pub version: Version,
}

impl Replies {
    fn line(&mut self, kind: u8, text: &[u8]) {
        self.bytes.push(kind);
        // A reply of one line cannot hold another one.
        self.bytes.extend(text.iter().map(|byte| match byte {
            b'\r' | b'\n' => b' ',
            other => *other,
        }));
        self.bytes.extend_from_slice(b"\r\n");
    }

    fn number(&mut self, kind: u8, number: i64) {
        let mut digits = [0; 20];
        let mut at = digits.len();
        let mut left = number.unsigned_abs();
        loop {
            at -= 1;
            digits[at] = b'0' + u8::try_from(left % 10).unwrap_or_default();
            left /= 10;
            if left == 0 {
                break;
            }
        }
        self.bytes.push(kind);
        if number < 0 {
            self.bytes.push(b'-');
        }
        self.bytes.extend_from_slice(&digits[at..]);
        self.bytes.extend_from_slice(b"\r\n");
    }

    fn length(&mut self, kind: u8, length: usize) {
        self.number(kind, i64::try_from(length).unwrap_or(i64::MAX));
    }

    /// `+OK` and its like.
    pub fn simple(&mut self, text: &str) {
        self.line(b'+', text.as_bytes());
    }

    /// An error; its first word in capitals is its code.
    pub fn error(&mut self, text: &str) {
        self.line(b'-', text.as_bytes());
    }

    /// A whole number.
    pub fn integer(&mut self, number: i64) {
        self.number(b':', number);
    }

    /// Any bytes.
    pub fn bulk(&mut self, bytes: &[u8]) {
        self.length(b'$', bytes.len());
        self.bytes.extend_from_slice(bytes);
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// Nothing.
    pub fn null(&mut self) {
        self.bytes.extend_from_slice(match self.version {
            Version::Resp2 => b"$-1\r\n",
            Version::Resp3 => b"_\r\n",
        });
    }

    /// The head of an array of `length` elements, which must follow.
    pub fn array(&mut self, length: usize) {
        self.length(b'*', length);
    }

    /// The head of a map of `pairs` pairs, which must follow.
    pub fn map(&mut self, pairs: usize) {
        match self.version {
            Version::Resp2 => self.length(b'*', pairs * 2),
            Version::Resp3 => self.length(b'%', pairs),
        }
    }

    /// An array of whole numbers.
    pub fn integers(&mut self, numbers: &[i64]) {
        self.array(numbers.len());
        for number in numbers {
            self.integer(*number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_are_written() {
        let mut replies = Replies::default();
        replies.simple("OK");
        replies.error("ERR a\r\n+OK");
        replies.integers(&[0, -1, i64::MIN, i64::MAX]);
        replies.bulk(b"\0\r\n");
        replies.null();
        replies.map(1);
        replies.version = Version::Resp3;
        replies.null();
        replies.map(1);
        let text = String::from_utf8(replies.bytes).expect("text");
        assert_eq!(
            text,
            "+OK\r\n-ERR a  +OK\r\n*4\r\n:0\r\n:-1\r\n:-9223372036854775808\r\n:9223372036854775807\r\n\
             $3\r\n\0\r\n\r\n$-1\r\n*2\r\n_\r\n%1\r\n"
        );
    }
}
