//! The scenes: the obstacles that a client meets, and what it must have done.

use std::time::Duration;

use pgshard::pg::Connection;
use serde_json::json;

use super::client::{Answer, Client, Played, complain};
use super::fence::Fence;
use super::stage::{NOTES, Stage, old_map};

/// How long a fence is there before the kit or the client ends it.
const FENCE: Duration = Duration::from_secs(1);
/// The deadline of a fence that only its mover may end.
const LONG: Duration = Duration::from_secs(600);
/// The advisory lock that holds up a client's statement until the kit is ready.
const GATE: i64 = 7_466_273;
const WAIT_AT_GATE: &str = "SELECT pg_advisory_xact_lock(7466273)";

/// A scene.
pub(super) struct Scene {
    /// Its name, for `--only`.
    pub(super) name: &'static str,
    /// What a client must do there.
    pub(super) must: &'static str,
}

const fn scene(name: &'static str, must: &'static str) -> Scene {
    Scene { name, must }
}

/// All of them, in the order in which they are played. Each has shards of its own.
pub(super) const SCENES: &[Scene] = &[
    scene("keys", "say which shard a key is on"),
    scene("ids", "take an ID apart"),
    scene("calm", "write and read on both hosts"),
    scene(
        "own-errors",
        "give back the application's own errors, and soon",
    ),
    scene(
        "unsharded",
        "send nothing to a host whose recorded kind of key is not the cluster's",
    ),
    scene("moved-select", "follow a shard that has left"),
    scene("moved-insert", "write a row once where the shard is now"),
    scene(
        "moved-upsert",
        "know 42P10 for what a signpost answers to ON CONFLICT",
    ),
    scene(
        "moved-constraint",
        "know 42704 for what a signpost answers to ON CONFLICT ON CONSTRAINT",
    ),
    scene(
        "moved-group-by",
        "know 42803 for what a signpost answers to GROUP BY the primary key",
    ),
    scene("moved-transaction", "run a transaction again, whole"),
    scene(
        "old-map",
        "believe no map that is older than what a host has said",
    ),
    scene(
        "fence",
        "wait while a shard is closed, and write the row once",
    ),
    scene("fence-upsert", "wait after 42P10 as well, and count once"),
    scene(
        "fence-transaction",
        "run a transaction again from its first statement: its first run was rolled back",
    ),
    scene(
        "dead-mover",
        "end a fence whose deadline has passed: pgshard.expire_fence",
    ),
    scene(
        "decided",
        "open what a dead mover had decided: pgshard.finish_open",
    ),
    scene(
        "call",
        "never run CALL again: a part of it may have been committed",
    ),
    scene(
        "lost",
        "run nothing again after its connection was lost, and go on with the next",
    ),
];

/// Plays a scene before a client of its own.
pub(super) async fn play(scene: &Scene, stage: &Stage) -> Played {
    let mut client = stage.client(scene.name).await?;
    let client = &mut client;
    match scene.name {
        "keys" => keys(client).await,
        "ids" => ids(client).await,
        "calm" => calm(stage, client).await,
        "own-errors" => own_errors(client).await,
        "unsharded" => unsharded(stage, client).await,
        "old-map" => old(stage, client).await,
        "fence" => {
            closed(
                stage,
                client,
                8,
                "INSERT INTO {shard}.notes (owner, word) VALUES (8, 'fenced')",
                "1",
            )
            .await
        }
        "fence-upsert" => {
            stage
                .host("db1")
                .await?
                .batch_execute("INSERT INTO shard_0009.notes (owner, word) VALUES (9, 'fenced')")
                .await?;
            let upsert = "INSERT INTO {shard}.notes (owner, word) VALUES (9, 'fenced') \
                          ON CONFLICT (word) DO UPDATE SET times = notes.times + 1";
            closed(stage, client, 9, upsert, "2").await
        }
        "fence-transaction" => transaction(stage, client).await,
        "dead-mover" => dead_mover(stage, client).await,
        "decided" => decided(stage, client).await,
        "call" => call(stage, client).await,
        "lost" => lost(stage, client).await,
        moved => relocated(stage, client, moved).await,
    }
}

/// The words of a shard's notes with how often each was counted, as its host has them.
async fn notes(host: &Connection, schema: &str) -> Played<Vec<(String, String)>> {
    let sql = format!("SELECT word, times::text FROM {schema}.notes ORDER BY id");
    let rows = host.query(&sql, &[]).await?;
    Ok(rows
        .iter()
        .map(|row| Ok((row.try_get(0)?, row.try_get(1)?)))
        .collect::<Result<_, tokio_postgres::Error>>()?)
}

