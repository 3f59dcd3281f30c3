//! Breaks each thing of a cluster that can break: `check` names it, and the remedy that it names
//! repairs it.

use serde_json::Value;

use crate::support::{World, lines};

use super::found;

/// What repairs it.
#[derive(Clone, Copy, Debug)]
enum Remedy {
    /// The command that the remedy names.
    Command(&'static [&'static str]),
    /// The statement in the remedy, from this word on; it is run as a superuser.
    Statement(&'static str),
    /// The remedy is to restore something: these statements undo the damage.
    Restore(&'static str),
}

/// Statements of a superuser on db1, the finding's code, words of its message, and the remedy.
type Break = (&'static str, &'static str, &'static str, Remedy);

const BOOTSTRAP: Remedy = Remedy::Command(&["bootstrap"]);
const REBUILD: Remedy = Remedy::Command(&["map", "rebuild", "--yes"]);

/// The definitions of the control schema's tables and functions. All are broken together.
const SHAPES: [Break; 20] = [
    (
        "ALTER TABLE pgshard.move DROP COLUMN rows",
        "control_damaged",
        "its column move.rows is gone",
        BOOTSTRAP,
    ),
    (
        "ALTER TABLE pgshard.move ALTER back DROP DEFAULT",
        "control_damaged",
        "move.back has lost its default",
        BOOTSTRAP,
    ),
    (
        "ALTER TABLE pgshard.move ALTER rows SET DEFAULT 1",
        "control_damaged",
        "move.rows has a default",
        BOOTSTRAP,
    ),
    (
        "ALTER TABLE pgshard.shard ALTER epoch DROP NOT NULL",
        "control_damaged",
        "shard.epoch can be null",
        BOOTSTRAP,
    ),
    (
        "ALTER TABLE pgshard.incoming ALTER at_open SET NOT NULL",
        "control_damaged",
        "at_open cannot be null",
        BOOTSTRAP,
    ),
    (
        "ALTER TABLE pgshard.shard DROP CONSTRAINT shard_state_check",
        "control_damaged",
        "its table shard has 4 CHECK constraints, not 5",
        BOOTSTRAP,
    ),
    (
        "ALTER TABLE pgshard.known_host ADD CHECK (host_name <> 'db9')",
        "control_damaged",
        "its table known_host has 1 CHECK constraints, not 0",
        BOOTSTRAP,
    ),
    (
        "ALTER TABLE pgshard.marker DROP CONSTRAINT marker_pkey",
        "control_damaged",
        "its table marker has lost its primary key",
        BOOTSTRAP,
    ),
    (
        "ALTER TABLE pgshard.ledger SET UNLOGGED",
        "control_damaged",
        "its table ledger is unlogged",
        BOOTSTRAP,
    ),
    (
        "ALTER TABLE pgshard.cluster ENABLE ROW LEVEL SECURITY",
        "control_damaged",
        "its table cluster has row security",
        Remedy::Statement("ALTER TABLE"),
    ),
    (
        "DROP TABLE pgshard.beacon",
        "control_damaged",
        "its table beacon is gone",
        BOOTSTRAP,
    ),
    (
        "DROP TABLE pgshard.mover",
        "control_damaged",
        "its table mover is gone",
        BOOTSTRAP,
    ),
    (
        "ALTER TABLE pgshard.progress ALTER breach TYPE varchar",
        "control_damaged",
        "its column progress.breach is of the type character varying, not text",
        BOOTSTRAP,
    ),
    (
        "ALTER FUNCTION pgshard.finish_open(integer, uuid) STRICT",
        "control_damaged",
        "its function finish_open was altered",
        BOOTSTRAP,
    ),
    (
        "ALTER FUNCTION pgshard.migrated(text) VOLATILE",
        "control_damaged",
        "its function migrated was altered",
        BOOTSTRAP,
    ),
    (
        "CREATE TRIGGER mine BEFORE UPDATE ON pgshard.shard FOR EACH ROW
         EXECUTE FUNCTION pg_catalog.suppress_redundant_updates_trigger()",
        "control_damaged",
        "its table shard has a trigger mine",
        Remedy::Statement("DROP TRIGGER"),
    ),
    (
        "CREATE RULE mine AS ON DELETE TO pgshard.progress DO INSTEAD NOTHING",
        "control_damaged",
        "its table progress has a rule mine",
        Remedy::Statement("DROP RULE"),
    ),
    (
        "ALTER TABLE pgshard.chunk ADD COLUMN mine int",
        "control_damaged",
        "its table chunk has a column mine",
        Remedy::Statement("ALTER TABLE"),
    ),
    (
        "ALTER TABLE pgshard.reread OWNER TO postgres",
        "control_damaged",
        "its table reread belongs to postgres, not to app",
        Remedy::Statement("ALTER TABLE"),
    ),
    (
        "ALTER FUNCTION pgshard.look(integer) OWNER TO postgres",
        "control_damaged",
        "its function look belongs to postgres, not to app",
        Remedy::Statement("ALTER FUNCTION"),
    ),
];

/// The contents of the control schema, and the shards' schemas. One after the other is broken. db1
/// serves the shards 0 to 3.
const ROWS: [Break; 19] = [
    (
        "ALTER TABLE pgshard.chunk RENAME TO gone",
        "control_damaged",
        "its table chunk is gone",
        Remedy::Restore("ALTER TABLE pgshard.gone RENAME TO chunk"),
    ),
    (
        "ALTER TABLE pgshard.ledger RENAME TO gone",
        "control_damaged",
        "its table ledger is gone",
        Remedy::Restore("ALTER TABLE pgshard.gone RENAME TO ledger"),
    ),
    (
        "ALTER SCHEMA pgshard OWNER TO postgres",
        "not_owner",
        "belongs to the role postgres",
        Remedy::Restore("ALTER SCHEMA pgshard OWNER TO app"),
    ),
    (
        "UPDATE pgshard.cluster SET shards = 16",
        "shards_differ",
        "it recorded 16 shards",
        Remedy::Restore("UPDATE pgshard.cluster SET shards = 8"),
    ),
    (
        "UPDATE pgshard.cluster SET host_name = 'db2'",
        "host_name_differs",
        "it recorded that it is the host db2",
        Remedy::Restore("UPDATE pgshard.cluster SET host_name = 'db1'"),
    ),
    (
        "CREATE TABLE public.kept AS SELECT * FROM pgshard.cluster; DELETE FROM pgshard.cluster",
        "control_lost",
        "has lost what it recorded of the cluster",
        Remedy::Restore("INSERT INTO pgshard.cluster SELECT * FROM public.kept"),
    ),
    (
        "DELETE FROM pgshard.control_migration WHERE version IN (4, 6)",
        "control_unrecorded",
        "its control migration 6 was run, and the record of that is gone",
        Remedy::Statement("INSERT INTO"),
    ),
    (
        "UPDATE pgshard.control_migration SET checksum = 'x' WHERE version = 3",
        "control_changed",
        "its control migration 3 (signposts) was run with another text",
        Remedy::Restore(
            "UPDATE pgshard.control_migration m SET checksum = f.checksum
             FROM public.saved f WHERE f.version = m.version",
        ),
    ),
    (
        "DELETE FROM pgshard.shard WHERE shard_id = 1",
        "shard_lost",
        "knows that it was on db1, which no longer knows it",
        Remedy::Restore(
            "INSERT INTO pgshard.shard (shard_id, schema_name, state, epoch)
            VALUES (1, 'shard_0001', 'serving', 1)",
        ),
    ),
    (
        "UPDATE pgshard.shard SET schema_name = 'x' WHERE shard_id = 1",
        "schema_misnamed",
        "the host says that its schema is x",
        Remedy::Statement("UPDATE"),
    ),
    (
        "UPDATE pgshard.shard SET state = 'moved', peer = 'db2' WHERE shard_id = 1",
        "served_nowhere",
        "has moved to db2",
        Remedy::Restore(
            "UPDATE pgshard.shard SET state = 'serving', peer = NULL WHERE shard_id = 1",
        ),
    ),
    (
        "INSERT INTO pgshard.shard (shard_id, schema_name, state, epoch) VALUES (5, 'shard_0005', \
            'serving', 1)",
        "served_twice",
        "both serve it",
        Remedy::Restore("DELETE FROM pgshard.shard WHERE shard_id = 5"),
    ),
    (
        "UPDATE pgshard.shard SET epoch = 5 WHERE shard_id = 2",
        "shard_epoch_differs",
        "the host at 5",
        REBUILD,
    ),
    (
        "DELETE FROM pgshard.known_host",
        "record_behind",
        "has not recorded that",
        BOOTSTRAP,
    ),
    (
        "UPDATE pgshard.known_host SET shards = 'many'",
        "host_unreadable",
        "pgshard.known_host",
        Remedy::Statement("DELETE"),
    ),
    (
        "DELETE FROM pgshard.shard_migration WHERE shard_id = 1 AND name = '0001_tables'",
        "migrations_pending",
        "it lacks 0001_tables",
        Remedy::Command(&[
            "migrate",
            "resolve",
            "0001_tables",
            "--applied",
            "--only",
            "1",
        ]),
    ),
    (
        "UPDATE pgshard.shard_migration SET checksum = 'x' WHERE shard_id = 1 AND name = \
            '0001_tables'",
        "migrations_drift",
        "0001_tables was changed after it was run",
        Remedy::Command(&["migrate", "resolve", "0001_tables", "--accept-edit"]),
    ),
    (
        "INSERT INTO pgshard.migration_attempt (shard_id, name, checksum, begun) VALUES (1, \
            '0002_gone', 'x', true)",
        "migration_failed",
        "0002_gone: it was begun, and its outcome is unknown",
        Remedy::Statement("DELETE FROM"),
    ),
    (
        "CREATE SCHEMA shard_0002__left_e7",
        "stray_schema",
        "shard_0002__left_e7",
        Remedy::Statement("DROP SCHEMA"),
    ),
];

impl World {
    /// Follows a finding's remedy.
    async fn remedied(&self, found: &Value, remedy: Remedy) {
        let said = found["remedy"].as_str().unwrap();
        let superuser = self.servers.superuser(0).await;
        match remedy {
            Remedy::Command(args) => {
                let named = format!("pgshard {} {}", args[0], args.get(1).unwrap_or(&""))
                    .trim_end()
                    .to_owned();
                assert!(said.contains(&named), "{named}: {found:#}");
                self.run(args).await.ended(0);
            }
            Remedy::Statement(word) => {
                let at = said
                    .find(word)
                    .unwrap_or_else(|| panic!("{word}: {found:#}"));
                let statement = said[at..].split(['`']).next().unwrap();
                superuser
                    .batch_execute(statement)
                    .await
                    .unwrap_or_else(|error| panic!("{statement}: {error}"));
            }
            Remedy::Restore(sql) => superuser.batch_execute(sql).await.unwrap(),
        }
    }
}

#[track_caller]
fn one<'a>(all: &'a [Value], (damage, code, words, _): &Break) -> &'a Value {
    let is = |found: &&Value| {
        found["code"] == *code && found["message"].as_str().unwrap().contains(words)
    };
    all.iter()
        .find(is)
        .unwrap_or_else(|| panic!("{damage}: {all:#?}"))
}

