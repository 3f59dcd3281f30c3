//! The pages in a real browser.

use std::collections::BTreeMap;

use pgshard::dev::StopMode;
use serde_json::json;

use crate::support::{Ran, World, Writers};

use super::client::Console;
use super::driver::Browser;

/// The shards in the panel of each host, as the grid has them.
const CELLS: &str = "Object.fromEntries([...document.querySelectorAll('.grid[data-host]')]
    .map((grid) => [grid.dataset.host, [grid.dataset.shards, grid.children.length]]))";

/// Search, keys and clicks land on the right shard; the grid has what the map has; a server that is
/// killed turns grey and comes back, without the page being loaded again.
#[tokio::test(flavor = "multi_thread")]
async fn the_grid_in_a_browser() {
    let world = World::new(&[18, older!(), 18], 48).await;
    let console = Console::start(&world, &["--floor-s", "1", "--timeout-s", "2"]);
    let browser = Browser::open(1280, 900);
    browser.go(&console.address, "/");
    browser.until("document.querySelectorAll('.grid[data-host] i').length === 48");
    world
        .run(&["move", "3", "--to", "db3", "--yes"])
        .await
        .ended(0);
    let map = world.run(&["map", "show"]).await.last();
    let shard = |host: &str| map["hosts"][host]["count"].clone();
    browser.until(&format!(
        "document.querySelector('[data-host=db3]').children.length === {}",
        shard("db3")
    ));
    let cells: BTreeMap<String, (String, u64)> =
        serde_json::from_value(browser.value(CELLS)).unwrap();
    for host in ["db1", "db2", "db3"] {
        let ranges = map["hosts"][host]["ranges"]
            .as_str()
            .unwrap()
            .replace("@2", "");
        assert_eq!(
            cells[host],
            (ranges, shard(host).as_u64().unwrap()),
            "{host}"
        );
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
        "(() => { const cell = document.querySelector('.grid[data-host] i.me'), grid = \
            cell.parentElement;
            return [grid.dataset.host, shardsOf(grid)[indexOf(grid, cell)]]; })()",
    );
    assert_eq!(found, json!([located["host"], located["shard"]]));

    // By keys: from the first shard of db2 to the third.
    browser.value("document.querySelector('[data-host=db2]').focus()");
    browser.keys("\u{e014}\u{e014}");
    let about = browser.value("document.getElementById('about').textContent");
    assert!(
        about.as_str().unwrap().starts_with("shard 18 on db2"),
        "{about}"
    );
    browser.keys("\u{e007}");
    browser.until(
        "location.pathname === '/shards/18' && document.body.innerText.includes('What hosts say')",
    );
    browser.go(&console.address, "/shards");
    browser.value("document.querySelector('[data-host=db3]').children[0].click()");
    browser.until("location.pathname === '/shards/3'");

    browser.go(&console.address, "/shards");
    browser.until("document.getElementById('connection').textContent === 'Live.'");
    browser.value("window.same = true");
    let server = world.servers.server(2);
    server.stop(StopMode::Immediate).unwrap();
    browser.until("document.querySelectorAll('.panel.silent [data-host=db3]').length === 1");
    assert_eq!(
        browser.value("document.querySelectorAll('.panel.silent').length"),
        1
    );
    server.start().unwrap();
    browser.until("document.querySelectorAll('.panel.silent').length === 0");
    assert_eq!(
        browser.value("window.same"),
        true,
        "the page was never loaded again"
    );
    assert_eq!(browser.complaints(), [""; 0]);
}

/// A page that was opened before the first look has ended has its search, too, once there is
/// something to search.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_was_too_early() {
    let world = World::new(&[18, older!()], 8).await;
    // A host that takes connections and sends nothing: the look ends later than a page waits.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let text = std::fs::read_to_string(&world.config.path).unwrap();
    let mute = format!(
        "[hosts.mute]\nurl = \"postgres://app@{}/app\"\n\n[map]",
        silent.local_addr().unwrap()
    );
    let config = world.write("early.toml", &text.replacen("[map]", &mute, 1));
    let console = Console::on(&config, &["--floor-s", "1", "--timeout-s", "15"]);
    let browser = Browser::open(1280, 900);
    browser.go(&console.address, "/shards");
    assert_eq!(
        browser.value("document.querySelectorAll('form.search').length"),
        0
    );
    browser.until("document.querySelectorAll('.grid[data-host] i').length === 8");
    browser.until("document.querySelectorAll('form.search').length === 1");
}

