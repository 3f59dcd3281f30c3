//! Words that another user has chosen: names in the databases, in files and on the command line,
//! errors, names and statements of other sessions. Whatever they are, a terminal obeys nothing,
//! JSON stays JSON, and no secret and no literal of a statement is repeated.

use std::process::Stdio;

use pgshard::pg::{quote_ident, quote_literal};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;
use crate::support::connect;

const WORDS: [&str; 8] = [
    "a\u{1b}[31mred\u{1b}]0;title\u{7}",
    "b\nerror: forged",
    "c\u{202e}txt.exe\u{2066}\u{200f}",
    "d'q\"\\q",
    "e<script>alert(1)</script>&amp;",
    "f%00%0a%s{shard}",
    "g\u{9b}2Jg\u{85}\u{2028}",
    "h\r\u{7f}\t\u{8}",
];

/// It is in the config's file of passwords, and in the environment.
const SECRET: &str = "hunter2hunter2";

/// It is in another session's statement.
const LITERAL: &str = "someones-own-literal";

/// What no output may have: what a terminal obeys, and what turns the direction of writing.
fn is_obeyed(c: char) -> bool {
    let turns =
        matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    turns || (c.is_control() && c != '\n' && c != '\t')
}

fn is_clean(what: &str, said: &str) {
    assert!(!said.contains(is_obeyed), "{what}: {said:?}");
    assert!(
        !said.contains(SECRET) && !said.contains(LITERAL),
        "{what}: {said}"
    );
    assert!(!said.contains("panicked"), "{what}: {said}");
}

/// Objects of all kinds with these names in a shard, and functions that raise them.
fn objects() -> String {
    let mut sql = String::new();
    for (at, word) in WORDS.iter().enumerate() {
        let (name, text) = (quote_ident(word), quote_literal(word));
        sql += &format!(
            "CREATE TABLE shard_0000.{name} ({name} int PRIMARY KEY, w text DEFAULT {text},
                CONSTRAINT {name} CHECK (true));
            COMMENT ON TABLE shard_0000.{name} IS {text};
            CREATE INDEX {index} ON shard_0000.{name} (w);
            CREATE FUNCTION shard_0000.{name}() RETURNS text LANGUAGE sql AS {body};
            CREATE VIEW shard_0000.{view} AS SELECT {text}::text AS {name};
            CREATE TYPE shard_0000.{of} AS ENUM ({text});
            CREATE FUNCTION shard_0001.says{at}() RETURNS int LANGUAGE plpgsql AS $f$ BEGIN
                RAISE EXCEPTION USING MESSAGE = {text}, DETAIL = {text}, HINT = {text}; END $f$;",
            index = quote_ident(&format!("i{word}")),
            view = quote_ident(&format!("v{word}")),
            of = quote_ident(&format!("t{word}")),
            body = quote_literal(&format!("SELECT {}", quote_literal(word))),
        );
    }
    sql
}

impl World {
    /// Runs a command in every way, and looks at each byte of its output.
    async fn says_nothing_hostile(&self, args: &[&str]) {
        let what = format!("{args:?}");
        let text = self.text(args).await;
        is_clean(&what, &(text.stdout + &text.stderr));
        // As bytes, since a reader of JSON gives the names as they are.
        let json = self
            .command(args, &[("PGSHARD_LOG", "pgshard=trace")])
            .output()
            .await
            .unwrap();
        let said = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        for line in said(&json.stdout).lines() {
            serde_json::from_str::<serde_json::Value>(line)
                .unwrap_or_else(|error| panic!("{what}: {error}: {line}"));
        }
        is_clean(
            &format!("{what} as JSON"),
            &(said(&json.stdout) + &said(&json.stderr)),
        );
    }
}

