//! The pages in a real browser: Chromium, by its driver.
//!
//! `script/setup` installs both where it can. Without them these tests fail, and say so.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use pgshard::dev::StopMode;
use serde_json::{Value, json};

use crate::support::{Ran, World, Writers};

use super::client::Console;

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
    pub(super) fn open(width: u32, height: u32) -> Browser {
        let mut driver = Command::new("chromedriver")
            .args(["--port=0"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("chromedriver is there: run script/setup as root, or install chromium and chromium-driver");
        let mut said = BufReader::new(driver.stdout.take().unwrap());
        let port = loop {
            let mut line = String::new();
            assert!(said.read_line(&mut line).unwrap() > 0, "chromedriver says on which port it listens");
            if let Some((_, port)) = line.split_once("started successfully on port ") {
                break port.trim().trim_end_matches('.').parse().unwrap();
            }
        };
        // Nobody reads the rest: a full pipe would stop it.
        std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
        let mut browser = Browser { driver, port, session: String::new() };
        let arguments = [
            "--headless=new".to_owned(),
            "--no-sandbox".to_owned(),
            "--disable-gpu".to_owned(),
            "--disable-dev-shm-usage".to_owned(),
            format!("--window-size={width},{height}"),
        ];
        let options = json!({ "args": arguments });
        let wanted = json!({ "goog:chromeOptions": options, "goog:loggingPrefs": { "browser": "ALL" } });
        let capabilities = json!({ "capabilities": { "alwaysMatch": wanted } });
        let begun = browser.try_call("POST", "/session", &capabilities).expect("a browser starts");
        browser.session = begun["sessionId"].as_str().unwrap_or_else(|| panic!("{begun}")).to_owned();
        browser
    }

    /// What the driver answers, or `None` where it has failed.
    fn try_call(&self, method: &str, path: &str, body: &Value) -> Option<Value> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        let body = if method == "GET" { String::new() } else { body.to_string() };
        let length = body.len();
        let head =
            format!("{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: {length}");
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

    pub(super) fn go(&self, console: &Console, path: &str) {
        self.call("POST", "/url", &json!({ "url": format!("http://{}{path}", console.address) }));
    }

    /// The value of an expression in the page.
    #[track_caller]
    pub(super) fn value(&self, expression: &str) -> Value {
        self.call("POST", "/execute/sync", &json!({ "script": format!("return {expression}"), "args": [] }))
    }

    /// Waits until an expression is true in the page.
    #[track_caller]
    pub(super) fn until(&self, expression: &str) {
        let began = Instant::now();
        while self.value(expression) != json!(true) {
            if began.elapsed() > PATIENCE {
                panic!("it does not become so: {expression}\n{}", self.value("document.body.innerText"));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Types into what has the focus; `\u{e007}` is Enter.
    fn keys(&self, text: &str) {
        let keys = text.chars().flat_map(|key| ["keyDown", "keyUp"].map(|kind| json!({ "type": kind, "value": key })));
        let actions = json!({ "actions": [{ "type": "key", "id": "keys", "actions": keys.collect::<Vec<_>>() }] });
        self.call("POST", "/actions", &actions);
    }

    fn resize(&self, width: u32, height: u32) {
        self.call("POST", "/window/rect", &json!({ "width": width, "height": height }));
    }

    /// What the browser complained about: what a policy forbids, and errors of the script.
    pub(super) fn complaints(&self) -> Vec<String> {
        let log = self.call("POST", "/se/log", &json!({ "type": "browser" }));
        let lines = log.as_array().into_iter().flatten().map(|line| line["message"].to_string());
        // A connection that ends with its page is told as an error, too, and so is a server that is killed.
        lines.filter(|line| !line.contains("net::ERR_")).collect()
    }
}

/// The shards in the panel of each host, as the grid has them.
const CELLS: &str = "Object.fromEntries([...document.querySelectorAll('.grid[data-host]')]
    .map((grid) => [grid.dataset.host, [grid.dataset.shards, grid.children.length]]))";

/// Search, keys and clicks land on the right shard; the grid has what the map has; a server that is killed turns grey
/// and comes back, without the page being loaded again.
#[tokio::test(flavor = "multi_thread")]
async fn the_grid_in_a_browser() {
    let world = World::new(&[18, older!(), 18], 48).await;
    let console = Console::start(&world, &["--floor-s", "1", "--timeout-s", "2"]);
    let browser = Browser::open(1280, 900);
    browser.go(&console, "/");
    browser.until("document.querySelectorAll('.grid[data-host] i').length === 48");
    world.run(&["move", "3", "--to", "db3", "--yes"]).await.ended(0);
    let map = world.run(&["map", "show"]).await.last();
    let shard = |host: &str| map["hosts"][host]["count"].clone();
    browser.until(&format!("document.querySelector('[data-host=db3]').children.length === {}", shard("db3")));
    let cells: BTreeMap<String, (String, u64)> = serde_json::from_value(browser.value(CELLS)).unwrap();
    for host in ["db1", "db2", "db3"] {
        let ranges = map["hosts"][host]["ranges"].as_str().unwrap().replace("@2", "");
        assert_eq!(cells[host], (ranges, shard(host).as_u64().unwrap()), "{host}");
    }

    let seen = "[...document.querySelectorAll('.grid[data-host] i')]
        .every((cell) => cell.offsetWidth * cell.offsetHeight > 200)";
    assert_eq!(browser.value(seen), true, "each cell can be seen");

    browser.keys("/");
    assert_eq!(browser.value("document.activeElement.name"), "q");
    browser.keys("31341\u{e007}");
    let located = world.run(&["locate", "--key", "31341"]).await.last();
    browser.until("document.querySelectorAll('.grid[data-host] i.me').length === 1");
    let found = browser.value(
        "(() => { const cell = document.querySelector('.grid[data-host] i.me'), grid = cell.parentElement;
            return [grid.dataset.host, shardsOf(grid)[indexOf(grid, cell)]]; })()",
    );
    assert_eq!(found, json!([located["host"], located["shard"]]));

    // By keys: from the first shard of db2 to the third.
    browser.value("document.querySelector('[data-host=db2]').focus()");
    browser.keys("\u{e014}\u{e014}");
    let about = browser.value("document.getElementById('about').textContent");
    assert!(about.as_str().unwrap().starts_with("shard 18 on db2"), "{about}");
    browser.keys("\u{e007}");
    browser.until("location.pathname === '/shards/18' && document.body.innerText.includes('What hosts say')");
    browser.go(&console, "/shards");
    browser.value("document.querySelector('[data-host=db3]').children[0].click()");
    browser.until("location.pathname === '/shards/3'");

    browser.go(&console, "/shards");
    browser.until("document.getElementById('connection').textContent === 'Live.'");
    browser.value("window.same = true");
    let server = world.servers.server(2);
    server.stop(StopMode::Immediate).unwrap();
    browser.until("document.querySelectorAll('.panel.silent [data-host=db3]').length === 1");
    assert_eq!(browser.value("document.querySelectorAll('.panel.silent').length"), 1);
    server.start().unwrap();
    browser.until("document.querySelectorAll('.panel.silent').length === 0");
    assert_eq!(browser.value("window.same"), true, "the page was never loaded again");
    assert_eq!(browser.complaints(), [""; 0]);
}

/// A move under writers is seen to begin and to end; every page is without a complaint of the browser, and as wide as
/// the narrowest screen.
#[tokio::test(flavor = "multi_thread")]
async fn a_move_in_a_browser() {
    let world = World::new(&[18, older!(), 18], 24).await;
    let writers = Writers::start(&world, 2).await;
    let console = Console::start(&world, &["--floor-s", "1"]);
    let browser = Browser::open(1280, 900);
    browser.go(&console, "/moves");
    browser.until("document.body.innerText.includes('0 moves open')");
    let moving = world.command(&["move", "0-2", "--to", "db3", "--mode", "online", "--hold", "--yes"], &[]).spawn();
    browser.until("document.body.innerText.includes('at work:') && document.querySelectorAll('.bar').length >= 3");
    let id = browser.value("document.querySelector('article h2 a').getAttribute('title')");
    let id = id.as_str().unwrap();
    world.run(&["moves", "continue", id]).await.ended(0);
    Ran::of(moving.unwrap()).await.ended(0);
    browser.until("document.body.innerText.includes('How long shards were closed')");
    browser.until("document.querySelectorAll('.badge.good').length > 0");
    writers.stop().await.flawless();
    assert_eq!(browser.complaints(), [""; 0]);

    let one = format!("/moves/{id}");
    for path in [
        "/shards",
        "/shards?by=bytes",
        "/shards/0",
        "/hosts",
        "/moves",
        &one,
        "/balance",
        "/findings",
        "/migrations",
        "/ids?q=1",
    ] {
        for width in [1280, 500] {
            browser.resize(width, 900);
            browser.go(&console, path);
            browser.until("Number(document.body.dataset.fresh) > 0");
            let wide = browser.value("document.documentElement.scrollWidth - document.documentElement.clientWidth");
            assert_eq!(wide, 0, "{path} at {width}");
        }
        assert_eq!(browser.complaints(), [""; 0], "{path}");
    }
}
