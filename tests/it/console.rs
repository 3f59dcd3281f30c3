//! `pgshard console`: its pages and its JSON against real servers, as a client without a browser
//! sees them, and in a browser.

mod browser;
pub(crate) mod client;
mod driver;
mod flooded;
mod monitor;
mod safe;

use std::fs;
use std::time::Duration;

use pgshard::dev::StopMode;
use serde_json::Value;

use crate::support::{World, contract};
use client::Console;
use driver::Browser;

/// What `/api/…` has is what the command prints, and has the same schema.
#[tokio::test(flavor = "multi_thread")]
async fn json_is_what_the_commands_print() {
    let world = World::new(&[18, older!()], 16).await;
    world
        .run(&["move", "0-1", "--to", "db2", "--yes"])
        .await
        .ended(0);
    let console = Console::start(&world, &["--floor-s", "1"]);
    for (path, args) in [
        ("/api/map", &["map", "show"][..]),
        ("/api/moves", &["moves", "list", "--all"]),
        ("/api/migrations", &["migrate", "status"]),
        ("/api/check", &["check"]),
        ("/api/locate?key=31341", &["locate", "--key", "31341"]),
        (
            "/api/ids/3217563542970761261",
            &["id", "decode", "3217563542970761261"],
        ),
    ] {
        let answer = console.get(path);
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        contract::keeps(args, &answer.body, "");
        let at = answer
            .header("last-modified")
            .unwrap_or_else(|| panic!("{path} has no time"));
        let at = jiff::fmt::rfc2822::parse(at).unwrap().timestamp();
        let age = jiff::Timestamp::now().duration_since(at).as_secs();
        assert!((0..60).contains(&age), "{path}: {age} s old");
        assert_eq!(answer.json(), world.run(args).await.last(), "{path}");
    }
    // How full a host is changes from one moment to the next.
    for (path, args) in [
        ("/api/hosts", &["host", "list"][..]),
        ("/api/rebalance?by=count", &["rebalance"]),
    ] {
        contract::keeps(args, &console.get(path).body, "");
    }
    let id = console.get("/api/moves").json()["moves"][0]["move"]
        .as_str()
        .unwrap()
        .to_owned();
    let shown = console.get(&format!("/api/moves/{id}"));
    contract::keeps(&["moves", "show"], &shown.body, "");
    assert_eq!(
        shown.json(),
        world.run(&["moves", "show", &id]).await.last()
    );
    // The beginning of its ID is enough, as for the command.
    assert_eq!(
        console.get(&format!("/api/moves/{}", &id[..8])).json(),
        shown.json()
    );
    assert!(
        console
            .get(&format!("/moves/{}", &id[..8]))
            .body
            .contains(&id)
    );
    for (path, says) in [
        ("/api/moves/abc", "too little of an ID"),
        ("/api/moves/ffffffff", "no move's ID begins"),
    ] {
        assert!(
            console.get(path).json()["message"]
                .as_str()
                .unwrap()
                .contains(says),
            "{path}"
        );
    }
    for (path, status) in [
        ("/api/moves/x", 404),
        ("/api/other", 404),
        ("/api/rebalance?by=x", 400),
        ("/api/ids/x", 400),
    ] {
        let refused = console.get(path);
        assert_eq!(refused.status, status, "{path}");
        contract::keeps(&["check"], "", &refused.body);
    }
    let metrics = console.get("/metrics").body;
    assert!(
        metrics.contains("pgshard_host_up{host=\"db1\"} 1\n"),
        "{metrics}"
    );
    assert!(
        metrics.contains("pgshard_move_shards{phase=\"kept\"} 2\n"),
        "{metrics}"
    );
}

