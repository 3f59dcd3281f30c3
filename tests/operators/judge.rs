//! What is wrong with a command's end, and with what the hosts have when all is settled.

use std::collections::{BTreeMap, BTreeSet};

use pgshard::map::{ShardMap, parse_shards};
use pgshard::{ShardCount, ShardId};

use super::fates::{Deadly, Ended, Fate};
use super::operator::{Begun, Does, ID, Shared, locked};
use super::state::{self, Moved, Row};
use super::support::{World, lines};
use super::writers::{Noted, Notes};

/// Reports how a command ended, and notes what is wrong with that.
pub(crate) async fn command(world: &World, shared: &Shared, begun: &Begun, ended: &Ended) {
    let name = format!("op{}.{}", begun.operator, begun.number);
    let Some(code) = ended.code else {
        let activity = state::activity(world).await;
        shared.fault(format!("{name} hangs: {}\n{activity}", begun.line()));
        return;
    };
    if code >= 0 {
        let args: Vec<&str> = begun.args.iter().map(String::as_str).collect();
        super::support::contract::keeps(&args, &ended.stdout, "");
    }
    let took = ended.took.as_secs_f64();
    shared.tell(format!(
        "{name} {} ended with {code} after {took:.1} s: {}",
        begun.args.join(" "),
        ended.words()
    ));
    let wrong = |what: &str| {
        shared.fault(format!(
            "{}: {what}: {code}\n{}",
            begun.line(),
            ended.stderr
        ))
    };
    if ended.stderr.contains("panicked") || code == 101 {
        wrong("it panicked");
    } else if !is_in_the_manual(begun, ended, code) {
        wrong("the manual has no such end of it");
    }
    if let Some(alarm) = false_alarm(begun, ended) {
        wrong(&format!("a false alarm: {alarm}"));
    }
    if code == 0
        && let Some(what) = untrue(world, begun).await
    {
        wrong(&what);
    }
}

/// An alarm about hosts of which none has failed. That a config does not name a host is one that it
/// may raise.
fn false_alarm(begun: &Begun, ended: &Ended) -> Option<String> {
    if matches!(begun.verb(), ("map", _)) {
        return ended
            .stderr
            .lines()
            .find(|line| line.contains("both serve it"))
            .map(str::to_owned);
    }
    let last = ended.json().pop().filter(|_| begun.has("check"))?;
    let mut alarms = last["findings"]
        .as_array()?
        .iter()
        .filter(|one| one["severity"] == "alarm");
    alarms
        .find(|one| one["code"] != "host_absent")
        .map(ToString::to_string)
}

/// Whether the command may end with this code, given what befell it. No host fails, no row differs
/// and no disk is full.
fn is_in_the_manual(begun: &Begun, ended: &Ended, code: i32) -> bool {
    let killed = match &begun.fate {
        Fate::Signalled(_, Deadly::Kill) | Fate::At(_, "kill") => Some(-9),
        Fate::Signalled(_, Deadly::Term) => Some(-15),
        _ => None,
    };
    if code < 0 {
        // A command that does not handle Ctrl-C yet ends by it.
        return killed == Some(code) || (ended.interrupted && code == -2);
    }
    let says = |word: &str| ended.stderr.contains(word);
    let failed = matches!(begun.fate, Fate::At(_, "fail")) && says("failpoint");
    let reads = begun.has("--plan") || begun.has("--status");
    match (begun.verb(), code) {
        (_, 0) => true,
        (_, 130) => ended.interrupted || says("stopped, as") || says("asked to stop by"),
        // The file has none.
        (("map", "history"), 2) => true,
        // A host was written into the config, and nothing was made there yet.
        (_, 1) if says("bootstrapped") => true,
        // A host that the operator's config does not have, or a move of which there are none or
        // several.
        (_, 2) => ended.stderr.lines().next().is_some_and(|line| {
            ["no host", "no move", "there are", "a host", "db3"]
                .iter()
                .any(|word| line.contains(word))
        }),
        (("check", _), 1) => true,
        (("map", "rebuild"), 1) => says("run it again"),
        (("rights" | "sql", _) | ("map", "show" | "history") | ("host", "list"), _) => false,
        (("moves", "list" | "show" | "pause" | "continue" | "gc" | "feed"), 1) => false,
        (("moves", "watch"), 1 | 7 | 8) => true,
        (("moves", "pause" | "continue" | "stop" | "complete" | "audit" | "repair"), 4 | 8) => true,
        (("moves", "gc"), 8) => failed,
        (
            ("move" | "rebalance" | "drain", _) | ("moves", "resume" | "rollback" | "abort"),
            1 | 4 | 5 | 7 | 8,
        ) => !reads || code == 4,
        (("migrate", _) | ("bootstrap", _), 8) => true,
        (("migrate", "up" | "plan" | "retry" | "wait" | "resolve") | ("bootstrap", _), 4) => true,
        (("host", "add" | "remove"), 4) => true,
        (("recover", _), 4) => true,
        _ => failed,
    }
}

