//! What the console refuses, and what it never shows.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;

use crate::support::World;

use super::client::Console;

const PAGES: [&str; 9] = [
    "/shards",
    "/shards?by=findings&kind=key&q=%3Cscript%3Ealert(1)%3C/script%3E",
    "/shards/0",
    "/hosts",
    "/moves",
    "/balance",
    "/findings",
    "/migrations",
    "/ids?q=%22%3E%3Cscript%3Ealert(1)%3C/script%3E",
];

/// Texts that anyone with write access to a database can choose: errors, holders, names of slots
/// and of migrations.
#[tokio::test(flavor = "multi_thread")]
async fn hostile_texts_stay_text() {
    let world = World::new(&[18, older!()], 8).await;
    world
        .run(&["move", "0", "--to", "db2", "--yes"])
        .await
        .ended(0);
    let owner = world.servers.superuser(0).await;
    let hostile = "'\"><script>alert(1)</script><img src=x onerror=alert(2)> ' || chr(8238) || ' \
        `a` </section>'";
    for sql in [
        format!(
            "UPDATE pgshard.move SET last_error = {hostile}, holder = {hostile}, phase = 'claimed'"
        ),
        format!(
            "INSERT INTO pgshard.migration_attempt (shard_id, name, checksum, begun, message)
             VALUES (1, {hostile}, 'x', true, {hostile})"
        ),
        format!(
            "UPDATE pgshard.shard_migration SET name = {hostile} WHERE shard_id = 2 AND name LIKE \
                '0001%'"
        ),
    ] {
        owner
            .batch_execute(&sql)
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }
    let console = Console::start(&world, &["--floor-s", "1"]);
    let id = console.get("/api/moves").json()["moves"][0]["move"]
        .as_str()
        .unwrap()
        .to_owned();
    let one = format!("/moves/{id}");
    let more = [
        one.as_str(),
        "/shards/1",
        "/shards/2",
        "/moves/%22%3E%3Cscript%3Ealert(1)%3C/script%3E",
        "/%3Cscript%3E",
    ];
    let mut shown = 0;
    for path in PAGES.iter().copied().chain(more) {
        let page = console.get(path).body;
        shown += page.matches("&lt;script&gt;alert(1)").count();
        for bad in [
            "<script>",
            "<img",
            "\u{202e}",
            "<section><",
            "alert(1)</section>",
        ] {
            assert!(!page.contains(bad), "{path} has {bad:?}: {page}");
        }
    }
    assert!(shown > 5, "they are shown: {shown}");
    // In what a page that follows is sent, too.
    let parts = console.follow(&one).next_parts().to_string();
    assert!(
        parts.contains("&lt;script&gt;alert(1)") && !parts.contains("<script>"),
        "{parts}"
    );
}

/// No password is in a page, in JSON or in a metric: not even that of a host that refuses it, or
/// does not answer.
#[tokio::test(flavor = "multi_thread")]
async fn no_secret_is_told() {
    let world = World::new(&[18, older!()], 8).await;
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let text = fs::read_to_string(&world.config.path)
        .unwrap()
        .replace("app@127", "app:hunter2@127");
    let mute =
        format!("[hosts.mute]\nurl = \"postgres://app:hunter3@127.0.0.1:{port}/app\"\n\n[map]");
    let config = world.write("secret.toml", &text.replacen("[map]", &mute, 1));
    assert!(fs::read_to_string(&config).unwrap().contains("hunter2"));
    let console = Console::on(&config, &["--floor-s", "1", "--timeout-s", "2"]);
    console.seen("/hosts", "no answer");
    let json = [
        "/api/check",
        "/api/hosts",
        "/api/map",
        "/api/moves",
        "/api/migrations",
        "/api/rebalance",
        "/metrics",
    ];
    for path in PAGES.iter().chain(&json) {
        let answer = console.get(path);
        assert!(!answer.body.contains("hunter"), "{path}: {}", answer.body);
    }
}

