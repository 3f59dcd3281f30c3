//! One round: servers, objects, a move of each shard, and the verdict.

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use fastrand::Rng;
use pgshard::dev::Binaries;
use tokio_postgres::{Client, SimpleQueryMessage};

use super::case::Case;
use super::generator::{EXTENSIONS, Generator, Object};
use super::recipes;
use super::support::World;

/// All rounds of the process together.
static MOVED: AtomicUsize = AtomicUsize::new(0);
static REFUSED: AtomicUsize = AtomicUsize::new(0);
static OBJECTS: AtomicUsize = AtomicUsize::new(0);

const TABLES: &str = "CREATE TABLE {shard}.users (id bigint PRIMARY KEY)";

/// Moves every shard of a round once.
pub(crate) async fn play(case: Case) {
    let world =
        World::with_tables(&case.versions, case.shards, &[("0001_tables.sql", TABLES)]).await;
    let mut rng = Rng::with_seed(case.seed.wrapping_mul(31));
    let schemas: Vec<&str> = EXTENSIONS
        .iter()
        .map(|_| if rng.bool() { "public" } else { "ext" })
        .collect();
    for host in 0..2 {
        let admin = world.servers.superuser(host).await;
        let mut sql = "CREATE SCHEMA ext; CREATE ROLE reader; GRANT USAGE ON SCHEMA ext TO PUBLIC;"
            .to_owned();
        for (extension, schema) in EXTENSIONS.iter().zip(&schemas) {
            sql += &format!("CREATE EXTENSION {extension} SCHEMA {schema};");
        }
        admin.batch_execute(&sql).await.unwrap();
    }
    for shard in 0..case.shards {
        one(&world, &case, shard, rng.bool()).await;
    }
    println!(
        "{case}: in all {} moved, {} refused, {} objects",
        MOVED.load(Ordering::Relaxed),
        REFUSED.load(Ordering::Relaxed),
        OBJECTS.load(Ordering::Relaxed)
    );
}

/// How many recipes each shard has.
const RECIPES_A_SHARD: usize = 3;

/// What pg_dump of the newest version prints of a shard's definition, statement by statement.
fn dump(world: &World, host: usize, schema: &str) -> BTreeSet<String> {
    let newest = Binaries::of_major(18).unwrap();
    let dumped = Command::new(newest.program("pg_dump"))
        .args(["--schema-only", "--schema", schema, "--dbname"])
        .arg(world.servers.server(host).superuser_url())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&dumped.stderr);
    assert!(dumped.status.success(), "{errors}");
    let text = String::from_utf8(dumped.stdout).unwrap();
    let is_statement = |line: &&str| !line.starts_with("--") && !line.starts_with('\\');
    let lines: Vec<&str> = text.lines().filter(is_statement).collect();
    let statements = lines.join("\n");
    let statements = statements.split("\n\n").map(|one| one.trim().to_owned());
    statements
        .filter(|one| !one.is_empty() && !one.starts_with("SET "))
        .collect()
}

/// The path of an application.
fn path(schema: &str) -> String {
    format!("SET search_path = {schema}, public, ext")
}