/// A move under writers is seen to begin and to end; while it is under way every page is without a
/// complaint of the browser, and as wide as the narrowest screen.
#[tokio::test(flavor = "multi_thread")]
async fn a_move_in_a_browser() {
    let world = World::new(&[18, older!(), 18], 24).await;
    let writers = Writers::start(&world, 2).await;
    let console = Console::start(&world, &["--floor-s", "1"]);
    let browser = Browser::open(1280, 900);
    browser.go(&console.address, "/moves");
    browser.until("document.body.innerText.includes('0 moves open')");
    let moving = world
        .command(
            &[
                "move", "0-2", "--to", "db3", "--mode", "online", "--hold", "--yes",
            ],
            &[],
        )
        .spawn();
    browser.until(
        "document.body.innerText.includes('at work:') && \
        document.querySelectorAll('.bar').length >= 3",
    );
    let id = browser.value("document.querySelector('article h2 a').getAttribute('title')");
    let id = id.as_str().unwrap();

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
            browser.go(&console.address, path);
            browser.until("Number(document.body.dataset.fresh) > 0");
            let wide = browser.value(
                "document.documentElement.scrollWidth - document.documentElement.clientWidth",
            );
            assert_eq!(wide, 0, "{path} at {width}");
        }
        assert_eq!(browser.complaints(), [""; 0], "{path}");
    }
    browser.resize(1280, 900);
    browser.go(&console.address, "/hosts");
    browser.until(
        "document.body.innerText.includes('of a move, app') && \
            document.body.innerText.includes('pgshard mover')",
    );
    browser.go(&console.address, "/moves");

    world.run(&["moves", "continue", id]).await.ended(0);
    Ran::of(moving.unwrap()).await.ended(0);
    browser.until("document.body.innerText.includes('How long shards were closed')");
    browser.until("document.querySelectorAll('.badge.good').length > 0");
    writers.stop().await.flawless();
    browser.go(&console.address, &one);
    browser.until("document.body.innerText.includes('while it was closed')");
    assert_eq!(browser.complaints(), [""; 0]);
}

/// When a part of a page is replaced, what had the focus has it again, and what was open is open.
/// No two elements of a page have one ID.
#[tokio::test(flavor = "multi_thread")]
async fn the_focus_stays_where_it_was() {
    let world = World::new(&[18, older!()], 16).await;
    let console = Console::start(&world, &["--floor-s", "1"]);
    let browser = Browser::open(1280, 900);
    browser.go(&console.address, "/hosts");
    browser.until("document.querySelectorAll('details summary').length === 2");
    browser.value(
        "(() => { const details = document.getElementById('settings-db2');
            details.open = details.isFormer = true; details.firstElementChild.focus(); })()",
    );
    browser.until("!document.getElementById('settings-db2').isFormer");
    let focus = "document.activeElement.tagName + ' of ' + document.activeElement.parentElement.id";
    assert_eq!(browser.value(focus), "SUMMARY of settings-db2");
    let open = "[...document.querySelectorAll('details[open]')].map((one) => one.id).join()";
    assert_eq!(browser.value(open), "settings-db2");
    let twice = "[...document.querySelectorAll('[id]')].map((one) => one.id)
        .filter((id, at, all) => all.indexOf(id) !== at).join()";
    for path in ["/hosts", "/shards", "/moves", "/findings", "/migrations"] {
        browser.go(&console.address, path);
        browser.until("Number(document.body.dataset.fresh) > 0");
        assert_eq!(browser.value(twice), "", "{path}");
    }
}
