//! A round: hosts, eight processes, what happens to them, and what comes of it.

use std::time::Instant;

use futures_util::future::join_all;
use pgshard::config::Config;
use pgshard::lookups::migration;

use super::case::Case;
use super::fates::{Process, lose_connections, move_shards};
use super::judge;
use super::notes::All;
use super::support::World;
use super::work::now_ms;

const TABLES: &str = "
    CREATE TABLE {shard}.users (id bigint PRIMARY KEY, email text UNIQUE, name text UNIQUE, op text NOT NULL);
    CREATE TABLE {shard}.history (op text PRIMARY KEY, id bigint NOT NULL, email text, name text,
        gone boolean NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp());
    CREATE FUNCTION {shard}.write_history() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO {shard}.history (op, id, email, name, gone)
            VALUES (NEW.op, NEW.id, NEW.email, NEW.name, false);
        RETURN NULL;
    END $$;
    CREATE TRIGGER write_history AFTER INSERT OR UPDATE ON {shard}.users
        FOR EACH ROW WHEN (NEW.op LIKE '%.alone') EXECUTE FUNCTION {shard}.write_history();
";

pub(crate) struct Round;

impl Round {
    /// Plays a round, and panics with what is wrong.
    pub(crate) async fn play(case: Case) {
        let world = set_up(&case).await;
        let until_ms = now_ms() + case.long.as_millis() as u64;
        let end = Instant::now() + case.long;
        let mut processes: Vec<Process<'_>> = (0..case.processes)
            .map(|number| Process::start(&case, &world, number, until_ms))
            .collect();
        let suffering = join_all(processes.iter_mut().map(|process| process.suffer(end)));
        let (suffered, lost, moved) = tokio::join!(
            suffering,
            lose_connections(&case, &world, end),
            move_shards(&case, &world, end)
        );
        for process in &mut processes {
            process.end().await;
        }
        let mut notes = All::default();
        for path in processes.iter().flat_map(|process| &process.notes) {
            notes.add(path);
        }
        let counts = suffered.into_iter().chain([lost, moved]);
        let [stopped, killed, connections, moves, rollbacks] =
            counts.fold([0; 5], |sum: [u32; 5], one| {
                let next = [
                    one.stopped,
                    one.killed,
                    one.connections,
                    one.moves,
                    one.rollbacks,
                ];
                std::array::from_fn(|at| sum[at] + next[at])
            });
        let words: Vec<String> = notes
            .words
            .iter()
            .map(|(word, count)| format!("{count} {word}"))
            .collect();
        println!(
            "       {}; {stopped} stops, {killed} kills, {connections} connections lost, {moves} \
             moves, {rollbacks} rollbacks; a claim was refused after {} ms at most, a transaction \
             began after {} ms at most",
            words.join(", "),
            notes.refused_ms,
            notes.began_ms
        );
        let wrong = judge::all(&case, &world, &notes).await;
        assert!(wrong.is_empty(), "{case}\n{}", wrong.join("\n"));
    }
}

async fn set_up(case: &Case) -> World {
    let [emails, names] = case.definitions();
    let migrations = [
        ("0001_tables.sql", TABLES),
        ("0002_emails.sql", &migration(&emails)),
        ("0003_names.sql", &migration(&names)),
    ];
    let mut world = World::with_tables(&case.versions, case.shards, &migrations).await;
    let text = std::fs::read_to_string(&world.config.path).expect("the config is there");
    let (before, map) = text.split_once("[map]").expect("the config has a map");
    let mut lookups = String::new();
    for one in case.definitions() {
        lookups += &format!(
            "[lookups.{}]\ntable = \"users\"\ncolumns = [\"{}\"]\nkey = \"id\"\nfold = \"{}\"\n",
            one.name,
            one.columns[0],
            one.fold.as_str()
        );
    }
    world.write("pgshard.toml", &format!("{before}{lookups}\n[map]{map}"));
    world.config = Config::load(&world.config.path).expect("the config is right");
    for name in ["emails", "names"] {
        world.run(&["lookups", "build", name]).await.ended(0);
    }
    for host in 0..2 {
        let sql = format!(
            "ALTER ROLE app SET default_transaction_isolation = '{}'",
            case.isolation
        );
        let client = world.servers.superuser(host).await;
        client
            .batch_execute(&sql)
            .await
            .expect("a role can be altered");
    }
    world
}
