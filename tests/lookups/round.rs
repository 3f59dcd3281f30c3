//! A round: hosts, eight processes, what happens to them, and what comes of it.

use std::time::Instant;

use futures_util::future::join_all;
use pgshard::lookups::{Step, migration};

use super::case::{Case, Story};
use super::fates::{Process, lose_connections, move_shards};
use super::introduce;
use super::judge;
use super::notes::All;
use super::support::World;
use super::work::now_ms;

const TABLES: &str = "
    CREATE TABLE {shard}.users (id bigint PRIMARY KEY, email text UNIQUE, name text UNIQUE,
        op text NOT NULL);
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
        let ends = |number| match case.claims(number) {
            true => case.long,
            false => case.long / 2,
        };
        let (begun, begun_ms) = (Instant::now(), now_ms());
        let end = begun + case.long;
        let mut processes: Vec<Process<'_>> = (0..case.processes)
            .map(|number| {
                let until_ms = begun_ms + ends(number).as_millis() as u64;
                Process::start(&case, &world, number, until_ms)
            })
            .collect();
        let suffering = processes.iter_mut().enumerate();
        let suffering = suffering.map(|(number, process)| process.suffer(begun + ends(number)));
        let introducing = async {
            if case.story == Story::Introduced {
                introduce::build_until(&case, &world, begun + case.long / 2).await;
                // A process that was stopped may end somewhat later.
                tokio::time::sleep(case.long / 4).await;
                introduce::complete(&case, &world).await;
            }
        };
        let (suffered, lost, moved, ()) = tokio::join!(
            join_all(suffering),
            lose_connections(&case, &world, end),
            move_shards(&case, &world, end),
            introducing
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
             moves, {rollbacks} rollbacks; a claim took {} ms at most, a transaction \
             began after {} ms at most",
            words.join(", "),
            notes.claim_ms,
            notes.began_ms
        );
        let wrong = judge::all(&case, &world, &notes).await;
        assert!(wrong.is_empty(), "{case}\n{}", wrong.join("\n"));
    }
}

async fn set_up(case: &Case) -> World {
    let [emails, names] = case.definitions();
    let world = match case.story {
        Story::Claimed => {
            let migrations = [
                ("0001_tables.sql", TABLES),
                ("0002_emails.sql", &migration(&emails, Step::Create)),
                ("0003_names.sql", &migration(&names, Step::Create)),
            ];
            let mut world = World::with_tables(&case.versions, case.shards, &migrations).await;
            introduce::define(case, &mut world);
            for name in ["emails", "names"] {
                world.run(&["lookups", "build", name]).await.ended(0);
            }
            world
        }
        Story::Introduced => {
            let migrations = [("0001_tables.sql", TABLES)];
            let mut world = World::with_tables(&case.versions, case.shards, &migrations).await;
            introduce::define(case, &mut world);
            introduce::plant_rows(case, &world).await;
            introduce::add_step(case, &world, 2, Step::CreateRecording);
            world.run(&["migrate", "up"]).await.ended(0);
            world
        }
    };
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