/// It responds only to requests for one of its own names, and only to reads.
#[tokio::test(flavor = "multi_thread")]
async fn who_may_ask_what() {
    let world = World::new(&[18], 4).await;
    let console = Console::start(&world, &["--name", "shards.example"]);
    let port = console.address.rsplit_once(':').unwrap().1;
    for (host, status) in [
        (format!("localhost:{port}"), 200),
        (format!("shards.example:{port}"), 200),
        ("10.9.8.7".to_owned(), 200),
        ("evil.example".to_owned(), 421),
        (format!("127.0.0.1.evil.example:{port}"), 421),
    ] {
        for path in [
            "/shards",
            "/api/map",
            "/metrics",
            "/console.js",
            "/events?page=/nowhere",
        ] {
            let answer = console.ask("GET", path, &[("Host", &host)]);
            let expected = if path.starts_with("/events") && status == 200 {
                404
            } else {
                status
            };
            assert_eq!(answer.status, expected, "{host} {path}");
            let policy = answer.header("content-security-policy").unwrap();
            assert!(
                policy.contains("default-src 'none'") && !policy.contains("unsafe"),
                "{policy}"
            );
            assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
            assert_eq!(answer.header("access-control-allow-origin"), None);
        }
    }
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"] {
        for path in ["/shards", "/api/map", "/metrics", "/nowhere"] {
            assert_eq!(
                console.ask(method, path, &[]).status,
                405,
                "{method} {path}"
            );
        }
    }
    assert_eq!(console.ask("HEAD", "/shards", &[]).body, "");
}

/// Where others can reach it, it wants a token: a file that no other user can read, and nothing to
/// guess.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_demanded_where_others_connect() {
    let world = World::new(&[18], 4).await;
    let refused = |args: &'static [&'static str], said: &'static str| {
        let world = &world;
        async move {
            let run = world.text(args).await;
            assert!(
                run.ended(2).stderr.contains(said),
                "{args:?}: {}",
                run.stderr
            );
        }
    };
    refused(&["console", "--listen", "0.0.0.0:0"], "that needs a token").await;
    refused(
        &["console", "--token-file", "/nowhere/token"],
        "cannot read",
    )
    .await;
    let token = world.write("token", "correct-horse-battery\n");
    fs::set_permissions(&token, fs::Permissions::from_mode(0o644)).unwrap();
    let path = token.to_str().unwrap();
    let run = world.text(&["console", "--token-file", path]).await;
    assert!(
        run.ended(2).stderr.contains("can be read by others"),
        "{}",
        run.stderr
    );
    fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();
    let short = world.write("short", "hunter2\n");
    fs::set_permissions(&short, fs::Permissions::from_mode(0o600)).unwrap();
    let run = world
        .text(&["console", "--token-file", short.to_str().unwrap()])
        .await;
    assert!(
        run.ended(2).stderr.contains("has no token of 16"),
        "{}",
        run.stderr
    );

    let console = Console::start(&world, &["--token-file", path]);
    let ask = |header: Option<&str>| {
        let headers: Vec<(&str, &str)> = header
            .map(|value| ("Authorization", value))
            .into_iter()
            .collect();
        console.ask("GET", "/console.css", &headers)
    };
    let none = ask(None);
    assert_eq!(none.status, 401);
    assert!(
        none.header("www-authenticate")
            .unwrap()
            .starts_with("Basic ")
    );
    // pgshard:correct-horse-battery
    for right in [
        "Bearer correct-horse-battery",
        "Basic cGdzaGFyZDpjb3JyZWN0LWhvcnNlLWJhdHRlcnk=",
    ] {
        assert_eq!(ask(Some(right)).status, 200, "{right}");
    }
    for wrong in [
        "",
        "Bearer",
        "Bearer correct-horse-batter",
        "Basic cGdzaGFyZDpjb3JyZWN0",
        "correct-horse-battery",
    ] {
        assert_eq!(ask(Some(wrong)).status, 401, "{wrong}");
    }
    for path in [
        "/shards",
        "/api/map",
        "/metrics",
        "/events?page=/shards",
        "/nowhere",
    ] {
        let answer = console.get(path);
        assert_eq!(answer.status, 401, "{path}");
        assert!(!answer.body.contains("correct-horse"), "{path}");
    }
}
