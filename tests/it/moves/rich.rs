//! A shard like that of a grown application, moved to a newer version of PostgreSQL and back.

use crate::support::{World, lines, other};

const SCHEMA: &str = r#"
    CREATE TYPE {shard}.mood AS ENUM ('sad', 'ok', 'it''s "fine"');
    CREATE TYPE {shard}.address AS (street text, zip integer, "Größe" numeric(6,2));
    CREATE DOMAIN {shard}.email AS text COLLATE "C" CHECK (VALUE LIKE '%@%');
    CREATE TYPE {shard}.span AS RANGE (SUBTYPE = float8);
    CREATE SEQUENCE {shard}.invoice_no START 1000 INCREMENT 7;
    CREATE SEQUENCE {shard}.countdown INCREMENT -1 MAXVALUE 100 MINVALUE 1 START 100 CYCLE;
    CREATE SEQUENCE {shard}.never_used START 42;
    CREATE FUNCTION {shard}.initials(name text) RETURNS text IMMUTABLE LANGUAGE sql AS $$
    SELECT upper(left(name, 1)) $$;

    CREATE TABLE {shard}.accounts (
        id bigint PRIMARY KEY DEFAULT {shard}.next_id(),
        number integer GENERATED ALWAYS AS IDENTITY (START WITH 10 INCREMENT BY 5) UNIQUE,
        legacy serial NOT NULL,
        invoice bigint NOT NULL DEFAULT nextval('{shard}.invoice_no'),
        email {shard}.email UNIQUE,
        mood {shard}.mood NOT NULL DEFAULT 'ok',
        home {shard}.address,
        balance numeric(20,4) NOT NULL DEFAULT 0 CHECK (balance > -1000),
        tags text[] NOT NULL DEFAULT ARRAY[]::text[],
        boss bigint REFERENCES {shard}.accounts,
        "position" integer UNIQUE DEFERRABLE INITIALLY DEFERRED,
        full_name text NOT NULL,
        initials text GENERATED ALWAYS AS ({shard}.initials(full_name)) STORED,
        created timestamptz NOT NULL DEFAULT now());
    CREATE INDEX accounts_lower ON {shard}.accounts (lower(full_name)) WHERE mood <> 'sad';
    CREATE UNIQUE INDEX ON {shard}.accounts (full_name, created DESC NULLS LAST) INCLUDE (mood);
    CREATE INDEX ON {shard}.accounts USING gin (tags);
    COMMENT ON TABLE {shard}.accounts IS 'it''s the accounts';
    COMMENT ON COLUMN {shard}.accounts.mood IS 'how they are';
    GRANT SELECT ON {shard}.accounts TO PUBLIC;
    GRANT UPDATE (mood) ON {shard}.accounts TO PUBLIC;

    CREATE TABLE {shard}.values (
        n integer PRIMARY KEY, a boolean, b smallint, c integer, d bigint, e real,
        f double precision, g numeric, h numeric(10,3), i text, j varchar(10), k char(5), l bytea,
        m date, o time, p timetz, q timestamp, r timestamptz, s interval, t uuid, u json, v jsonb,
        w inet, x cidr, y macaddr, z bit(5), aa varbit, ab int4range, ac tstzrange,
        ad int4multirange, ae point, af box, ag path, ah polygon, ai circle, aj tsvector,
        ak tsquery, al money, am pg_lsn, an "char", ao name, ap integer[], aq {shard}.mood[],
        ar {shard}.address[], at {shard}.span, au jsonpath, av {shard}.email, aw {shard}.email[],
        ax {shard}.address, ay text COLLATE "C", az lseg, ba timestamptz[], bb macaddr8,
        bc daterange);
    CREATE TABLE {shard}.bookings (room integer, during tstzrange NOT NULL,
        EXCLUDE USING gist (during WITH &&));
    CREATE TABLE {shard}.log (at timestamptz, line text);
    ALTER TABLE {shard}.log REPLICA IDENTITY FULL;
    ALTER TABLE {shard}.log ALTER COLUMN line SET STORAGE EXTERNAL;
    CREATE TABLE {shard}.dropped (a integer, b integer, c text);
    ALTER TABLE {shard}.dropped DROP COLUMN b;
    CREATE TABLE {shard}."Ödd ""table""" ("select" integer PRIMARY KEY,
        "Spalte mit Leerzeichen" text);
    CREATE TABLE {shard}.nothing ();
    CREATE VIEW {shard}.happy AS SELECT id, full_name FROM {shard}.accounts WHERE mood <> 'sad';
    CREATE VIEW {shard}.by_account AS SELECT a.*, count(*) FROM {shard}.accounts a GROUP BY a.id;
    CREATE MATERIALIZED VIEW {shard}.moods AS SELECT mood, count(*) AS n
        FROM {shard}.happy JOIN {shard}.accounts USING (id) GROUP BY mood;
    CREATE UNIQUE INDEX ON {shard}.moods (mood);
    CREATE MATERIALIZED VIEW {shard}."1st of all" AS
        SELECT sum(n) AS n, '2020-01-01 12:00+00'::timestamptz::text AS shown FROM {shard}.moods;
    CREATE MATERIALIZED VIEW {shard}.not_yet AS SELECT id FROM {shard}.accounts WITH NO DATA;
    CREATE COLLATION {shard}.by_bytes (LOCALE = 'C');
    CREATE TABLE {shard}.ruled (id integer PRIMARY KEY, word text COLLATE {shard}.by_bytes,
        n integer DEFAULT 0);
    CREATE RULE counted AS ON UPDATE TO {shard}.ruled DO ALSO
        INSERT INTO {shard}.log VALUES ('2020-01-01', 'updated ' || OLD.id);
    CREATE RULE kept AS ON DELETE TO {shard}.ruled DO INSTEAD UPDATE {shard}.ruled SET n = -1
        WHERE id = OLD.id;
    CREATE RULE into_happy AS ON INSERT TO {shard}.happy DO INSTEAD INSERT INTO {shard}.ruled (id)
        VALUES (NEW.id);
    INSERT INTO {shard}.ruled SELECT g, 'w' || g FROM generate_series(1, 9) g;
    ALTER DEFAULT PRIVILEGES IN SCHEMA {shard} GRANT SELECT ON TABLES TO PUBLIC;
    CREATE FUNCTION {shard}.note() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN INSERT INTO {shard}.log VALUES (clock_timestamp(), TG_OP || ' ' || NEW.full_name);
            RETURN NEW; END $$;
    CREATE TRIGGER noted AFTER INSERT ON {shard}.accounts FOR EACH ROW
        EXECUTE FUNCTION {shard}.note();