/// Complains unless the shard has exactly these notes.
async fn has_notes(host: &Connection, shard: u16, wanted: &[(&str, &str)]) -> Played {
    let found = notes(host, &format!("shard_{shard:04}")).await?;
    let wanted: Vec<(String, String)> = wanted
        .iter()
        .map(|(word, times)| ((*word).into(), (*times).into()))
        .collect();
    if found == wanted {
        return Ok(());
    }
    complain(format_args!(
        "shard {shard} has the notes {found:?} where it should have {wanted:?}"
    ))
}

async fn keys(client: &mut Client) -> Played {
    let vectors = [
        ("integer", "31341", 4096, 2669),
        ("integer", "31341", 2000, 1341),
        ("integer", "-1", 4096, 4095),
        ("integer", "18446744073709551615", 2000, 1615),
        ("string:sha256", "ann@x.org", 4096, 1842),
        ("string:sha256", "žluťoučký kůň", 2000, 403),
        (
            "uuid:sha256",
            "017f22e2-79b0-7cc3-98c4-dc0c0c07398f",
            4096,
            4082,
        ),
    ];
    for (kind, key, shards, shard) in vectors {
        let answer = client
            .request(&json!({"ask": "shard", "kind": kind, "key": key, "shards": shards}))
            .await?;
        if kind != "integer" && answer["error"] == "unsupported" {
            continue;
        }
        if answer["shard"] != shard {
            return complain(format_args!(
                "the {kind} key {key} of {shards} shards is on {shard}, not {answer}"
            ));
        }
    }
    Ok(())
}

async fn ids(client: &mut Client) -> Played {
    let vectors: [(&str, i64, u16, u16); 4] = [
        ("2217813737473025833", 264_384_000_000, 1001, 809),
        ("-9203679173715945767", 1_101_859_200_000, 5, 729),
        ("-1", 2_199_023_255_551, 8191, 1023),
        ("16776192", 1, 8191, 0),
    ];
    for (id, ms, shard, seq) in vectors {
        let answer = client.request(&json!({"ask": "decode", "id": id})).await?;
        if [&answer["ms"], &answer["shard"], &answer["seq"]]
            != [&json!(ms), &json!(shard), &json!(seq)]
        {
            return complain(format_args!(
                "the ID {id} is of ms {ms}, shard {shard}, sequence {seq}, not {answer}"
            ));
        }
    }
    Ok(())
}

async fn calm(stage: &Stage, client: &mut Client) -> Played {
    for (shard, host) in [(0_u16, "db1"), (31, "db2")] {
        let key = u64::from(shard) + 32;
        let insert = format!("INSERT INTO {{shard}}.notes (owner, word) VALUES ({key}, 'calm')");
        client.must_run(key, &[&insert], false).await?;
        let rows = client
            .must_run(
                key,
                &["SELECT word, times FROM {shard}.notes WHERE owner > 31"],
                false,
            )
            .await?;
        if rows != [vec![Some("calm".to_owned()), Some("1".to_owned())]] {
            return complain(format_args!(
                "key {key}: read {rows:?} after writing one row"
            ));
        }
        has_notes(&stage.host(host).await?, shard, &[("calm", "1")]).await?;
    }
    Ok(())
}

async fn own_errors(client: &mut Client) -> Played {
    let vectors = [
        ("SELECT colour FROM {shard}.notes", "42703"),
        ("SELECT 1 FROM {shard}.photos", "42P01"),
        (
            "INSERT INTO {shard}.notes (owner, word) VALUES (15, 'x') ON CONFLICT (times) DO \
                NOTHING",
            "42P10",
        ),
        ("INSERT INTO {shard}.notes (owner) VALUES (15)", "23502"),
        ("SELECT 1 / 0", "22012"),
    ];
    for (sql, code) in vectors {
        let answer = client.run(15, &[sql], false).await?;
        if answer != Answer::Error(code.to_owned()) {
            return complain(format_args!(
                "{sql}: the application's own error {code}, not {answer:?}"
            ));
        }
    }
    Ok(())
}

/// For a while db2 says what an unsharded host says. The shard is there all the same: a statement
/// that was sent would be seen.
async fn unsharded(stage: &Stage, client: &mut Client) -> Played {
    let db2 = stage.host("db2").await?;
    let becomes = |kind| format!("UPDATE pgshard.cluster SET key_kind = '{kind}'");
    db2.batch_execute(&becomes("unsharded-integer")).await?;
    let insert = "INSERT INTO {shard}.notes (owner, word) VALUES (30, 'sent')";
    let answers = async {
        for transaction in [false, true] {
            if let Answer::Rows(rows) = client.run(30, &[insert], transaction).await? {
                return complain(format_args!(
                    "it wrote to a host with the kind of key unsharded-integer: {rows:?}"
                ));
            }
        }
        has_notes(&db2, 30, &[]).await
    };
    let played = answers.await;
    db2.batch_execute(&becomes("integer")).await?;
    played
}

