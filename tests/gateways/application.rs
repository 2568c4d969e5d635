//! The application behind a gateway: answers every request with what it saw of it.

use std::io::BufRead;
use std::io::BufReader;
use std::io::Read;
use std::io::Write;
use std::net::TcpListener;
use std::net::TcpStream;
use std::thread;

/// Serves until the tests end; the port.
pub fn start() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || drop(serve(stream)));
        }
    });
    port
}

fn serve(stream: TcpStream) -> std::io::Result<()> {
    let mut writer = stream.try_clone()?;
    let mut reader = BufReader::new(stream);
    loop {
        let mut first = String::new();
        if reader.read_line(&mut first)? == 0 {
            return Ok(());
        }
        let mut length = 0;
        let mut line = String::new();
        while reader.read_line(&mut line)? > 2 {
            let header = line.to_ascii_lowercase();
            if let Some(value) = header.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap_or(0);
            }
            line.clear();
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let target = first.split(' ').nth(1).unwrap_or_default();
        // The application has refusals of its own, which no gateway may take for Highwater's.
        let status = if target == "/forbidden" {
            "403 Forbidden"
        } else {
            "200 OK"
        };
        let text = format!("application {} {}", first.trim_end(), body.len());
        write!(
            writer,
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\nX-Application: yes\r\n\r\n{text}",
            text.len()
        )?;
    }
}