on_each_version! {
    /// The definitions of the control schema: many things are broken together and named; then each
    /// is repaired by its remedy, and everything is as bootstrap creates it.
    async fn what_the_control_schema_is_made_of(version) {
        let world = World::new(&[version], 4).await;
        let superuser = world.servers.superuser(0).await;
        // Everything, except the names and the order of constraints and columns.
        let all = "SELECT concat_ws(' ', a.attrelid::regclass, attname, format_type(atttypid, \
            atttypmod), attnotnull,
                pg_get_expr(adbin, adrelid))
            FROM pg_attribute a JOIN pg_class c ON c.oid = attrelid LEFT JOIN pg_attrdef d ON \
            adrelid = attrelid AND
                adnum = attnum
            WHERE c.relnamespace = 'pgshard'::regnamespace AND c.relkind = 'r' AND attnum > 0 AND \
            NOT attisdropped
            UNION ALL SELECT concat_ws(' ', conrelid::regclass, pg_get_constraintdef(oid)) FROM \
            pg_constraint
                WHERE connamespace = 'pgshard'::regnamespace AND contype <> 'n'
            UNION ALL SELECT concat_ws(' ', pg_get_functiondef(oid), proowner::regrole) FROM pg_proc
                WHERE pronamespace = 'pgshard'::regnamespace
            UNION ALL SELECT concat_ws(' ', relname, relpersistence, relrowsecurity, \
            relowner::regrole) FROM pg_class
                WHERE relnamespace = 'pgshard'::regnamespace AND relkind = 'r'
            ORDER BY 1";
        let whole = lines(&superuser, all).await;
        for (at, (damage, ..)) in SHAPES.iter().enumerate() {
            // The first drops a column that the third needs.
            if at == 2 {
                world.run(&["bootstrap"]).await.ended(0);
            }
            superuser
                .batch_execute(damage)
                .await
                .unwrap_or_else(|error| panic!("{damage}: {error}"));
            if at == 0 || at == 1 {
                one(&found(&world).await, &SHAPES[at]);
            }
        }
        let all_found = found(&world).await;
        for broken in &SHAPES[2..] {
            one(&all_found, broken);
        }
        for broken in SHAPES[2..]
            .iter()
            .filter(|broken| !matches!(broken.3, Remedy::Command(_)))
        {
            world.remedied(one(&all_found, broken), broken.3).await;
        }
        world.remedied(one(&all_found, &SHAPES[3]), BOOTSTRAP).await;
        assert_eq!(found(&world).await, [Value::Null; 0]);
        assert_eq!(lines(&superuser, all).await, whole);
        assert!(
            world
                .run(&["bootstrap"])
                .await
                .ended(0)
                .stderr
                .contains("nothing to do")
        );
    }

    /// The contents of the control schema: one thing after the other is changed, named, and
    /// repaired by its remedy.
    async fn what_the_control_schema_says(version) {
        let world = World::new(&[version, version], 8).await;
        let superuser = world.servers.superuser(0).await;
        superuser
            .batch_execute(
                "CREATE TABLE public.saved AS SELECT * FROM \
            pgshard.control_migration",
            )
            .await
            .unwrap();
        assert_eq!(found(&world).await, [Value::Null; 0]);
        for broken in &ROWS {
            superuser
                .batch_execute(broken.0)
                .await
                .unwrap_or_else(|error| panic!("{}: {error}", broken.0));
            let mut tries = 0;
            // A remedy may leave another thing of the same kind to be done, for instance the second
            // of two records.
            loop {
                let all_found = found(&world).await;
                if all_found.is_empty() {
                    break;
                }
                tries += 1;
                assert!(tries < 4, "{}: {all_found:#?}", broken.0);
                let of_code = all_found.iter().find(|found| found["code"] == broken.1);
                match of_code {
                    Some(found) if tries > 1 => world.remedied(found, broken.3).await,
                    None if tries > 1 => {
                        // A bootstrap then restores what the host remembers of the others.
                        assert_eq!(
                            all_found[0]["code"], "record_behind",
                            "{}: {all_found:#?}",
                            broken.0
                        );
                        world.run(&["bootstrap"]).await.ended(0);
                    }
                    _ => world.remedied(one(&all_found, broken), broken.3).await,
                }
            }
            assert!(tries > 0, "{} is not named", broken.0);
        }
    }

    /// Each table and each function of the control schema is taken away, and named. The remedy for
    /// a table with rows that exist nowhere else is a restore; `bootstrap` creates everything else
    /// again, and reports it.
    async fn each_table_and_function_is_missed(version) {
        let world = World::new(&[version], 4).await;
        let db1 = world.servers.app(0).await;
        let tables = "SELECT relname::text FROM pg_class WHERE relnamespace = \
            'pgshard'::regnamespace AND relkind = 'r'
            ORDER BY 1";
        for table in lines(&db1, tables).await.lines() {
            db1.batch_execute(&format!(
                "ALTER TABLE pgshard.{table} RENAME TO \
                gone"
            ))
            .await
            .unwrap();
            let all_found = found(&world).await;
            let words = format!("its table {table} is gone");
            let one = all_found
                .iter()
                .find(|one| one["message"].as_str().unwrap().ends_with(&words));
            let one = one.unwrap_or_else(|| panic!("{table}: {all_found:#?}"));
            assert_eq!(
                (&one["code"], &one["host"]),
                (&"control_damaged".into(), &"db1".into())
            );
            let remade = ["beacon", "known_host", "mover"].contains(&table);
            let (remedy, begin) = (
                one["remedy"].as_str(),
                if remade {
                    "run `pgshard bootstrap`"
                } else {
                    "restore"
                },
            );
            assert!(
                remedy.is_some_and(|remedy| remedy.starts_with(begin)),
                "{table}: {one}"
            );
            // It makes nothing in the place of a table that had rows.
            let ran = world.run(&["bootstrap"]).await;
            assert!(!remade || ran.code() == 0, "{table}: {}", ran.stderr);
            let back = if remade {
                "DROP TABLE pgshard.gone".to_owned()
            } else {
                format!("ALTER TABLE pgshard.gone RENAME TO {table}")
            };
            db1.batch_execute(&back).await.unwrap();
        }
        world.run(&["bootstrap"]).await.ended(0);
        assert_eq!(found(&world).await, [Value::Null; 0]);

        let functions = "SELECT proname::text FROM pg_proc WHERE pronamespace = \
            'pgshard'::regnamespace ORDER BY 1";
        let functions = lines(&db1, functions).await;
        let drop = "DO $$ DECLARE f regprocedure; BEGIN
            FOR f IN SELECT oid::regprocedure FROM pg_proc WHERE pronamespace = \
            'pgshard'::regnamespace LOOP
                EXECUTE 'DROP FUNCTION ' || f;
            END LOOP; END $$";
        db1.batch_execute(drop).await.unwrap();
        let all_found = found(&world).await;
        for function in functions.lines() {
            let words = format!("its function {function} is gone");
            assert!(
                all_found
                    .iter()
                    .any(|one| one["message"].as_str().unwrap().ends_with(&words)),
                "{words}"
            );
        }
        world.run(&["bootstrap"]).await.ended(0);
        assert_eq!(found(&world).await, [Value::Null; 0]);
    }
}