/// Runs a statement on a shard that has left db1 without the client's knowledge.
async fn relocated(stage: &Stage, client: &mut Client, kind: &str) -> Played {
    let insert =
        |shard: u16| format!("INSERT INTO {{shard}}.notes (owner, word) VALUES ({shard}, 'after')");
    let both: &[(&str, &str)] = &[("before", "1"), ("after", "1")];
    let (shard, sql, wanted): (u16, Vec<String>, _) = match kind {
        "moved-select" => (1, vec!["SELECT word FROM {shard}.notes".into()], &both[..1]),
        "moved-insert" => (2, vec![insert(2)], both),
        "moved-upsert" => (
            3,
            vec![insert(3) + " ON CONFLICT (word) DO UPDATE SET times = notes.times + 1"],
            both,
        ),
        "moved-constraint" => (
            4,
            vec![insert(4) + " ON CONFLICT ON CONSTRAINT notes_once DO NOTHING"],
            both,
        ),
        "moved-group-by" => (
            5,
            vec!["SELECT word FROM {shard}.notes GROUP BY id".into()],
            &both[..1],
        ),
        _ => (
            6,
            vec![
                "SELECT 1".into(),
                insert(6),
                "SELECT count(*) FROM {shard}.notes".into(),
            ],
            both,
        ),
    };
    let sql: Vec<&str> = sql.iter().map(String::as_str).collect();
    let rows = client.must_run(shard.into(), &sql, sql.len() > 1).await?;
    let read = match kind {
        "moved-select" | "moved-group-by" => Some("before"),
        "moved-transaction" => Some("2"),
        _ => None,
    };
    if let Some(read) = read
        && rows != [vec![Some(read.to_owned())]]
    {
        return complain(format_args!(
            "{}: read {rows:?}, not {read}",
            sql.join("; ")
        ));
    }
    has_notes(&stage.host("db2").await?, shard, wanted).await
}

/// The old copy serves again, as on a host that was restored from a backup, and an old map agrees
/// with it.
async fn old(stage: &Stage, client: &mut Client) -> Played {
    let insert =
        |word: &str| format!("INSERT INTO {{shard}}.notes (owner, word) VALUES (7, '{word}')");
    client.must_run(7, &[&insert("first")], false).await?;
    let db1 = stage.host("db1").await?;
    db1.batch_execute(
        "BEGIN; ALTER SCHEMA shard_0007 RENAME TO shard_0007__conformance; \
         ALTER SCHEMA shard_0007__left_e1 RENAME TO shard_0007; \
         UPDATE pgshard.shard SET state = 'serving', epoch = 1, peer = NULL, move_id = NULL, \
         attempt = NULL, \
         lease = NULL, open_token = NULL WHERE shard_id = 7; COMMIT",
    )
    .await?;
    client
        .request(&json!({"ask": "map", "map": old_map()}))
        .await?;
    client.must_run(7, &[&insert("second")], false).await?;
    has_notes(&db1, 7, &[("before", "1")]).await?;
    has_notes(
        &stage.host("db2").await?,
        7,
        &[("before", "1"), ("first", "1"), ("second", "1")],
    )
    .await
}

/// A fence is there for a while, and the mover gives up.
async fn closed(stage: &Stage, client: &mut Client, shard: u16, sql: &str, times: &str) -> Played {
    let mut fence = Fence::prepare(stage.host("db1").await?, shard.into(), "db2").await?;
    fence.close(LONG).await?;
    client.send_run(shard.into(), &[sql], false).await?;
    tokio::time::sleep(FENCE).await;
    fence.open_again().await?;
    if let Answer::Error(error) = client.ran().await? {
        return complain(format_args!(
            "{sql}: error {error}, while the shard was closed for a second"
        ));
    }
    has_notes(&stage.host("db1").await?, shard, &[("fenced", times)]).await
}

/// Takes the lock that the client's statement waits for.
async fn shut_gate(stage: &Stage) -> Played<Connection> {
    let gate = stage.host("db1").await?;
    gate.execute("SELECT pg_advisory_lock($1)", &[&GATE])
        .await?;
    Ok(gate)
}