"#;

const DATA: &str = r#"
    SET search_path = shard_0000, public;
    INSERT INTO accounts (id, boss, "position", full_name, email, home, balance, tags, mood) VALUES
        (1, 2, 1, 'Ängström 🦀', 'a@x', ROW('Street "1", (b)', 12345, 1.50), 0.1000,
            '{a,"b c",NULL,"d\"e"}', 'it''s "fine"'),
        (2, NULL, 2, E'tab\tnew\nline\\back', NULL, NULL, -999.9999, '{}', 'sad'),
        (3, 3, 3, '', 'c@y', ROW(NULL, NULL, NULL), 12345678901234.5, DEFAULT, 'ok');
    -- A pair that was swapped.
    BEGIN; UPDATE accounts SET "position" = 3 - "position" WHERE "position" < 3; COMMIT;
    INSERT INTO accounts (full_name) SELECT 'user ' || n FROM generate_series(1, 200) n;
    INSERT INTO values (n) VALUES (0);
    INSERT INTO values VALUES
        (1, true, -32768, 2147483647, -9223372036854775808, 'NaN', 'Infinity', 'NaN', 1.500,
            'text', 'é', 'ab', '\x00ff', 'infinity',
        '24:00', '12:00:00.000001+14', '-infinity', 'infinity',
        '-1 year 2 mons -3 days 04:05:06.789', gen_random_uuid(),
        '{"b": 1,  "a":[1, 2.50], "a": null}', '{"b": 1.50, "a": "ü\u0001"}', '::1/64',
        '10.0.0.0/8', '08:00:2b:01:02:03', '10101', '1',
        '[1,5)', '[-infinity,2020-01-01 00:00+00]', '{[1,3),[7,9)}', '(0.1,1e300)', '(1,1),(0,0)',
        '[(0,0),(1,1)]', '((0,0),(1,1),(1,0))',
        '<(0,0),1>', 'a:1A b:2,3', 'a & !b', '$1,234.50', '16/B374D848',
        'x', 'name', '[2:3][-1:0]={{1,2},{3,NULL}}', '{sad,"it''s \"fine\""}',
        ARRAY[ROW('x', 1, 2.25)::address, NULL], '[0.5,NaN]', '$.a[*] ? (@ > 1)', 'x@y',
        '{a@b,NULL}',
        ROW('', 0, 0), 'ß', '((0,0),(1,1))', '{infinity,-infinity,"2020-02-29 12:00+02"}',
        '08:00:2b:01:02:03:04:05', 'empty'),
        (2, false, 0, 0, 0, '-0', '1e-307', 1.0, 0, repeat('long ', 20000), '', '',
            decode(repeat('ab', 5000), 'hex'),
            '0044-03-15 BC',
        '00:00', '00:00-12', '294276-12-31 23:59:59.999999', '4713-01-01 00:00+00 BC', '0',
        '00000000-0000-0000-0000-000000000000', 'null', 'null',
        '1.2.3.4', '::/0', 'ff:ff:ff:ff:ff:ff', '00000', '', 'empty', '(,)', '{}', '(NaN,-0)',
        '(1,1),(1,1)', '((0,0),(1,1))', '((0,0))', '<(1,1),0>', '', '',
        '-$0.01', '1/16B37420', '', '', '{}', '{}', '{}', 'empty', '$', '@', '{}',
        ROW('a,b', -1, NULL), '', '((0,0),(0,0))',
        '{}', '00:00:00:00:00:00:00:00', '(,)');
    INSERT INTO values (n, g, h, e, f) SELECT 10 + n, pi()::numeric / n, n / 7.0, pi() / n, pi() / n
    FROM generate_series(1, 100) n;
    INSERT INTO bookings VALUES (1, '[2020-01-01, 2020-01-02)'), (2, '[2020-01-02, 2020-01-03)');
    INSERT INTO log SELECT '2020-01-01', 'the same line' FROM generate_series(1, 5);
    INSERT INTO dropped VALUES (1, 'c');
    INSERT INTO "Ödd ""table""" VALUES (1, 'Wert'), (2, NULL);
    INSERT INTO nothing DEFAULT VALUES; INSERT INTO nothing DEFAULT VALUES;
    SELECT nextval('countdown'), nextval('countdown'), nextval('countdown');
    REFRESH MATERIALIZED VIEW moods; REFRESH MATERIALIZED VIEW "1st of all";
    RESET search_path"#;