/// What a command that ended with 0 has not done. Only what stays true whatever others do in that
/// time is checked.
async fn untrue(world: &World, begun: &Begun) -> Option<String> {
    if begun.has("--plan") || begun.has("--status") {
        return None;
    }
    match begun.verb() {
        ("move", shards) => {
            let target = begun
                .args
                .iter()
                .position(|arg| arg == "--to")
                .map(|at| &begun.args[at + 1])?;
            let rows = state::rows(world).await;
            let count = ShardCount::new(8192).expect("so many may be");
            let shards = parse_shards(shards, count).expect("the generator names shards");
            let away = shards
                .iter()
                .map(|shard| shard.get())
                .find(|shard| !was_at(&rows, *shard, target, begun));
            away.map(|shard| format!("shard {shard} has not been at {target} since"))
        }
        ("drain", host) => {
            let rows = state::rows(world).await;
            let left = rows.iter().find(|row| {
                // A later epoch: another move has brought it there since.
                row.is_owner()
                    && format!("db{}", row.host + 1) == host
                    && begun.epochs.get(&row.shard) == Some(&row.epoch)
            });
            left.map(|row| format!("shard {} is there still", row.shard))
        }
        ("moves", "resume") => {
            all_are(world, begun, |moved| {
                matches!(moved.phase.as_str(), "kept" | "completed")
            })
            .await
        }
        ("moves", "abort") => all_are(world, begun, |moved| moved.phase == "aborted").await,
        ("moves", "complete") => {
            all_are(world, begun, |moved| {
                matches!(moved.phase.as_str(), "completed" | "aborted")
            })
            .await
        }
        ("moves", "rollback") => {
            let id = begun.args.iter().find(|arg| arg.len() == ID)?;
            let moves = state::moves(world).await;
            let back: Vec<&Moved> = moves
                .iter()
                .filter(|moved| moved.back_of.as_ref() == Some(id))
                .collect();
            let ended = back
                .iter()
                .any(|moved| matches!(moved.phase.as_str(), "kept" | "completed"));
            // Then its shards have never left.
            let aborted = moves
                .iter()
                .filter(|moved| moved.id == *id)
                .all(|moved| moved.phase == "aborted");
            (!ended && !aborted).then(|| format!("no move has taken it back: {back:?}"))
        }
        ("migrate", "up" | "wait" | "status") | ("bootstrap", _) => {
            let partial = ["--only", "--host"].iter().any(|word| begun.has(word));
            if partial {
                None
            } else {
                lacking(world, &begun.files).await
            }
        }
        _ => None,
    }
}

