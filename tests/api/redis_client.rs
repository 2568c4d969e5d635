//! A client of the RESP listener: what is sent over a socket and what comes back, byte for byte.

use std::io::Read;
use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use crate::server::Server;

/// A client that sends words and reads replies as text.
pub struct Redis {
    stream: TcpStream,
    unread: Vec<u8>,
}

impl Redis {
    /// A connection to the RESP listener.
    pub fn connect(server: &Server) -> Self {
        let stream = TcpStream::connect(server.resp_address()).expect("connects");
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .expect("a deadline");
        Self {
            stream,
            unread: Vec::new(),
        }
    }

    /// Sends bytes as they are.
    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("sends");
    }

    fn byte(&mut self) -> u8 {
        if self.unread.is_empty() {
            let mut buffer = [0; 4096];
            let read = self.stream.read(&mut buffer).expect("a reply");
            assert!(read > 0, "the server closed the connection");
            self.unread.extend(buffer[..read].iter().rev());
        }
        self.unread.pop().expect("not empty")
    }

    fn line(&mut self) -> String {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            line.push(self.byte());
        }
        String::from_utf8_lossy(&line).trim_end().to_owned()
    }

    /// The next reply, written on one line.
    pub fn reply(&mut self) -> String {
        let line = self.line();
        let (kind, rest) = line.split_at(1);
        let length = || rest.parse::<i64>().expect("a length");
        match kind {
            "$" if length() < 0 => "nil".to_owned(),
            "$" => {
                let bytes: Vec<u8> = (0..length() + 2).map(|_| self.byte()).collect();
                String::from_utf8_lossy(&bytes[..bytes.len() - 2]).into_owned()
            }
            "*" | "%" => {
                let elements = length() * if kind == "%" { 2 } else { 1 };
                let elements: Vec<String> = (0..elements).map(|_| self.reply()).collect();
                let (open, close) = if kind == "%" { ("{", "}") } else { ("[", "]") };
                format!("{open}{}{close}", elements.join(" "))
            }
            "_" => "null".to_owned(),
            _ => line,
        }
        .trim_start_matches(':')
        .to_owned()
    }

    /// Sends a command; its reply.
    pub fn call(&mut self, words: &[&str]) -> String {
        self.send(&command(words));
        self.reply()
    }

    /// Whether the server has ended the connection.
    pub fn is_closed(&mut self) -> bool {
        let mut rest = [0; 64];
        matches!(self.stream.read(&mut rest), Ok(0) | Err(_))
    }
}

/// A command as clients send it.
pub fn command(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n{word}\r\n", word.len()).into_bytes());
    }
    bytes
}
