//! A role that only watches, with exactly what `pgshard rights --for monitor` prints: it sees what
//! the owner sees, writes nothing, and reads no row.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tokio_postgres::Client;

use super::client::{Console, get};
use crate::rights::{BEFORE, granted, older, on_all, plain};
use crate::support::{Ran, World, connect, lines, until};

/// What watching is: all commands that change nothing and read no row.
const COMMANDS: &[&[&str]] = &[
    &["check"],
    &["check", "--ddl"],
    &["map", "show"],
    &["map", "show", "--by", "bytes"],
    &["moves", "list"],
    &["moves", "list", "--all"],
    &["moves", "show", "MOVE"],
    &["migrate", "status"],
    &["host", "list"],
    &["rebalance", "--plan"],
    &["rebalance", "--plan", "--by", "bytes"],
    &["rebalance", "--plan", "--by", "writes", "--sample-s", "1"],
    &["tickets", "status"],
    &["workers", "status", "--host", "db1"],
    &["locate", "--key", "5"],
];

/// What the console has, by address.
const PATHS: &[&str] = &[
    "/api/map",
    "/api/check",
    "/api/moves",
    "/api/moves/MOVE",
    "/api/hosts",
    "/api/migrations",
    "/api/rebalance?by=count",
    "/api/rebalance?by=bytes",
    "/api/locate?key=5",
];

/// What differs from one moment to the next, for every role.
const PASSING: &[&str] = &[
    "bytes",
    "connections",
    "wal",
    "wal_kept_bytes",
    "lag_bytes",
    "lag_ms",
    "expires_in_ms",
    "left_ms",
    "writes",
    "writes_per_s",
];

/// The config with the role watch in its urls.
fn watching(world: &World) -> PathBuf {
    let text = std::fs::read_to_string(&world.config.path).unwrap();
    let text = ["//app@", "//keeper@"]
        .iter()
        .fold(text, |text, owner| text.replace(owner, "//watch@"));
    world.write("watch.toml", &text)
}

/// Without what passes, and without the one thing that only the owner sees.
fn lasting(mut value: Value) -> Value {
    match &mut value {
        Value::Object(fields) => {
            fields.retain(|name, _| !PASSING.contains(&name.as_str()));
            fields
                .values_mut()
                .for_each(|field| *field = lasting(field.take()));
        }
        Value::Array(items) => {
            items.retain(|item| item["code"] != "ids_unread");
            items
                .iter_mut()
                .for_each(|item| *item = lasting(item.take()));
        }
        _ => {}
    }
    value
}

async fn watched(world: &World, args: &[&str]) -> Ran {
    let config = watching(world);
    let all: Vec<&str> = ["--config", config.to_str().unwrap()]
        .into_iter()
        .chain(args.iter().copied())
        .collect();
    world.run(&all).await
}

/// As a role, in the database of a plain world's first host.
async fn as_role(world: &World, role: &str) -> Client {
    let url = world.servers.server(0).superuser_url();
    let (server, _) = url.rsplit_once('/').unwrap();
    connect(&format!(
        "{}/plain",
        server.replace("//postgres@", &format!("//{role}@"))
    ))
    .await
}

/// A cluster of keeper's with tickets, worker numbers, a move that has ended, and one that a living
/// mover holds before its fence; and its ID. The role watch may watch.
async fn at_work(version: u32) -> (World, tokio::process::Child, String) {
    let world = plain(version).await;
    granted(&world, "mover", "keeper").await;
    for args in [
        &["bootstrap"][..],
        &["tickets", "create", "users", "--hosts", "db1,db2"],
        &["workers", "install", "--host", "db1", "--first"],
        &["move", "0", "--to", "db2", "--yes"],
    ] {
        world.run(args).await.ended(0);
    }
    granted(&world, "monitor", "watch").await;
    let args = [
        "move", "1", "--to", "db2", "--yes", "--mode", "online", "--hold",
    ];
    let mover = world.command(&args, &[]).spawn().unwrap();
    let keeper = as_role(&world, "keeper").await;
    until(
        &keeper,
        "SELECT EXISTS (SELECT FROM pgshard.move WHERE phase = 'ready' AND wanted = 'hold')",
    )
    .await;
    let id = lines(
        &keeper,
        "SELECT move_id::text FROM pgshard.move WHERE phase = 'ready'",
    )
    .await
    .trim()
    .to_owned();
    (world, mover, id)
}

/// An exporter, which ends when this is dropped.
pub(super) struct Exporter(Child, String);