/// Whether the shard has been at the target since the command began, or was there when it did.
fn was_at(rows: &[Row], shard: u16, target: &str, begun: &Begun) -> bool {
    let before = begun.epochs.get(&shard).copied().unwrap_or(0);
    let there = rows
        .iter()
        .find(|row| row.shard == shard && format!("db{}", row.host + 1) == target);
    there.is_some_and(|row| row.epoch > before || (row.epoch == before && row.is_owner()))
}

async fn all_are(world: &World, begun: &Begun, end: impl Fn(&Moved) -> bool) -> Option<String> {
    let id = begun.args.iter().find(|arg| arg.len() == ID)?;
    let moves = state::moves(world).await;
    let other: Vec<String> = moves
        .iter()
        .filter(|moved| moved.id == *id && begun.hosts.contains(&moved.source) && !end(moved))
        .map(|moved| format!("shard {} is {}", moved.shard, moved.phase))
        .collect();
    (!other.is_empty()).then(|| other.join(", "))
}

/// A shard that lacks one of these files.
async fn lacking(world: &World, files: &[String]) -> Option<String> {
    for (shard, has) in state::migrations(world).await {
        // Recorded with or without the end of the file's name.
        let known =
            |file: &String| has.contains(file) || has.contains(file.trim_end_matches(".sql"));
        if let Some(file) = files.iter().find(|file| !known(file)) {
            return Some(format!("shard {shard} lacks {file}: it has {has:?}"));
        }
    }
    None
}

/// Checks everything once all is settled and the writers have stopped. Returns what is wrong.
pub(crate) async fn rows(
    world: &World,
    shared: &Shared,
    map: &ShardMap,
    notes: &Notes,
) -> Vec<String> {
    let mut wrong = notes.wrong.clone();
    let mut found: BTreeMap<i64, Found> = BTreeMap::new();
    let names: Vec<String> = world.config.hosts.keys().map(ToString::to_string).collect();
    for (host, client) in world.all().await.iter().enumerate() {
        let sql =
            "SELECT shard_id, schema_name FROM pgshard.shard WHERE state = 'serving' ORDER BY 1";
        for row in client.query(sql, &[]).await.expect("a server answers") {
            let (shard, schema): (i32, String) = (row.get(0), row.get(1));
            let shard = u16::try_from(shard).expect("a shard is a small number");
            let place = ShardId::new(shard)
                .and_then(|shard| map.host(shard))
                .map(ToString::to_string);
            if place.as_ref() != names.get(host) {
                wrong.push(format!(
                    "shard {shard} is served by {:?}, and the map says {place:?}",
                    names.get(host)
                ));
            }
            let sql = format!(
                "SELECT id, name, version, marks, (SELECT count(*) FILTER (WHERE page = 'xy')
                    FROM {schema}.visits v WHERE v.user_id = u.id) FROM {schema}.users u"
            );
            for row in client
                .query(&sql, &[])
                .await
                .expect("a served shard has its tables")
            {
                let one = Found {
                    shard,
                    name: row.get(1),
                    version: row.get(2),
                    marks: row.get(3),
                    visits: row.get(4),
                };
                if let Some(other) = found.insert(row.get(0), one) {
                    wrong.push(format!(
                        "the ID {} is there twice: {other:?}",
                        row.get::<_, i64>(0)
                    ));
                }
            }
            wrong.extend(ran(client, shared, &schema).await);
        }
        wrong.extend(ran_once(client, shared, host).await);
        let sql = "SELECT kind || ' ' || name FROM pgshard.ledger
            UNION ALL SELECT 'lent identity of ' || table_name || ' in ' || shard_id FROM \
            pgshard.lent_identity
            UNION ALL SELECT 'mover ' || holder FROM pgshard.mover
            UNION ALL SELECT 'marker of ' || shard_id FROM pgshard.marker
            UNION ALL SELECT 'chunk of ' || shard_id FROM pgshard.chunk
            UNION ALL SELECT 'progress of ' || shard_id FROM pgshard.progress
            UNION ALL SELECT 'way back of ' || shard_id FROM pgshard.back";
        let left = lines(client, sql).await;
        if !left.is_empty() {
            wrong.push(format!("left on db{}: {left}", host + 1));
        }
    }
    let begun = locked(&shared.backfills).clone();
    for (id, noted) in &notes.rows {
        match found.remove(id) {
            None => wrong.push(format!("lost: {noted:?} with the ID {id}")),
            Some(found) => wrong.extend(differs(*id, noted, &found, &begun)),
        }
    }
    for (id, found) in found {
        if !notes.in_doubt.contains(&found.name) {
            wrong.push(format!("nobody was told of {found:?} with the ID {id}"));
        }
    }
    wrong
}

