//! Chromium, by its driver. A bench has this file, too.
//!
//! `script/setup` installs both where it can. Without them, the tests that use it fail with that
//! reason.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// A driver, and the one window that it has.
pub(super) struct Browser {
    driver: Child,
    port: u16,
    session: String,
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The driver ends its browser; killed, it would leave it.
        if std::thread::panicking() {
            self.try_call("DELETE", &format!("/session/{}", self.session), &json!({}));
        } else {
            self.call("DELETE", "", &json!({}));
        }
        self.driver.kill().ok();
        self.driver.wait().ok();
    }
}

const PATIENCE: Duration = Duration::from_secs(90);

impl Browser {
    /// Starts a driver and its browser, with a window of this size.
    pub(super) fn open(width: u32, height: u32) -> Browser {
        let mut driver = Command::new("chromedriver")
            .args(["--port=0"])
            .stdout(Stdio::piped())
            .spawn()
            .expect(
                "chromedriver is there: run script/setup as root, or install chromium and \
                chromium-driver",
            );
        let mut said = BufReader::new(driver.stdout.take().unwrap());
        let port = loop {
            let mut line = String::new();
            assert!(
                said.read_line(&mut line).unwrap() > 0,
                "chromedriver says on which port it listens"
            );
            if let Some((_, port)) = line.split_once("started successfully on port ") {
                break port.trim().trim_end_matches('.').parse().unwrap();
            }
        };
        // Nothing else reads the rest: a full pipe would stop it.
        std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
        let mut browser = Browser {
            driver,
            port,
            session: String::new(),
        };
        let arguments = [
            "--headless=new".to_owned(),
            "--no-sandbox".to_owned(),
            "--disable-gpu".to_owned(),
            "--disable-dev-shm-usage".to_owned(),
            format!("--window-size={width},{height}"),
        ];
        let options = json!({ "args": arguments });
        let wanted =
            json!({ "goog:chromeOptions": options, "goog:loggingPrefs": { "browser": "ALL" } });
        let capabilities = json!({ "capabilities": { "alwaysMatch": wanted } });
        let begun = browser
            .try_call("POST", "/session", &capabilities)
            .expect("a browser starts");
        browser.session = begun["sessionId"]
            .as_str()
            .unwrap_or_else(|| panic!("{begun}"))
            .to_owned();
        browser
    }

    /// What the driver answers, or `None` where it has failed.
    fn try_call(&self, method: &str, path: &str, body: &Value) -> Option<Value> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        let body = if method == "GET" {
            String::new()
        } else {
            body.to_string()
        };
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: \
                {length}"
        );
        write!(stream, "{head}\r\n\r\n{body}").ok()?;
        let mut answer = BufReader::new(stream);
        let mut length = 0;
        loop {
            let mut line = String::new();
            answer.read_line(&mut line).ok()?;
            match line.trim().to_lowercase().split_once(':') {
                Some(("content-length", value)) => length = value.trim().parse().ok()?,
                _ if line.trim().is_empty() => break,
                _ => {}
            }
        }
        let mut text = vec![0; length];
        answer.read_exact(&mut text).ok()?;
        let answer: Value = serde_json::from_slice(&text).ok()?;
        Some(answer["value"].clone())
    }

    #[track_caller]
    fn call(&self, method: &str, path: &str, body: &Value) -> Value {
        let answer = self.try_call(method, &format!("/session/{}{path}", self.session), body);
        let answer = answer.expect("the driver answers");
        assert!(answer.get("error").is_none(), "{method} {path}: {answer}");
        answer
    }

    /// Goes to a page of the console that listens there.
    pub(super) fn go(&self, address: &str, path: &str) {
        self.call(
            "POST",
            "/url",
            &json!({ "url": format!("http://{address}{path}") }),
        );
    }

    /// The value of an expression in the page.
    #[track_caller]
    pub(super) fn value(&self, expression: &str) -> Value {
        self.call(
            "POST",
            "/execute/sync",
            &json!({ "script": format!("return {expression}"), "args": [] }),
        )
    }

    /// Waits until an expression is true in the page.
    #[track_caller]
    pub(super) fn until(&self, expression: &str) {
        let began = Instant::now();
        while self.value(expression) != json!(true) {
            if began.elapsed() > PATIENCE {
                panic!(
                    "it does not become so: {expression}\n{}",
                    self.value("document.body.innerText")
                );
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Types into what has the focus; `\u{e007}` is Enter.
    pub(super) fn keys(&self, text: &str) {
        let keys = text
            .chars()
            .flat_map(|key| ["keyDown", "keyUp"].map(|kind| json!({ "type": kind, "value": key })));
        let keys: Vec<_> = keys.collect();
        let actions = json!({ "actions": [{ "type": "key", "id": "keys", "actions": keys }] });
        self.call("POST", "/actions", &actions);
    }

    pub(super) fn resize(&self, width: u32, height: u32) {
        self.call(
            "POST",
            "/window/rect",
            &json!({ "width": width, "height": height }),
        );
    }

    /// What the browser complained about: what a policy forbids, and errors of the script.
    pub(super) fn complaints(&self) -> Vec<String> {
        let log = self.call("POST", "/se/log", &json!({ "type": "browser" }));
        let lines = log
            .as_array()
            .into_iter()
            .flatten()
            .map(|line| line["message"].to_string());
        // A connection that ends with its page is reported as an error, too, and so is a server
        // that is killed.
        lines.filter(|line| !line.contains("net::ERR_")).collect()
    }
}