impl Drop for Exporter {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

impl Exporter {
    pub(super) fn address(&self) -> &str {
        &self.1
    }

    pub(super) fn on(config: &Path) -> Exporter {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pgshard"));
        command
            .args(["exporter", "--listen", "127.0.0.1:0"])
            .env("PGSHARD_CONFIG", config);
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let address = line
            .trim()
            .strip_prefix("listening on http://")
            .unwrap()
            .strip_suffix("/metrics")
            .unwrap();
        Exporter(child, address.to_owned())
    }

    /// Its metrics, without those that pass, and without what only the owner sees.
    fn metrics(&self) -> Vec<String> {
        let passing = [
            "scrape_seconds",
            "_bytes",
            "rows_written",
            "ids_unread",
            "severity=\"notice\"",
        ];
        let body = get(&self.1, "/metrics").body;
        body.lines()
            .filter(|line| passing.iter().all(|one| !line.contains(one)))
            .map(str::to_owned)
            .collect()
    }
}

on_each_version! {
    /// Commands, console and exporter show to a role that only watches what they show to the owner;
    /// except for the clocks of IDs: `check` reports that they were not read.
    async fn it_sees_what_the_owner_sees(version) {
        let (world, mover, id) = at_work(version).await;
        let config = watching(&world);
        for args in COMMANDS {
            let args: Vec<&str> = args
                .iter()
                .map(|arg| if *arg == "MOVE" { &id } else { *arg })
                .collect();
            let (owner, watch) = (world.run(&args).await, watched(&world, &args).await);
            assert_eq!(
                watch.code(),
                owner.code(),
                "{args:?}: {} {}",
                watch.stdout,
                watch.stderr
            );
            assert_eq!(lasting(watch.last()), lasting(owner.last()), "{args:?}");
        }
        for deeper in ["--rows", "--movable"] {
            let refused = watched(&world, &["check", deeper]).await;
            assert!(
                refused.ended(2).stderr.contains("watch only watches"),
                "{}",
                refused.stderr
            );
        }
        let findings = watched(&world, &["check"]).await.last()["findings"].to_string();
        assert!(
            findings.contains("ids_unread") && !findings.contains("rights_missing"),
            "{findings}"
        );

        let args = ["--floor-s", "1"];
        let (owner, watch) = (Console::start(&world, &args), Console::on(&config, &args));
        for path in PATHS {
            let path = path.replace("MOVE", &id);
            let (owner, watch) = (owner.get(&path), watch.get(&path));
            assert_eq!(
                (watch.status, owner.status),
                (200, 200),
                "{path}: {} {}",
                watch.body,
                owner.body
            );
            assert_eq!(lasting(watch.json()), lasting(owner.json()), "{path}");
        }
        assert_eq!(
            watch
                .get("/hosts")
                .body
                .matches("badge good\">answers")
                .count(),
            2
        );
        for (path, says) in [
            ("/shards", "data-shards"),
            ("/moves", &id),
            (&format!("/moves/{id}"), "ready"),
            ("/balance", "db2"),
            ("/migrations", "0001_tables"),
            ("/findings", "ids_unread"),
        ] {
            assert!(watch.get(path).body.contains(says), "{path} says {says}");
        }
        let (owner, watch) = (Exporter::on(&world.config.path), Exporter::on(&config));
        assert_eq!(watch.metrics(), owner.metrics());

        world.run(&["moves", "continue", &id]).await.ended(0);
        Ran::of(mover).await.ended(0);
        assert!(
            world
                .run(&["bootstrap"])
                .await
                .ended(0)
                .stderr
                .contains("nothing to do")
        );
    }

    /// It writes nothing and calls nothing that writes; it reads no row, no key of a row that is
    /// being copied, and no token.
    async fn it_reads_no_row_and_writes_nothing(version) {
        let (world, mover, id) = at_work(version).await;
        let watch = as_role(&world, "watch").await;
        let refused = async |sql: &str| {
            let error = watch.batch_execute(sql).await.expect_err(sql);
            assert_eq!(error.code().unwrap().code(), "42501", "{sql}: {error}");
        };
        let tables = "SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class c
            JOIN pg_namespace n ON n.oid = c.relnamespace
            WHERE n.nspname IN ('pgshard', 'pgshard_tickets', 'pgshard_workers') AND c.relkind = \
            'r' ORDER BY 1";
        let tables = lines(&watch, tables).await;
        assert!(tables.lines().count() > 20, "{tables}");
        for table in tables.lines() {
            refused(&format!("DELETE FROM {table}")).await;
            refused(&format!("INSERT INTO {table} DEFAULT VALUES")).await;
            refused(&format!("TRUNCATE {table}")).await;
            refused(&format!(
                "DO $$BEGIN LOCK TABLE {table} IN ROW EXCLUSIVE MODE; END$$"
            ))
            .await;
            let column = format!(
                "SELECT quote_ident(attname) FROM pg_attribute WHERE attrelid = \
                '{table}'::regclass
                AND attnum = 1"
            );
            let column = lines(&watch, &column).await;
            refused(&format!("UPDATE {table} SET {column} = DEFAULT")).await;
        }
        for sql in [
            "SELECT open_token FROM pgshard.move",
            "SELECT open_token FROM pgshard.shard",
            "SELECT open_hash FROM pgshard.incoming",
            "SELECT * FROM pgshard.move",
            "SELECT low FROM pgshard.chunk",
            "SELECT key FROM pgshard.reread",
            "SELECT token FROM pgshard_workers.lease",
            "SELECT nextval('pgshard_tickets.ticket_users')",
            "SELECT * FROM shard_0001.users",
            "SELECT nextval('shard_0001.id_ticket')",
            "SELECT shard_0001.next_id()",
            "CREATE SCHEMA mine",
            "CREATE TABLE public.mine ()",
            "CREATE TEMP TABLE mine ()",
            "SET ROLE keeper",
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'keeper'",
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots",
            "SELECT pg_read_file('PG_VERSION')",
        ] {
            refused(sql).await;
        }
        let may = "SELECT proname FROM pg_proc WHERE pronamespace = 'pgshard'::regnamespace
            AND proname !~ '^signpost_' AND has_function_privilege(oid, 'EXECUTE') ORDER BY 1";
        assert_eq!(lines(&watch, may).await, "barrier\n");
        // Its own commands are refused, too, without a trace.
        for args in [
            &["moves", "abort", &id, "--yes"][..],
            &["move", "2", "--to", "db1", "--yes"],
            &["moves", "pause", &id],
            &["bootstrap"],
            &["migrate", "up"],
        ] {
            let ran = watched(&world, args).await;
            assert!(
                ![0, 101].contains(&ran.code()),
                "{args:?}: {} {}",
                ran.stdout,
                ran.stderr
            );
        }
        let shown = watched(&world, &["moves", "show", &id]).await.last();
        assert_eq!(shown["shards"][0]["phase"], "ready", "{shown}");
        world.run(&["moves", "continue", &id]).await.ended(0);
        Ran::of(mover).await.ended(0);
    }

    /// What a monitor has stays its own: a bootstrap grants again what was revoked, and grants it
    /// on a new host. What only an administrator can grant is named.
    async fn it_comes_along(version) {
        let world = World::with_spare(&[version, version, version], 4).await;
        on_all(
            &world,
            "CREATE ROLE watch LOGIN; GRANT pg_read_all_stats TO watch",
        )
        .await;
        let parts = world
            .run(&["rights", "--for", "monitor", "--role", "watch"])
            .await
            .last()["parts"]
            .clone();
        for host in [0, 1] {
            let app = world.servers.app(host).await;
            for statement in parts[1]["statements"].as_array().unwrap() {
                app.batch_execute(statement.as_str().unwrap())
                    .await
                    .unwrap();
            }
        }
        let about = async |world: &World| -> Vec<Value> {
            let found = world.run(&["check"]).await.last()["findings"]
                .as_array()
                .unwrap()
                .clone();
            found
                .into_iter()
                .filter(|one| one["code"] == "rights_missing")
                .collect()
        };
        assert_eq!(about(&world).await, [Value::Null; 0]);
        world
            .servers
            .app(0)
            .await
            .batch_execute(
                "REVOKE SELECT ON pgshard.mover FROM \
            watch",
            )
            .await
            .unwrap();
        let found = about(&world).await;
        let message = found[0]["message"].as_str().unwrap();
        assert!(
            found.len() == 1 && message.contains("the role watch watches"),
            "{found:?}"
        );
        let told = watched(&world, &["check"]).await.ended(1).last()["findings"].clone();
        assert_eq!(
            (&told[0]["code"], &told[0]["host"]),
            (&"not_owner".into(), &"db1".into()),
            "{told}"
        );
        assert!(
            told[0]["remedy"].as_str().unwrap().contains(
                "`pgshard rights --for monitor --role \
            watch`"
            ),
            "{told}"
        );
        world.run(&["bootstrap"]).await.ended(0);
        assert_eq!(about(&world).await, [Value::Null; 0]);
        watched(&world, &["check"]).await.ended(0);

        world
            .run(&["host", "add", "db3", &world.servers.server(2).url()])
            .await
            .ended(0);
        watched(&world, &["check"]).await.ended(0);
        let moved = world
            .run(&["move", "0", "--to", "db3", "--yes"])
            .await
            .ended(0)
            .id();
        assert_eq!(
            watched(&world, &["moves", "show", &moved])
                .await
                .ended(0)
                .last()["shards"][0]["phase"],
            "kept"
        );

        on_all(&world, "REVOKE pg_read_all_stats FROM watch").await;
        let found = about(&world).await;
        assert!(
            found.len() == 3
                && found[0]["remedy"]
                    .as_str()
                    .unwrap()
                    .contains("by an administrator"),
            "{found:?}"
        );
        watched(&world, &["check"]).await.ended(1);
    }

    /// If a control schema is of a version before, the owner's console reports that; a role that
    /// may not watch it yet gets a finding with the command for its rights. Both see all once it is
    /// brought up to date.
    async fn an_older_control_schema(version) {
        let world = World::new(&[version, version], 4).await;
        on_all(
            &world,
            "CREATE ROLE watch LOGIN; GRANT pg_read_all_stats TO watch",
        )
        .await;
        let parts = world
            .run(&["rights", "--for", "monitor", "--role", "watch"])
            .await
            .last()["parts"]
            .clone();
        let statements = parts[1]["statements"].as_array().unwrap();
        let grants: Vec<&str> = statements.iter().map(|one| one.as_str().unwrap()).collect();
        for host in [0, 1] {
            world
                .servers
                .app(host)
                .await
                .batch_execute(&older(7))
                .await
                .unwrap();
        }
        let args = ["--floor-s", "1"];
        let (owner, watch) = (
            Console::start(&world, &args),
            Console::on(&watching(&world), &args),
        );
        owner.seen("/findings", "control_old");
        assert_eq!(
            owner
                .get("/hosts")
                .body
                .matches("badge good\">answers")
                .count(),
            2
        );
        assert_eq!(owner.get("/api/map").status, 200);
        assert!(owner.get("/metrics").body.contains(
            "pgshard_host_control_version{host=\"db1\"} \
            7\n"
        ));
        let told = watch.seen("/findings", "not_owner");
        assert!(told.contains("rights --for monitor --role watch"), "{told}");

        // A role that could watch the older version keeps its rights.
        world.run(&["bootstrap"]).await.ended(0);
        for host in [0, 1] {
            let app = world.servers.app(host).await;
            app.batch_execute(&grants.join(";")).await.unwrap();
            app.batch_execute(BEFORE).await.unwrap();
        }
        watch.seen("/findings", "control_old");
        world.run(&["bootstrap"]).await.ended(0);
        watch.until("/findings", |page| {
            !page.contains("control_old") && !page.contains("not_owner")
        });
        assert_eq!(
            watch
                .get("/hosts")
                .body
                .matches("badge good\">answers")
                .count(),
            2
        );
    }

    /// A console or exporter that runs as the owner warns once, at the start, that it needs fewer
    /// rights.
    async fn an_owner_is_warned(version) {
        let world = World::new(&[version, version], 4).await;
        on_all(&world, "CREATE ROLE watch LOGIN").await;
        for verb in ["console", "exporter"] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_pgshard"));
            command
                .args([verb, "--listen", "127.0.0.1:0"])
                .env("PGSHARD_CONFIG", &world.config.path);
            let mut child = command
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            let mut line = String::new();
            BufReader::new(child.stderr.take().unwrap())
                .read_line(&mut line)
                .unwrap();
            child.kill().unwrap();
            child.wait().unwrap();
            assert!(
                line.contains("the role app") && line.contains("on db1, db2"),
                "{line}"
            );
            assert!(line.contains("--for monitor"), "{line}");
        }
        let client = connect(&world.servers.server(0).url().replace("//app@", "//watch@")).await;
        assert_eq!(pgshard::schema::privileged_role(&client).await.unwrap(), None);
        let postgres = world.servers.superuser(0).await;
        assert!(
            pgshard::schema::privileged_role(&postgres)
                .await
                .unwrap()
                .unwrap()
                .is_superuser
        );
    }
}