on_each_version! {
    async fn words_of_others(version) {
        let world = World::new(&[version, version], 4).await;
        let text = std::fs::read_to_string(&world.config.path).unwrap();
        let password = world.write("password", SECRET);
        let at = format!("password_file = \"{}\"\n", password.display());
        assert!(text.contains("[hosts.db1]\n"), "{text}");
        world.write(
            "pgshard.toml",
            &text.replace("[hosts.db1]\n", &format!("[hosts.db1]\n{at}")),
        );

        let (superuser, app) = (world.servers.superuser(0).await, world.servers.app(0).await);
        for word in WORDS {
            let role = quote_ident(word);
            let sql = format!(
                "CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA shard_0000, \
                shard_0001 TO {role};
                GRANT SELECT ON shard_0000.users TO {role}"
            );
            superuser.batch_execute(&sql).await.unwrap();
        }
        app.batch_execute(&objects()).await.unwrap();
        // Sessions that are in the way, with names and statements of their own.
        let mut others = Vec::new();
        for (word, sql) in [
            (
                WORDS[0],
                "SELECT pg_advisory_lock(1885825380, 1)".to_owned(),
            ),
            (
                WORDS[1],
                "SELECT pg_advisory_lock(1885827944, 1)".to_owned(),
            ),
            (
                WORDS[6],
                "BEGIN; LOCK TABLE shard_0000.users IN ROW EXCLUSIVE MODE".to_owned(),
            ),
        ] {
            let other = connect(&world.servers.server(0).superuser_url()).await;
            let named = format!("SET application_name = {}", quote_literal(word));
            other.batch_execute(&named).await.unwrap();
            other
                .batch_execute(&format!(
                    "{sql} /* {LITERAL} \u{1b}[2J */; SELECT \
                '{LITERAL}'"
                ))
                .await
                .unwrap();
            others.push(other);
        }

        let picture = world
            .servers
            .directory()
            .join("picture.svg")
            .display()
            .to_string();
        let bad = world.write(
            "migrations/0002_bad.sql",
            &format!("SELECT {}::int", quote_literal(WORDS[0])),
        );
        let mut commands: Vec<Vec<&str>> = vec![
            vec!["check"],
            vec!["check", "--ddl"],
            vec!["check", "--movable"],
            vec!["check", "--rows"],
            vec!["bootstrap"],
            vec!["migrate", "status"],
            vec!["migrate", "plan"],
            vec!["migrate", "up"],
            vec!["map", "show"],
            vec!["map", "show", "--by", "bytes", "--svg", &picture],
            vec!["host", "list"],
            vec!["rebalance", "--plan", "--by", "bytes"],
            vec!["move", "0", "--to", "db2", "--plan"],
            vec!["move", "0", "--to", "db2", "--yes", "--fence-attempts", "1"],
            vec!["moves", "list"],
            vec!["moves", "show"],
            vec!["moves", "abort"],
            vec!["tickets", "status"],
            vec![
                "sql",
                "SELECT relname, chr(155) AS c FROM pg_class WHERE relnamespace = \
                '{shard}'::regnamespace",
            ],
        ];
        for word in WORDS {
            commands.extend([
                vec!["move", "0", "--to", word, "--plan"],
                vec!["drain", word, "--plan"],
                vec!["moves", "show", word],
                vec!["locate", "--id", word],
                vec!["id", "decode", word],
                vec!["tickets", "next", word],
                vec!["rights", "--for", "router", "--role", word],
                vec!["sql", word],
                vec!["migrate", "backfill", word, "--table", word],
            ]);
        }
        let asked: Vec<String> = (0..WORDS.len())
            .map(|at| format!("SELECT {{shard}}.says{at}()"))
            .collect();
        commands.extend(
            asked
                .iter()
                .map(|sql| vec!["sql", sql.as_str(), "--shards", "1"]),
        );
        for args in &commands {
            world.says_nothing_hostile(args).await;
        }
        is_clean("the picture", &std::fs::read_to_string(&picture).unwrap());
        std::fs::remove_file(bad).unwrap();
        let journal = "SELECT m::text FROM pgshard.move m UNION ALL SELECT a::text FROM \
            pgshard.migration_attempt a";
        let journal = lines(&app, journal).await;
        assert!(
            !journal.contains(LITERAL) && !journal.contains(SECRET),
            "{journal}"
        );

        // Names of files, and what is in a config.
        let good = std::fs::read_to_string(&world.config.path).unwrap();
        for word in WORDS {
            let named = word.replace('/', "_");
            let file = world.write(&format!("migrations/0003_{named}.sql"), "SELECT 1");
            world.says_nothing_hostile(&["migrate", "plan"]).await;
            std::fs::remove_file(file).unwrap();
            let escaped = serde_json::to_string(word)
                .unwrap()
                .replace("\u{7f}", "\\u007f");
            for more in [
                format!(
                    "{good}\n[hosts.{escaped}]\nurl \
                    = \"postgres://app:{SECRET}@h/db?{SECRET}=1\"\n"
                ),
                good.replace(
                    "db1 = \"",
                    &format!("db1 = \"{SECRET} {}", &escaped[1..escaped.len() - 1]),
                ),
                format!("{escaped} = {escaped}\n{good}"),
                format!("{good}\n[router]\n{escaped} = 1\n"),
                format!("{good}\n# {word}\n= {word}"),
            ] {
                let more = more.replace(&format!("{SECRET} "), "");
                let config = world.write(&format!("{named}.toml"), &more);
                let config = config.to_str().unwrap();
                world
                    .says_nothing_hostile(&["--config", config, "map", "show"])
                    .await;
            }
        }
        drop(others);
    }

    /// What the exporter shows to every client.
    async fn words_in_metrics(version) {
        let world = World::new(&[version, version], 4).await;
        world
            .servers
            .app(0)
            .await
            .batch_execute(&objects())
            .await
            .unwrap();
        let mut command = world.command(
            &["exporter", "--listen", "127.0.0.1:0"],
            &[("PGSHARD_LOG", "pgshard=trace")],
        );
        let mut exporter = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        let mut out = exporter.stdout.take().unwrap();
        let port = loop {
            let mut byte = [0];
            out.read_exact(&mut byte).await.unwrap();
            said.push(byte[0].into());
            let digits = said
                .split("127.0.0.1:")
                .nth(1)
                .map(|rest| rest.chars().take_while(char::is_ascii_digit));
            if let (Some(digits), b'\n' | b'"' | b'/') = (digits, byte[0]) {
                break digits.collect::<String>().parse::<u16>().unwrap();
            }
        };
        for path in WORDS
            .iter()
            .map(|word| word.replace(['\r', '\n'], ""))
            .chain(["/metrics".to_owned()])
        {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await.ok();
            let answer = String::from_utf8(answer).unwrap().replace("\r\n", "\n");
            is_clean(&path, &answer);
            assert_eq!(
                answer.contains("pgshard_host_up"),
                path == "/metrics",
                "{path:?}: {answer}"
            );
        }
        exporter.kill().await.unwrap();
        let mut rest = String::new();
        exporter
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut rest)
            .await
            .unwrap();
        is_clean("the exporter's log", &(said + &rest));
    }
}