/// The grid has a cell for each shard, in the panel of the host that the map names.
#[tokio::test(flavor = "multi_thread")]
async fn the_grid_agrees_with_the_map() {
    let world = World::new(&[18, older!(), 18], 48).await;
    world
        .run(&["move", "3", "--to", "db3", "--yes"])
        .await
        .ended(0);
    let console = Console::start(&world, &["--floor-s", "1"]);
    let map = world.run(&["map", "show"]).await.last();
    for by in ["host", "bytes", "writes", "epoch", "moved", "findings"] {
        let page = console.seen(&format!("/shards?by={by}"), "data-shards");
        for (host, shown) in map["hosts"].as_object().unwrap() {
            let panel = page
                .split(&format!("id=\"panel-{host}\""))
                .nth(1)
                .unwrap()
                .split("</section>")
                .next()
                .unwrap();
            let ranges = panel
                .split("data-shards=\"")
                .nth(1)
                .unwrap()
                .split('"')
                .next()
                .unwrap();
            assert_eq!(ranges, plain(&shown["ranges"]), "{by} {host}");
            assert_eq!(
                panel.matches("<i").count() as u64,
                shown["count"].as_u64().unwrap(),
                "{by} {host}"
            );
        }
    }
    // Moved once: the epoch is 2, and the move is a minute old at most.
    let marked = |by: &str| console.get(&format!("/shards?by={by}&kind=shard&q=3")).body;
    assert!(
        marked("epoch").contains("<i class=\"l1 me\">"),
        "{}",
        marked("epoch")
    );
    assert!(
        marked("moved").contains("<i class=\"l4 me\">"),
        "{}",
        marked("moved")
    );
    let key = console.get("/shards?kind=key&q=51").body;
    assert!(
        key.contains("/shards/3\"") && key.contains("shard_0003"),
        "51 mod 48 is 3: {key}"
    );
    for (kind, text) in [("shard", "48"), ("id", "x"), ("shard", "-1")] {
        let refused = console.get(&format!("/shards?kind={kind}&q={text}")).body;
        assert!(
            refused.contains("class=\"card bad\"") && !refused.contains(" me\""),
            "{kind} {text}"
        );
    }
    let shard = console.get("/shards/3").body;
    assert!(
        shard.contains("serves it")
            && shard.contains("it left")
            && shard.contains("pgshard psql --shard 3")
    );
    assert_eq!(
        console
            .get("/shards/48")
            .body
            .matches("There is no such shard")
            .count(),
        1
    );
}

/// The ranges of a map without epochs.
fn plain(ranges: &Value) -> String {
    let ranges = ranges
        .as_str()
        .unwrap()
        .split(',')
        .map(|range| range.split('@').next().unwrap().trim());
    pgshard::map::print_shards(
        pgshard::map::parse_shards(
            &ranges.collect::<Vec<_>>().join(","),
            pgshard::ShardCount::new(48).unwrap(),
        )
        .unwrap(),
    )
}

/// Where the store has the map's history, each version of it can be seen.
#[tokio::test(flavor = "multi_thread")]
async fn the_map_of_another_time() {
    let world = World::new(&[18, older!()], 8).await;
    assert!(
        !Console::start(&world, &[])
            .seen("/shards", "map version 1")
            .contains("type=\"range\"")
    );
    let text = fs::read_to_string(&world.config.path).unwrap();
    let head = &text[..text.find("[map]").unwrap()];
    let fleet = format!(
        "{head}[map]\nstore = \"postgres\"\nurl = \"{}\"\n",
        world.servers.server(0).url()
    );
    let fleet = world.write("fleet.toml", &fleet);
    let path = fleet.to_str().unwrap();
    world
        .run(&[
            "--config",
            path,
            "map",
            "import",
            world.config.path.to_str().unwrap(),
        ])
        .await
        .ended(0);
    world
        .run(&["--config", path, "move", "0", "--to", "db2", "--yes"])
        .await
        .ended(0);
    let console = Console::on(&fleet, &["--floor-s", "1"]);
    let now = console.seen("/shards", "type=\"range\"");
    let history = console.get("/api/map/history");
    contract::keeps(&["map", "history"], &history.body, "");
    assert_eq!(
        history.json(),
        world
            .run(&["--config", path, "map", "history"])
            .await
            .last()
    );
    let versions = history.json()["versions"].as_array().unwrap().clone();
    let number = |at: usize| versions[at]["version"].as_u64().unwrap();
    let (newest, oldest) = (number(0), number(versions.len() - 1));
    assert!(
        now.contains(&format!("min=\"{oldest}\" max=\"{newest}\"")),
        "{now}"
    );
    assert!(
        now.contains("data-shards=\"0, 4-7\"") && !now.contains("not the map of today"),
        "{now}"
    );
    let then = console
        .get(&format!("/shards?by=epoch&version={oldest}"))
        .body;
    assert!(
        then.contains("data-shards=\"4-7\"") && then.contains("not the map of today"),
        "{then}"
    );
    assert!(
        !then.contains("<i class=\"l1\"></i>"),
        "it had never moved then: {then}"
    );

    // By the slider, without loading the page again.
    let browser = Browser::open(1280, 900);
    browser.go(&console.address, "/shards");
    browser.until("document.querySelector('[data-host=db2]').children.length === 5");
    browser.value(
        "(() => { const range = document.getElementById('version'); range.value = range.min;
            range.dispatchEvent(new Event('input', { bubbles: true })); return range.value; })()",
    );
    browser.until("document.querySelector('[data-host=db2]').children.length === 4");
    browser.until("document.body.innerText.includes('not the map of today')");
    assert_eq!(browser.complaints(), [""; 0]);
}