/// A row as it is where its shard is served.
#[derive(Debug)]
struct Found {
    shard: u16,
    name: String,
    version: i32,
    marks: String,
    visits: i64,
}

/// What differs from the results that its writer got. `backfills` are the times at which they
/// began, and all have ended.
fn differs(id: i64, noted: &Noted, found: &Found, backfills: &[f64]) -> Option<String> {
    let (least, most) = noted.versions;
    let same =
        found.shard == noted.shard && found.name == noted.name && found.visits == noted.visits;
    let times = |number: usize| {
        found
            .marks
            .split(';')
            .filter(|mark| *mark == number.to_string())
            .count()
    };
    let marked = backfills
        .iter()
        .enumerate()
        .all(|(at, begun)| match times(at + 1) {
            0 => noted.at >= *begun,
            times => times == 1,
        });
    let fits = same && (least..=most).contains(&found.version) && marked;
    (!fits).then(|| {
        format!("{noted:?} with the ID {id} is {found:?}, backfills began at {backfills:?}")
    })
}

/// Which migrations ran in a shard, each as often as it should.
async fn ran(client: &tokio_postgres::Client, shared: &Shared, schema: &str) -> Option<String> {
    let ran = lines(
        client,
        &format!("SELECT migration FROM {schema}.ran ORDER BY 1"),
    )
    .await;
    let files = locked(&shared.files).clone();
    let noted = files
        .iter()
        .filter(|file| !matches!(file.does, Does::Indexes | Does::Once));
    let should: Vec<&str> = noted.map(|file| file.name.as_str()).collect();
    if ran.lines().collect::<Vec<_>>() != should {
        return Some(format!(
            "in {schema} ran {:?}, and should have {should:?}",
            ran.lines().collect::<Vec<_>>()
        ));
    }
    let sql = format!(
        "SELECT relname::text FROM pg_class JOIN pg_index ON indexrelid = pg_class.oid
         WHERE relnamespace = '{schema}'::regnamespace AND relname ~ '^i[0-9]+$' AND indisvalid \
         ORDER BY 1"
    );
    let indexes: BTreeSet<String> = lines(client, &sql)
        .await
        .lines()
        .map(str::to_owned)
        .collect();
    let made = files
        .iter()
        .enumerate()
        .filter(|(_, file)| file.does == Does::Indexes);
    let should: BTreeSet<String> = made.map(|(at, _)| format!("i{}", at + 2)).collect();
    (indexes != should)
        .then(|| format!("{schema} has the indexes {indexes:?}, and should have {should:?}"))
}

/// The same of those that run once in each host's database.
async fn ran_once(client: &tokio_postgres::Client, shared: &Shared, host: usize) -> Option<String> {
    let files = locked(&shared.files).clone();
    let should: Vec<String> = files
        .into_iter()
        .filter(|file| file.does == Does::Once)
        .map(|file| file.name)
        .collect();
    if should.is_empty() {
        return None;
    }
    let ran = lines(client, "SELECT migration FROM extra.ran ORDER BY 1").await;
    let ran: Vec<&str> = ran.lines().collect();
    (ran != should).then(|| {
        format!(
            "on db{} ran once {ran:?}, and should have {should:?}",
            host + 1
        )
    })
}