/// The client's backend that waits for that lock.
async fn waiting_at(gate: &Connection) -> Played<i32> {
    for _ in 0..3000 {
        let sql = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted LIMIT 1";
        if let Some(row) = gate.query_opt(sql, &[]).await? {
            return Ok(row.try_get(0)?);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    complain("the client's statement did not arrive within 30 s")
}

/// A transaction has written something outside the shard when the fence comes.
async fn transaction(stage: &Stage, client: &mut Client) -> Played {
    let mut fence = Fence::prepare(stage.host("db1").await?, 10, "db2").await?;
    let gate = shut_gate(stage).await?;
    let sql = [
        "INSERT INTO public.conformance_beside VALUES ('transaction')",
        WAIT_AT_GATE,
        "INSERT INTO {shard}.notes (owner, word) VALUES (10, 'whole')",
    ];
    client.send_run(10, &sql, true).await?;
    waiting_at(&gate).await?;
    fence.close(LONG).await?;
    gate.execute("SELECT pg_advisory_unlock($1)", &[&GATE])
        .await?;
    tokio::time::sleep(FENCE).await;
    fence.open_again().await?;
    if let Answer::Error(error) = client.ran().await? {
        return complain(format_args!(
            "the transaction gave {error}; it could be run again, whole"
        ));
    }
    has_notes(&gate, 10, &[("whole", "1")]).await?;
    beside(&gate, "transaction").await
}

/// Complains unless a row outside the shards is there exactly once.
async fn beside(host: &Connection, word: &str) -> Played {
    let row = host
        .query_one(
            "SELECT count(*) FROM public.conformance_beside WHERE word = $1",
            &[&word],
        )
        .await?;
    match row.try_get::<_, i64>(0)? {
        1 => Ok(()),
        count => complain(format_args!(
            "what was done beside the shard was done {count} times, not once"
        )),
    }
}

async fn dead_mover(stage: &Stage, client: &mut Client) -> Played {
    let mut fence = Fence::prepare(stage.host("db1").await?, 11, "db2").await?;
    fence.close(FENCE).await?;
    client
        .must_run(
            11,
            &["INSERT INTO {shard}.notes (owner, word) VALUES (11, 'expired')"],
            false,
        )
        .await?;
    has_notes(&stage.host("db1").await?, 11, &[("expired", "1")]).await
}

async fn decided(stage: &Stage, client: &mut Client) -> Played {
    let (db1, db2) = (stage.host("db1").await?, stage.host("db2").await?);
    let mut fence = Fence::prepare(db1, 12, "db2").await?;
    let tables = NOTES.replace(
        "DEFAULT {shard}.next_id()",
        "GENERATED BY DEFAULT AS IDENTITY",
    );
    fence.make_ready(&db2, "shard_0012", &tables).await?;
    fence.close(LONG).await?;
    fence.decide().await?;
    client
        .must_run(
            12,
            &["INSERT INTO {shard}.notes (owner, word) VALUES (12, 'opened')"],
            false,
        )
        .await?;
    has_notes(&db2, 12, &[("opened", "1")]).await
}

async fn call(stage: &Stage, client: &mut Client) -> Played {
    let mut fence = Fence::prepare(stage.host("db1").await?, 13, "db2").await?;
    fence.close(LONG).await?;
    client
        .send_run(
            13,
            &["CALL public.conformance_call('{shard}', 'call')"],
            false,
        )
        .await?;
    tokio::time::sleep(FENCE).await;
    fence.open_again().await?;
    if let Answer::Rows(_) = client.ran().await? {
        return complain(
            "CALL met a fence after it had committed, and the client says that it succeeded",
        );
    }
    let db1 = stage.host("db1").await?;
    beside(&db1, "call").await?;
    has_notes(&db1, 13, &[]).await
}

/// The server ends the session in the midst of an INSERT.
async fn lost(stage: &Stage, client: &mut Client) -> Played {
    let gate = shut_gate(stage).await?;
    let sql = "INSERT INTO {shard}.notes (owner, word) SELECT 14, 'lost ' || clock_timestamp() \
               FROM (SELECT pg_advisory_xact_lock(7466273)) AS gate";
    client.send_run(14, &[sql], false).await?;
    let pid = waiting_at(&gate).await?;
    gate.execute("SELECT pg_terminate_backend($1)", &[&pid])
        .await?;
    gate.execute("SELECT pg_advisory_unlock($1)", &[&GATE])
        .await?;
    let answer = client.ran().await?;
    let rows = notes(&gate, "shard_0014").await?.len();
    match (&answer, rows) {
        (Answer::Rows(_), 1) | (Answer::Error(_), 0) => {}
        _ => {
            return complain(format_args!(
                "{rows} rows are there, and the client's answer was {answer:?}"
            ));
        }
    }
    let found = client
        .must_run(14, &["SELECT count(*) FROM {shard}.notes"], false)
        .await?;
    if found == [vec![Some(rows.to_string())]] {
        return Ok(());
    }
    complain(format_args!("it read {found:?} afterwards, not {rows}"))
}