/// A map that cannot be read is shown as it was, and no remedy is to make it again; without one the
/// reason is shown.
#[tokio::test(flavor = "multi_thread")]
async fn a_map_out_of_reach() {
    let world = World::new(&[18, older!(), 18], 12).await;
    let text = fs::read_to_string(&world.config.path).unwrap();
    let head = &text[..text.find("[map]").unwrap()];
    let fleet = format!(
        "{head}[map]\nstore = \"postgres\"\nurl = \"{}\"\n",
        world.servers.server(2).url()
    );
    let fleet = world.write("fleet.toml", &fleet);
    let path = fleet.to_str().unwrap();
    world
        .run(&[
            "--config",
            path,
            "map",
            "import",
            world.config.path.to_str().unwrap(),
        ])
        .await
        .ended(0);
    let args = ["--floor-s", "1", "--timeout-s", "2"];
    let console = Console::on(&fleet, &args);
    console.seen("/shards", "data-shards=\"4-7\"");
    let server = world.servers.server(2);
    server.stop(StopMode::Immediate).unwrap();
    let then = console.seen("/shards", "the map cannot be read");
    assert!(
        then.contains("data-shards=\"4-7\"") && then.contains("This is how it was at"),
        "{then}"
    );
    let shard = console.get("/shards/5").body;
    assert!(
        shard.contains("as it was read at") && shard.contains("serves it"),
        "{shard}"
    );
    // One that has never read it. The hosts that answer are shown all the same.
    let other = Console::on(&fleet, &args);
    let none = other.seen("/shards", "map_unreachable");
    assert!(
        none.contains("The map cannot be read") && !none.contains("data-shards"),
        "{none}"
    );
    assert_eq!(
        other
            .get("/hosts")
            .body
            .matches("badge good\">answers")
            .count(),
        2
    );
    for console in [&console, &other] {
        let map = console.get("/api/map");
        assert_eq!(map.status, 503);
        contract::keeps(&["check"], "", &map.body);
        let findings = console.get("/api/check").json()["findings"].clone();
        assert!(
            findings[0]["code"] == "map_unreachable"
                && !findings.to_string().contains("map rebuild"),
            "{findings}"
        );
    }
    server.start().unwrap();
    console.until("/shards", |page| {
        page.contains("data-shards=\"4-7\"") && !page.contains("cannot be read")
    });
    other.seen("/shards", "data-shards=\"4-7\"");
}

/// Every page shows what there is, and nothing in it needs more than its policy allows.
#[tokio::test(flavor = "multi_thread")]
async fn every_page_says_what_exists() {
    let world = World::new(&[18, older!()], 8).await;
    world
        .run(&["move", "0-1", "--to", "db2", "--yes"])
        .await
        .ended(0);
    let console = Console::start(&world, &["--floor-s", "1"]);
    let id = console.get("/api/moves").json()["moves"][0]["move"]
        .as_str()
        .unwrap()
        .to_owned();
    for (path, says) in [
        ("/shards", "map version 3"),
        ("/shards/0", "Way back"),
        ("/hosts", "Settings that matter"),
        ("/moves", "How long shards were closed"),
        (&format!("/moves/{id}"), "while it was closed"),
        ("/balance?by=count", "Hosts, before and after"),
        ("/balance", "pgshard rebalance --by bytes --plan"),
        ("/findings", "pgshard check --ddl"),
        ("/migrations", "0001_tables"),
        ("/ids?q=3217563542970761261", "41 bits of time"),
        ("/ids?q=x", "is no ID"),
        (
            "/ids?scheme=uuid7&q=0190163d-8694-739b-aea5-966c26f8ad91",
            "time",
        ),
    ] {
        let page = console.get(path);
        assert_eq!(page.status, 200, "{path}");
        let text = page.body.to_lowercase();
        assert!(
            text.contains(&says.to_lowercase()),
            "{path} says {says:?}: {}",
            page.body
        );
        assert!(
            !text.contains(" style=") && !text.contains(" onclick") && !text.contains("<style"),
            "{path}"
        );
        assert_eq!(text.matches("<script").count(), 1, "{path}");
        assert!(text.contains("<script src=\"/console.js?"), "{path}");
    }
    assert_eq!(console.get("/").header("location"), Some("/shards"));
    assert_eq!(console.get("/moves/none").status, 404);
    assert_eq!(console.get("/nowhere").status, 404);
    for (path, kind) in [
        ("/console.js", "text/javascript"),
        ("/console.css", "text/css"),
        ("/console.svg", "image/svg"),
    ] {
        assert!(
            console
                .get(path)
                .header("content-type")
                .unwrap()
                .starts_with(kind),
            "{path}"
        );
    }
}