async fn one(world: &World, case: &Case, shard: u16, online: bool) {
    let (from, schema) = (world.host_of(shard), format!("shard_{shard:04}"));
    let to = 1 - from;
    let mut made: Vec<Object> = Vec::new();
    let app = world.servers.app(from).await;
    app.batch_execute(&format!(
        "{}; GRANT USAGE ON SCHEMA {schema} TO reader",
        path(&schema)
    ))
    .await
    .unwrap();
    let there = world.servers.app(to).await;
    let mut objects = Generator::new(case.seed, shard, "pg_catalog, public, ext").all();
    // Every recipe has its turn in a few rounds.
    for turn in 0..RECIPES_A_SHARD {
        let all = usize::from(shard) * RECIPES_A_SHARD + turn + case.seed as usize * 5;
        objects.push(recipes::object(all, &format!("r_{shard}_{turn}")));
    }
    for mut object in objects {
        for sql in &mut object.sql {
            *sql = sql.replace("{s}", &schema);
        }
        for sql in &mut object.questions {
            *sql = sql.replace("{s}", &schema);
        }
        // What this version or these types do not have is left out.
        let all = format!("BEGIN; {}; COMMIT", object.sql.join("; "));
        if app.batch_execute(&all).await.is_err() {
            app.batch_execute("ROLLBACK").await.unwrap();
            continue;
        }
        // Functions outside the shard are on every host.
        for sql in object
            .sql
            .iter()
            .filter(|sql| sql.starts_with("CREATE FUNCTION public."))
        {
            there
                .batch_execute(&format!("SET search_path = public, ext; {sql}"))
                .await
                .unwrap_or_else(|error| panic!("{error:?}: {sql}"));
        }
        made.push(object);
    }
    OBJECTS.fetch_add(made.len(), Ordering::Relaxed);
    let before = answers(world, from, &schema, &made).await;
    let dumped_before = dump(world, from, &schema);
    let mode = if online { "online" } else { "blocking" };
    let number = shard.to_string();
    let target = format!("db{}", to + 1);
    let args = [
        "move",
        number.as_str(),
        "--to",
        target.as_str(),
        "--mode",
        mode,
        "--yes",
    ];
    let ran = world.text(&args).await;
    let story = || {
        let sql: Vec<String> = made.iter().flat_map(|object| object.sql.clone()).collect();
        format!(
            "{case}, shard {shard}, {mode}\n{}\n{}",
            sql.join(";\n"),
            ran.stderr
        )
    };
    match ran.code() {
        0 => {
            MOVED.fetch_add(1, Ordering::Relaxed);
            let after = answers(world, to, &schema, &made).await;
            for ((question, before), (_, after)) in before.iter().zip(&after) {
                assert_eq!(before, after, "{question}\n{}", story());
            }
            // Two versions print the same expression in two ways.
            if case
                .versions
                .iter()
                .any(|version| *version != case.versions[0])
            {
                return;
            }
            let (before, after) = (dumped_before, dump(world, to, &schema));
            let lost: Vec<&String> = before.difference(&after).collect();
            // An online move lends a table without a key an identity, until it is completed.
            let is_lent = |one: &&String| online && one.ends_with(" REPLICA IDENTITY FULL;");
            let new = after.difference(&before).filter(|one| !is_lent(one));
            let new: Vec<&String> = new.collect();
            assert!(
                lost.is_empty() && new.is_empty(),
                "pg_dump differs\nbefore: {lost:#?}\nafter: {new:#?}\n{}",
                story()
            );
        }
        4 => {
            REFUSED.fetch_add(1, Ordering::Relaxed);
            if std::env::var_os("PGSHARD_OBJECTS_TELL").is_some() {
                println!("{}", ran.stderr);
            }
            let is_named = made.iter().any(|object| ran.stderr.contains(&object.name));
            assert!(is_named, "the refusal names no object\n{}", story());
            // Nothing was begun.
            assert_eq!(world.host_of(shard), from, "{}", story());
        }
        code => panic!("the move ended with {code}\n{}", story()),
    }
}

/// What the objects answer at a host.
async fn answers(
    world: &World,
    host: usize,
    schema: &str,
    objects: &[Object],
) -> Vec<(String, String)> {
    let app = world.servers.app(host).await;
    let reader = world.servers.superuser(host).await;
    app.batch_execute(&path(schema)).await.unwrap();
    reader
        .batch_execute(&format!("{}; SET ROLE reader", path(schema)))
        .await
        .unwrap();
    let mut answers = Vec::new();
    for question in objects.iter().flat_map(|object| &object.questions) {
        let answer = match question.strip_prefix('?') {
            Some(sql) => ask(&reader, sql).await,
            None => ask(&app, question).await,
        };
        answers.push((question.clone(), answer));
    }
    answers
}

/// The rows of some statements, or the error that they end with.
async fn ask(client: &Client, sql: &str) -> String {
    match client.simple_query(sql).await {
        Ok(messages) => {
            let row = |message| match message {
                SimpleQueryMessage::Row(row) => {
                    let values = (0..row.len()).map(|at| row.get(at).unwrap_or("NULL").to_owned());
                    Some(values.collect::<Vec<_>>().join("|"))
                }
                _ => None,
            };
            messages
                .into_iter()
                .filter_map(row)
                .collect::<Vec<_>>()
                .join("\n")
        }
        Err(error) => {
            client.batch_execute("ROLLBACK").await.unwrap();
            error
                .code()
                .map_or_else(|| error.to_string(), |code| code.code().to_owned())
        }
    }
}