/// The materialized views that have not been filled.
const EMPTY: &str = "SELECT relname FROM pg_class
    WHERE relnamespace = 'shard_0000'::regnamespace AND NOT relispopulated ORDER BY 1";

/// Every row of every table and view as text; and which materialized views are empty.
async fn rows(world: &World, host: usize) -> String {
    let db = world.servers.app(host).await;
    db.batch_execute("SET timezone = 'UTC'; SET datestyle = 'ISO, YMD'; SET lc_monetary = 'C'")
        .await
        .unwrap();
    let mut text = lines(&db, EMPTY).await;
    let sql = "SELECT quote_ident(relname) FROM pg_class
        WHERE relnamespace = 'shard_0000'::regnamespace AND relkind IN ('r', 'v', 'm') AND \
        relispopulated ORDER BY 1";
    for relation in lines(&db, sql).await.lines() {
        text += &format!(
            "{relation}:\n{}",
            lines(
                &db,
                &format!("SELECT one_row::text FROM shard_0000.{relation} AS one_row ORDER BY 1")
            )
            .await
        );
    }
    text
}

/// The differences between the shards' definitions.
async fn differences(world: &World) -> Vec<String> {
    let report = world.run(&["check", "--ddl"]).await.last();
    let findings = report["findings"].as_array().unwrap().iter();
    findings
        .filter(|one| one["code"] == "ddl_differs")
        .map(|one| one["message"].to_string())
        .collect()
}