/// A host that does not answer is shown as such, next to those that do; and as soon as it answers
/// again, as it was.
#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_goes_and_comes_back() {
    let world = World::new(&[18, older!()], 8).await;
    let console = Console::start(&world, &["--floor-s", "1", "--timeout-s", "2"]);
    let answers = |page: &str| page.matches("badge good\">answers").count();
    console.until("/hosts", |page| answers(page) == 2);
    let server = world.servers.server(1);
    server.stop(StopMode::Immediate).unwrap();
    console.until("/hosts", |page| {
        answers(page) == 1 && page.contains("It answered last at")
    });
    let shards = console.get("/shards").body;
    assert_eq!(
        shards.matches("class=\"panel silent\"").count(),
        1,
        "{shards}"
    );
    assert!(shards.contains("no answer from db2"), "{shards}");
    assert!(
        console
            .get("/balance")
            .body
            .contains("host db2 does not answer")
    );
    assert!(console.get("/api/hosts").json()["hosts"]["db2"]["error"].is_string());
    assert!(
        console
            .get("/metrics")
            .body
            .contains("pgshard_host_up{host=\"db2\"} 0\n")
    );
    server.start().unwrap();
    console.until("/hosts", |page| answers(page) == 2);
    assert!(
        !console
            .get("/shards")
            .body
            .contains("class=\"panel silent\"")
    );
}

/// A client that follows a page gets the parts that have changed; without any client the hosts are
/// left alone.
#[tokio::test(flavor = "multi_thread")]
async fn followed_and_left_alone() {
    let world = World::new(&[18, older!()], 8).await;
    let console = Console::start(&world, &["--floor-s", "1"]);
    let mut events = console.follow("/shards");
    let panel =
        |parts: &Value, host: &str| parts.get(format!("panel-{host}")).map(ToString::to_string);
    // Before the first look there is no grid.
    let first = events.until(|parts| panel(parts, "db1").is_some());
    assert!(
        first["panel-db1"]
            .as_str()
            .unwrap()
            .contains("data-shards=\"0-3\""),
        "{first}"
    );
    world
        .run(&["move", "0", "--to", "db2", "--yes"])
        .await
        .ended(0);
    let moved =
        events.until(|parts| panel(parts, "db2").is_some_and(|panel| panel.contains("0, 4-7")));
    assert!(
        moved["panel-db1"]
            .as_str()
            .unwrap()
            .contains("data-shards=\"1-3\""),
        "{moved}"
    );
    assert!(moved.get("legend").is_none(), "it is what it was: {moved}");
    drop(events);

    // Each look opens sessions. It takes a moment until the end of a viewer is noticed.
    let client = world.servers.app(0).await;
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'pgshard console%'
        OR backend_start > now() AND pid <> pg_backend_pid()";
    let sessions = "SELECT coalesce(sum(sessions), 0)::bigint FROM pg_stat_database";
    let count = async || -> i64 {
        client.query_one(sql, &[]).await.unwrap();
        client.query_one(sessions, &[]).await.unwrap().get(0)
    };
    let mut before = count().await;
    for round in 0.. {
        tokio::time::sleep(Duration::from_secs(4)).await;
        let now = count().await;
        if now == before {
            break;
        }
        assert!(round < 20, "the hosts are asked while nobody looks");
        before = now;
    }
    console.get("/hosts");
    let mut again = console.follow("/hosts");
    again.next_parts();
    assert!(count().await > before, "somebody looks again");
}
