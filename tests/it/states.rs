//! A host in each state in which it answers without serving us: no command takes it for one that is
//! gone, so no shard ever has two owners.

use std::collections::BTreeMap;
use std::path::Path;

use pgshard::dev::StopMode;
use tokio_postgres::Client;

use crate::support::{Ran, World, connect, lines};

/// How a host answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// A session holds a lock on `pgshard.shard`: 55P03.
    Locked,
    /// A table of the control schema is gone: 42P01.
    Damaged,
    /// `max_connections` is used up: 53300.
    Full,
    /// The role has no connection left: 53300.
    Limited,
    /// The role may not log in: 28000.
    NoLogin,
    /// `pg_hba.conf` rejects it: 28000.
    Rejected,
    /// The database takes no connections: 55000.
    Closed,
    /// It shuts down, and waits for a session to end: 57P03.
    ShuttingDown,
    /// The urls of two hosts are exchanged.
    AnotherServer,
}

const STATES: [State; 9] = [
    State::Locked,
    State::Damaged,
    State::Full,
    State::Limited,
    State::NoLogin,
    State::Rejected,
    State::Closed,
    State::ShuttingDown,
    State::AnotherServer,
];

/// What ends a state.
enum Undo {
    Sessions(Vec<Client>),
    Sql(&'static str),
    Hba(String),
    Started(Client),
    Urls,
}

/// The host that is put into a state, `db2`.
const HOST: usize = 1;

/// Has the urls of `db2` and `db3` lead to each other's server, or back.
fn exchange_urls(world: &World) {
    let text = std::fs::read_to_string(&world.config.path).unwrap();
    let [second, third] = [1, 2].map(|host| format!(":{}/", world.servers.server(host).port()));
    let text = text.replace(&second, ":?/").replace(&third, &second);
    std::fs::write(&world.config.path, text.replace(":?/", &third)).unwrap();
}

fn reload(world: &World) {
    let pid = world.servers.server(HOST).pid().unwrap();
    signal(pid, rustix::process::Signal::HUP);
}

fn signal(pid: u32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

fn hba(world: &World) -> std::path::PathBuf {
    Path::new(&world.servers.server(HOST).data_directory()).join("pg_hba.conf")
}

/// Waits until the role of the config is let in, or is not.
async fn until_let_in(world: &World, wanted: bool) {
    let url = world.servers.server(HOST).url();
    for _ in 0..600 {
        if tokio_postgres::connect(&url, tokio_postgres::NoTls)
            .await
            .is_ok()
            == wanted
        {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    panic!("the host is in the state that was asked for");
}

async fn superuser(world: &World, sql: &str) {
    let url = world.servers.server(HOST).superuser_url();
    let root = connect(&url.replace("/app", "/postgres")).await;
    root.batch_execute(sql).await.unwrap();
}

async fn enter(world: &World, state: State) -> Undo {
    let server = world.servers.server(HOST);
    match state {
        State::Locked => {
            let client = world.servers.app(HOST).await;
            let sql = "BEGIN; LOCK TABLE pgshard.shard IN ACCESS EXCLUSIVE MODE";
            client.batch_execute(sql).await.unwrap();
            Undo::Sessions(vec![client])
        }
        State::Damaged => {
            let app = world.servers.app(HOST).await;
            app.batch_execute("ALTER TABLE pgshard.move RENAME TO was_move")
                .await
                .unwrap();
            Undo::Sql("ALTER TABLE pgshard.was_move RENAME TO move")
        }
        State::Full => {
            let mut clients = Vec::new();
            while let Ok((client, connection)) =
                tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await
            {
                tokio::spawn(connection);
                clients.push(client);
            }
            Undo::Sessions(clients)
        }
        State::Limited => {
            superuser(world, "ALTER ROLE app CONNECTION LIMIT 0").await;
            Undo::Sql("ALTER ROLE app CONNECTION LIMIT -1")
        }
        State::NoLogin => {
            superuser(world, "ALTER ROLE app NOLOGIN").await;
            Undo::Sql("ALTER ROLE app LOGIN")
        }
        State::Closed => {
            superuser(world, "ALTER DATABASE app ALLOW_CONNECTIONS false").await;
            Undo::Sql("ALTER DATABASE app ALLOW_CONNECTIONS true")
        }
        State::Rejected => {
            let was = std::fs::read_to_string(hba(world)).unwrap();
            let reject = "host all app all reject\nlocal all app reject\n";
            std::fs::write(hba(world), format!("{reject}{was}")).unwrap();
            reload(world);
            until_let_in(world, false).await;
            Undo::Hba(was)
        }
        State::ShuttingDown => {
            let client = world.servers.app(HOST).await;
            signal(server.pid().unwrap(), rustix::process::Signal::TERM);
            until_let_in(world, false).await;
            Undo::Started(client)
        }
        State::AnotherServer => {
            exchange_urls(world);
            Undo::Urls
        }
    }
}

async fn leave(world: &World, undo: Undo) {
    let server = world.servers.server(HOST);
    match undo {
        Undo::Sessions(clients) => drop(clients),
        Undo::Sql(sql) if sql.starts_with("ALTER TABLE") => {
            world
                .servers
                .app(HOST)
                .await
                .batch_execute(sql)
                .await
                .unwrap();
        }
        Undo::Sql(sql) => superuser(world, sql).await,
        Undo::Hba(text) => {
            std::fs::write(hba(world), text).unwrap();
            reload(world);
        }
        Undo::Started(client) => {
            drop(client);
            tokio::task::block_in_place(|| {
                server.stop(StopMode::Immediate).ok();
                server.start().unwrap();
            });
        }
        Undo::Urls => exchange_urls(world),
    }
    until_let_in(world, true).await;
}

/// The owners of each shard, by the hosts' own rows.
async fn owners(world: &World) -> BTreeMap<String, Vec<usize>> {
    let mut owners: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for host in 0..3 {
        let sql = "SELECT shard_id::text FROM pgshard.shard WHERE state <> 'moved'";
        let client = world.servers.app(host).await;
        for shard in lines(&client, sql).await.lines() {
            owners.entry(shard.to_owned()).or_default().push(host);
        }
    }
    owners
}

async fn one_owner_each(world: &World, after: &str) {
    for (shard, owners) in owners(world).await {
        assert_eq!(
            owners.len(),
            1,
            "shard {shard} is on {owners:?} after {after}"
        );
    }
}

/// Checks that a command refused to take the host for gone.
#[track_caller]
fn refused(ran: &Ran, state: State, args: &str) {
    assert_ne!(
        ran.code(),
        0,
        "{state:?} {args:?}\n{}\n{}",
        ran.stdout,
        ran.stderr
    );
    assert!(
        !ran.stderr.contains("--give-up"),
        "{state:?} {args:?} advises to give up a host that answers\n{}",
        ran.stderr
    );
}

on_each_version! {
    /// Commands that act on a host's absence do nothing about one that answers: after any of them,
    /// each shard has one owner.
    async fn a_host_that_answers_is_never_given_up(version) {
        let world = World::new(&[version, version, version], 12).await;
        world.run(&["bootstrap"]).await.ended(0);
        // One shard came to the host by a move with a kept old copy, and one is on its way.
        let kept = world
            .run(&["move", "0", "--to", "db2", "--yes"])
            .await
            .ended(0)
            .id();
        let open = world
            .run_until(&["move", "1", "--to", "db2", "--yes"], "after copied=kill")
            .await
            .ended(-9)
            .id();
        for state in STATES {
            let undo = enter(&world, state).await;
            let mut all: Vec<(String, Ran)> = Vec::new();
            for line in [
                "moves repair 0 --give-up db2 --yes",
                "moves repair 1 --give-up db2 --yes",
                "bootstrap --assume-empty db2",
                "bootstrap --lost db2",
                "host remove db2 --yes",
                "recover db2 --yes",
                "recover db1 --yes",
                "map rebuild --yes",
                &format!("moves resume {open}"),
                &format!("moves rollback {kept} --yes"),
                &format!("moves complete {kept} --yes"),
                "moves gc",
            ] {
                let args: Vec<&str> = line.split(' ').collect();
                all.push((line.to_owned(), world.run(&args).await));
            }
            let plan = world
                .text(&["moves", "repair", "0", "--give-up", "db2", "--plan"])
                .await;
            let checked = world.run(&["check"]).await;
            leave(&world, undo).await;
            one_owner_each(&world, &format!("{state:?}")).await;
            for (args, ran) in &all[..6] {
                refused(ran, state, args);
            }
            for (args, ran) in &all[8..11] {
                assert!(
                    !ran.stderr.contains("--give-up"),
                    "{state:?} {args:?}\n{}",
                    ran.stderr
                );
            }
            if state != State::AnotherServer {
                for (args, ran) in &all[..2] {
                    assert_eq!(ran.code(), 4, "{state:?} {args:?}\n{}", ran.stderr);
                    assert!(
                        ran.stderr.contains("is not gone"),
                        "{state:?}\n{}",
                        ran.stderr
                    );
                }
                let first = plan.stdout.lines().next().unwrap_or_default();
                assert!(
                    first.starts_with("db2 is not gone, for it "),
                    "{state:?}\n{}\n{}",
                    plan.stdout,
                    plan.stderr
                );
                assert_eq!(plan.code(), 4, "{state:?}\n{}", plan.stderr);
            }
            let code = match state {
                State::Full | State::Limited => "out_of_connections",
                State::NoLogin | State::Rejected => "login_refused",
                State::ShuttingDown => "host_starting",
                State::Locked | State::Closed => "host_unreadable",
                State::Damaged => "control_damaged",
                State::AnotherServer => "host_name_differs",
            };
            assert!(
                checked.stdout.contains(code),
                "{state:?}\n{}",
                checked.stdout
            );
            assert!(!checked.stdout.contains("host_unreachable"), "{state:?}");
        }
        // What was on its way can still continue, or go back.
        world.run(&["moves", "resume", &open]).await;
        one_owner_each(&world, "resume").await;
    }

    /// An operator's statement that the host was fenced off is accepted. When the host comes back,
    /// the same command makes it stop serving.
    async fn a_host_that_is_fenced_off_can_be_given_up(version) {
        let world = World::new(&[version, version, version], 6).await;
        world.run(&["bootstrap"]).await.ended(0);
        world
            .run(&["move", "0", "--to", "db2", "--yes"])
            .await
            .ended(0);
        let undo = enter(&world, State::Rejected).await;
        let alone = ["moves", "repair", "0", "--fenced", "db2", "--yes"];
        world.run(&alone).await.ended(2);
        let both = [
            "moves",
            "repair",
            "0",
            "--give-up",
            "db2",
            "--fenced",
            "db2",
        ];
        let plan = world.text(&[&both[..], &["--plan"]].concat()).await;
        let first = plan.ended(0).stdout.lines().next().unwrap().to_owned();
        assert!(
            first.contains("does not let us in")
                && first.ends_with("(--fenced: no application reaches it)"),
            "{first}"
        );
        world.run(&[&both[..], &["--yes"]].concat()).await.ended(0);
        assert_eq!(world.state(0, 0).await, "serving");
        leave(&world, undo).await;
        world.run(&["moves", "repair", "0", "--yes"]).await.ended(0);
        one_owner_each(&world, "the host came back").await;
        assert_eq!(world.state(0, 0).await, "serving");
    }
}

on_each_version! {
    /// While no commit ends on a host, `check` and `host list` report that, and a command that
    /// writes there ends with the reason.
    async fn a_host_on_which_no_commit_ends_is_reported(version) {
        let world = World::new(&[version, version], 4).await;
        world.run(&["bootstrap"]).await.ended(0);
        let open = world
            .run_until(&["move", "0", "--to", "db2", "--yes"], "after prepare=kill")
            .await
            .ended(-9)
            .id();
        let db1 = world.servers.superuser(0).await;
        for (names, waits) in [
            ("ghost", true),
            ("", false),
            ("ANY 1 (ghost, spectre)", true),
        ] {
            db1.batch_execute(&format!(
                "ALTER SYSTEM SET synchronous_standby_names = '{names}'"
            ))
            .await
            .unwrap();
            db1.batch_execute("SELECT pg_reload_conf()").await.unwrap();
            let is_set = format!("SELECT current_setting('synchronous_standby_names') = '{names}'");
            crate::support::until(&db1, &is_set).await;
            let checked = world.run(&["check"]).await;
            assert_eq!(
                checked.stdout.contains("commits_wait"),
                waits,
                "{names}\n{}",
                checked.stdout
            );
            let listed = world.run(&["host", "list"]).await;
            assert_eq!(
                listed.code(),
                i32::from(waits),
                "{names}\n{}",
                listed.stderr
            );
        }
        for verb in ["pause", "continue"] {
            let ran = world.run(&["moves", verb, &open]).await;
            assert_ne!(ran.code(), 0, "{verb}");
            assert!(
                ran.stderr
                    .contains("its commits wait for standbys that synchronous_standby_names"),
                "{verb}\n{}",
                ran.stderr
            );
        }
        db1.batch_execute("ALTER SYSTEM RESET synchronous_standby_names")
            .await
            .unwrap();
        db1.batch_execute("SELECT pg_reload_conf()").await.unwrap();
        world.run(&["moves", "continue", &open]).await.ended(0);
        world.run(&["moves", "resume", &open]).await.ended(0);
        world
            .run(&["moves", "complete", &open, "--yes"])
            .await
            .ended(0);
        world.run(&["check"]).await.ended(0);
    }

    /// A host is added, gets shards, is drained, removed, and added again under its name, twice. No
    /// signpost leads to it once it has left, and a router with the first map, and a config that
    /// never had it, finds every shard all along.
    async fn the_life_of_a_host(version) {
        let world = World::with_spare(&[version, version, version], 6).await;
        world.run(&["bootstrap"]).await.ended(0);
        let router = world.router().await;
        let reaches_all = async |when: &str| {
            for shard in 0..6 {
                let router = router.shard(pgshard::ShardId::new(shard).unwrap()).unwrap();
                let read = router
                    .query_one("SELECT count(*) FROM {shard}.users", &[])
                    .await;
                assert!(read.is_ok(), "shard {shard} {when}: {read:?}");
            }
        };
        let url = world.servers.server(2).url();
        for life in 0..2 {
            world.run(&["host", "add", "db3", &url]).await.ended(0);
            // From each of the others; one moves to the other host by hand, one by the drain.
            for (shard, to) in [("0", "db3"), ("3", "db3"), ("1", "db3"), ("0", "db2")] {
                world
                    .run(&["move", shard, "--to", to, "--yes"])
                    .await
                    .ended(0);
            }
            world
                .run(&["moves", "complete", "--all", "--yes"])
                .await
                .ended(0);
            world
                .run(&["drain", "db3", "--complete", "--yes"])
                .await
                .ended(0);
            reaches_all("after the drain").await;
            world
                .run(&["host", "remove", "db3", "--yes"])
                .await
                .ended(0);
            for host in 0..2 {
                let sql = "SELECT shard_id::text FROM pgshard.shard
                    WHERE peer = 'db3' AND state = 'moved'";
                assert_eq!(
                    lines(&world.servers.app(host).await, sql).await,
                    "",
                    "life {life}"
                );
            }
            let checked = world.run(&["check"]).await;
            assert_eq!(checked.code(), 0, "life {life}\n{}", checked.stdout);
            reaches_all("after the removal").await;
            // Back to where the first map has it, so that the next life is like this one.
            for (shard, to) in [(0, "db1"), (1, "db1"), (3, "db2")] {
                let at = usize::from(to == "db2");
                if world.host_of(shard) != at {
                    let shard = shard.to_string();
                    world
                        .run(&["move", &shard, "--to", to, "--yes"])
                        .await
                        .ended(0);
                }
            }
            world.run(&["moves", "complete", "--all", "--yes"]).await;
        }
        // Rows that an earlier release left are led on by a bootstrap, the remedy.
        world
            .run(&["move", "0", "--to", "db2", "--yes"])
            .await
            .ended(0);
        world
            .run(&["moves", "complete", "--all", "--yes"])
            .await
            .ended(0);
        let astray = "UPDATE pgshard.shard SET peer = 'db3', epoch = epoch - 1 WHERE shard_id = 0";
        world
            .servers
            .app(0)
            .await
            .batch_execute(astray)
            .await
            .unwrap();
        let checked = world.run(&["check"]).await;
        assert!(
            checked.stdout.contains("signpost_astray"),
            "{}",
            checked.stdout
        );
        reaches_all("by a signpost that leads to a host that has left").await;
        world.run(&["bootstrap"]).await.ended(0);
        let checked = world.run(&["check"]).await;
        assert_eq!(checked.code(), 0, "{}", checked.stdout);
        world.run(&["map", "rebuild", "--yes"]).await.ended(0);
        reaches_all("at last").await;
    }
}