/// What this version knows of it: multiranges came with 14, and before that there is an array of
/// ranges.
fn known(version: u32, sql: &str) -> String {
    if version >= 14 {
        return sql.to_owned();
    }
    sql.replace("int4multirange", "int4range[]")
        .replace("{[1,3),[7,9)}", r#"{"[1,3)","[7,9)"}"#)
}

on_each_version! {
    /// Every row and every rule is the same on the other version, and back again.
    async fn there_and_back(version) {
        let tables = known(version, SCHEMA);
        let world =
            World::with_tables(&[version, other(version)], 2, &[("0001_rich.sql", &tables)]).await;
        world
            .servers
            .app(0)
            .await
            .batch_execute(&known(version, DATA))
            .await
            .unwrap();
        let before = rows(&world, 0).await;
        world
            .run(&["move", "0", "--to", "db2", "--yes"])
            .await
            .ended(0);
        pretty_equal(&before, &rows(&world, 1).await);
        world
            .run(&["move", "0", "--to", "db1", "--yes"])
            .await
            .ended(0);
        pretty_equal(&before, &rows(&world, 0).await);

        // Roles still have the same rights.
        let db1 = world.servers.app(0).await;
        for (sql, code) in [
            (
                "INSERT INTO shard_0000.accounts (full_name, boss) VALUES ('x', 12345)",
                "23503",
            ),
            (
                "INSERT INTO shard_0000.accounts (full_name, balance) VALUES ('x', -1000)",
                "23514",
            ),
            (
                "INSERT INTO shard_0000.accounts (full_name, email) VALUES ('x', 'nobody')",
                "23514",
            ),
            (
                "INSERT INTO shard_0000.accounts (full_name, email) VALUES ('x', 'a@x')",
                "23505",
            ),
            (
                "INSERT INTO shard_0000.bookings VALUES (3, '[2020-01-01, 2020-01-03)')",
                "23P01",
            ),
            (
                "INSERT INTO shard_0000.accounts (full_name, mood) VALUES ('x', 'angry')",
                "22P02",
            ),
            (
                "INSERT INTO shard_0000.accounts (full_name, number) VALUES ('x', 1)",
                "428C9",
            ),
        ] {
            let error = db1.batch_execute(sql).await.unwrap_err();
            assert_eq!(error.code().unwrap().code(), code, "{sql}");
        }
        let swap = "BEGIN; UPDATE shard_0000.accounts SET \"position\" = 3 - \"position\" \
                WHERE \"position\" < 3; COMMIT";
        db1.batch_execute(swap).await.unwrap();
        let logged = "SELECT count(*) FROM shard_0000.log";
        let before: i64 = db1.query_one(logged, &[]).await.unwrap().get(0);
        db1.batch_execute(
            "INSERT INTO shard_0000.accounts (full_name) VALUES \
            ('after')",
        )
        .await
        .unwrap();
        assert_eq!(
            db1.query_one(logged, &[]).await.unwrap().get::<_, i64>(0),
            before + 1,
            "the trigger is on"
        );
        let comment = "SELECT obj_description('shard_0000.accounts'::regclass)";
        assert_eq!(
            db1.query_one(comment, &[]).await.unwrap().get::<_, &str>(0),
            "it's the accounts"
        );
        world.audit_places().await;
    }

    /// The same while the shard is open and written to: every row, and every definition.
    async fn there_and_back_under_writers(version) {
        let tables = known(version, SCHEMA);
        let world =
            World::with_tables(&[version, other(version)], 2, &[("0001_rich.sql", &tables)]).await;
        world
            .servers
            .app(0)
            .await
            .batch_execute(&known(version, DATA))
            .await
            .unwrap();
        // Without a key, and published for UPDATE and DELETE.
        for (host, shard) in [(0, "shard_0000"), (1, "shard_0001")] {
            let full = ["bookings", "dropped", "nothing"]
                .map(|table| format!("ALTER TABLE {shard}.{table} REPLICA IDENTITY FULL"));
            world
                .servers
                .app(host)
                .await
                .batch_execute(&full.join(";"))
                .await
                .unwrap();
        }
        let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let deeds = r#"
            INSERT INTO shard_0000.accounts (full_name, tags, home)
                VALUES ('new', '{x}', ROW('a', 1, 2));
            UPDATE shard_0000.accounts SET balance = balance + 1, mood = 'sad'
                WHERE id IN (SELECT max(id) FROM shard_0000.accounts);
            UPDATE shard_0000.values SET b = 7 - coalesce(b, 0) % 7, av = 'z@z', aq = '{ok}'
                WHERE n IN (1, 2);
            UPDATE shard_0000.values SET n = n + 1000 WHERE n = 2;
            UPDATE shard_0000.values SET n = n - 1000 WHERE n = 1002;
            UPDATE shard_0000."Ödd ""table""" SET "Spalte mit Leerzeichen" = now()::text
                WHERE "select" = 1;
            DELETE FROM shard_0000.accounts WHERE full_name = 'new' AND id % 3 = 0;
            UPDATE shard_0000.ruled SET n = n + 1 WHERE id = 3;
            DELETE FROM shard_0000.ruled WHERE id = 4;
            INSERT INTO shard_0000.nothing DEFAULT VALUES"#;
        let writer = tokio::spawn({
            let (clients, stop) = (world.all().await, stop.clone());
            async move {
                let (mut wrote, mut refused) = (0, Vec::new());
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    for client in &clients {
                        match client.batch_execute(deeds).await {
                            Ok(()) => wrote += 1,
                            // Where the shard is not served, the signpost raises an error, or there
                            // is none yet.
                            Err(error)
                                if error.code().is_some_and(|code| {
                                    ["SH001", "3F000", "42P01"].contains(&code.code())
                                }) => {}
                            Err(error) => refused.push(format!("{error:?}")),
                        }
                    }
                    tokio::time::sleep(std::time::Duration::from_millis(10)).await;
                }
                (wrote, refused)
            }
        });
        let mut kept = Vec::new();
        for (to, host) in [("db2", 1), ("db1", 0)] {
            let ran = world
                .run(&["move", "0", "--to", to, "--mode", "online", "--yes"])
                .await;
            ran.ended(0);
            assert_eq!(world.state(host, 0).await, "serving");
            kept.push(ran.id());
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let (wrote, refused) = writer.await.unwrap();
        assert!(wrote > 0, "{refused:?}");
        assert!(
            refused.is_empty(),
            "{wrote} transactions were done, and {refused:#?}"
        );
        // The writers have stopped, so everything is compared completely, except the sequences,
        // which are ahead.
        let refresh = "REFRESH MATERIALIZED VIEW shard_0000.moods; REFRESH MATERIALIZED VIEW \
            shard_0000.\"1st of all\"";
        world
            .servers
            .app(0)
            .await
            .batch_execute(refresh)
            .await
            .unwrap();
        let before = rows(&world, 0).await;
        let there = ["move", "0", "--to", "db2", "--mode", "online", "--yes"];
        let plan = world
            .run(&[&there[..6], &["--plan"]].concat())
            .await
            .ended(0)
            .last();
        let steps = plan["shards"][0]["steps"].to_string();
        assert!(
            steps.contains("fill 2 materialized views") && steps.contains("of that moment"),
            "{steps}"
        );
        kept.push(world.run(&there).await.ended(0).id());
        pretty_equal(&before, &rows(&world, 1).await);
        // Shard 1 has never moved, and is on the same host now: different versions deparse a view
        // differently.
        assert_eq!(differences(&world).await, [""; 0]);
        // In a rollback the views of the old copy are filled as well, with the data of that time.
        let last = kept.pop().unwrap();
        let more = "INSERT INTO shard_0000.accounts (full_name) VALUES ('after');
            REFRESH MATERIALIZED VIEW shard_0000.not_yet; REFRESH MATERIALIZED VIEW \
            shard_0000.moods;
            REFRESH MATERIALIZED VIEW shard_0000.\"1st of all\" WITH NO DATA";
        world
            .servers
            .app(1)
            .await
            .batch_execute(more)
            .await
            .unwrap();
        let now = rows(&world, 1).await;
        world
            .run(&["moves", "rollback", &last, "--yes"])
            .await
            .ended(0);
        pretty_equal(&now, &rows(&world, 0).await);
        for id in kept {
            world
                .run(&["moves", "complete", &id, "--yes"])
                .await
                .ended(0);
        }
        world.audit_places().await;
    }

    /// Identity, serial, shared and descending sequences continue: no value comes twice, and a move
    /// skips as many as it reports.
    async fn sequences_go_on(version) {
        let tables = known(version, SCHEMA);
        let world =
            World::with_tables(&[version, other(version)], 2, &[("0001_rich.sql", &tables)]).await;
        world
            .servers
            .app(0)
            .await
            .batch_execute(&known(version, DATA))
            .await
            .unwrap();
        let insert = "INSERT INTO shard_0000.accounts (full_name) VALUES ('x') RETURNING number, \
            legacy, invoice, id";
        let mut last: (i32, i32, i64, i64) = (0, 0, 0, 0);
        let mut moved = false;
        for (host, to) in [(0, "db2"), (1, "db1"), (0, "db2")] {
            for host in [host, 1 - host] {
                if host == usize::from(to == "db2") {
                    world
                        .run(&["move", "0", "--to", to, "--yes"])
                        .await
                        .ended(0);
                    moved = true;
                }
                let db = world.servers.app(host).await;
                for _ in 0..3 {
                    let row = db.query_one(insert, &[]).await.unwrap();
                    let next: (i32, i32, i64, i64) =
                        (row.get(0), row.get(1), row.get(2), row.get(3));
                    if last.0 > 0 {
                        let ahead = if std::mem::take(&mut moved) {
                            10_000
                        } else {
                            0
                        };
                        let then = (
                            last.0 + 5 + 5 * ahead,
                            last.1 + 1 + ahead,
                            last.2 + 7 + 7 * i64::from(ahead),
                        );
                        assert_eq!((next.0, next.1, next.2), then);
                        assert!(next.3 > last.3, "{next:?} comes after {last:?}");
                    }
                    last = next;
                }
            }
        }
        let db = world.servers.app(1).await;
        for (sequence, value) in [("countdown", 97_i64), ("never_used", 30_042)] {
            let row = db
                .query_one(&format!("SELECT nextval('shard_0000.{sequence}')"), &[])
                .await
                .unwrap();
            assert_eq!(row.get::<_, i64>(0), value);
        }
    }
}

/// Checks that both are equal, or shows the first line that differs.
#[track_caller]
fn pretty_equal(before: &str, after: &str) {
    for (line, (ours, theirs)) in before.lines().zip(after.lines()).enumerate() {
        assert_eq!(ours, theirs, "line {}", line + 1);
    }
    assert_eq!(before.lines().count(), after.lines().count());
}
