//! A console, and a client of it.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::World;

/// A console, which ends when this is dropped.
pub(crate) struct Console {
    child: Child,
    pub(crate) address: String,
}

impl Drop for Console {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// What was answered.
pub(crate) struct Answer {
    pub(crate) status: u16,
    headers: BTreeMap<String, String>,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

/// No server of a test takes longer to do anything.
const PATIENCE: Duration = Duration::from_secs(90);

impl Console {
    /// On the world's config.
    pub(crate) fn start(world: &World, args: &[&str]) -> Console {
        Console::on(&world.config.path, args)
    }

    pub(crate) fn on(config: &Path, args: &[&str]) -> Console {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pgshard"));
        command
            .args(["console", "--listen", "127.0.0.1:0"])
            .args(args)
            .env("PGSHARD_CONFIG", config);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let address = line
            .trim()
            .strip_prefix("listening on http://")
            .unwrap()
            .strip_suffix('/')
            .unwrap()
            .to_owned();
        Console { child, address }
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &[])
    }

    /// With these headers; `Host` is the address unless one of them sets it.
    pub(crate) fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
        ask(&self.address, method, path, headers)
    }

    /// The page once it has this: the first look may take longer than a page waits.
    pub(crate) fn seen(&self, path: &str, text: &str) -> String {
        self.until(path, |page| page.contains(text))
    }

    /// The page once it is so.
    pub(crate) fn until(&self, path: &str, is_so: impl Fn(&str) -> bool) -> String {
        let began = Instant::now();
        loop {
            let page = self.get(path).body;
            if is_so(&page) {
                return page;
            }
            assert!(began.elapsed() < PATIENCE, "{path} stays: {page}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Follows a page.
    pub(crate) fn follow(&self, page: &str) -> Events {
        self.follow_with(page, &[])
    }

    /// The same, with these headers.
    pub(crate) fn follow_with(&self, page: &str, headers: &[(&str, &str)]) -> Events {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut head = format!(
            "GET /events?page={page} HTTP/1.1\r\nHost: {}\r\n",
            self.address
        );
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        write!(stream, "{head}\r\n").unwrap();
        Events(BufReader::new(stream))
    }
}

/// Sends an HTTP request to an address.
pub(crate) fn get(address: &str, path: &str) -> Answer {
    ask(address, "GET", path, &[])
}

pub(crate) fn ask(address: &str, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut head = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
    if !headers.iter().any(|(name, _)| *name == "Host") {
        head += &format!("Host: {address}\r\n");
    }
    head.extend(
        headers
            .iter()
            .map(|(name, value)| format!("{name}: {value}\r\n")),
    );
    write!(stream, "{head}\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .unwrap_or_else(|| panic!("{path}: {answer:?}"));
    let mut lines = head.lines();
    let status = lines
        .next()
        .unwrap()
        .split(' ')
        .nth(1)
        .unwrap()
        .parse()
        .unwrap();
    let header = |line: &str| {
        line.split_once(": ")
            .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
    };
    Answer {
        status,
        headers: lines.filter_map(header).collect(),
        body: body.to_owned(),
    }
}

/// The events of a page that is followed.
pub(crate) struct Events(BufReader<TcpStream>);

impl Events {
    /// The first parts that are so.
    pub(crate) fn until(&mut self, is_so: impl Fn(&Value) -> bool) -> Value {
        let began = Instant::now();
        loop {
            let parts = self.next_parts();
            if is_so(&parts) {
                return parts;
            }
            assert!(began.elapsed() < PATIENCE, "it does not become so: {parts}");
        }
    }

    /// The parts of the next event.
    pub(crate) fn next_parts(&mut self) -> Value {
        loop {
            let mut line = String::new();
            assert!(
                self.0.read_line(&mut line).unwrap() > 0,
                "the console goes on telling"
            );
            if let Some(data) = line.strip_prefix("data: ") {
                return serde_json::from_str(data).unwrap();
            }
        }
    }
}
