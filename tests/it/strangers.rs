//! A role that may create objects in `public` sets traps there for what the operator and the
//! application run: PostgreSQL also looks there for an operator or a function that it does not have
//! for exactly these types (CVE-2018-1058). A role that may create objects in a shard sets them
//! there, where a definition is read with the shard before PostgreSQL's own schema.

mod code;

use tokio_postgres::Client;

use crate::support::{Ran, World, lines};

/// The trap's error when it is called.
const CAUGHT: &str = "a trap in public";

/// Types that are combined in statements.
const TYPES: &str = r#"'{int2,int4,int8,float8,numeric,text,varchar,name,"\"char\"",oid,bool,
    timestamptz,interval,jsonb,uuid,pg_lsn}'::text[]"#;

/// Operators that give a boolean, and operators that give a number.
const OPERATORS: [(&str, &str); 2] = [
    ("boolean", "'{=,<>,<,>,<=,>=,~,!~,~~}'::text[]"),
    ("numeric", "'{+,-,*,/,%,&,|,<<,>>,||,->,->>}'::text[]"),
];

/// Functions with arguments that PostgreSQL would have to convert.
const FUNCTIONS: &str = "'{format,concat,concat_ws,left,right,round,floor,ceil,length,lower,
    quote_ident,date_part,to_timestamp,generate_series,to_regclass,string_agg,array_agg,unnest,sum,
    max,count,md5,mod,nextval,setval,split_part,starts_with,has_schema_privilege,pg_has_role,
    extract,array_to_string}'::text[]";

/// Sets the traps, as a role that has no other right.
async fn lay(superuser: &Client) {
    let role =
        "CREATE ROLE stranger; GRANT USAGE, CREATE ON SCHEMA public TO stranger; SET ROLE stranger";
    superuser.batch_execute(role).await.unwrap();
    for (result, names) in OPERATORS {
        let sql = format!(
            "DO $lay$ DECLARE l text; r text; o text; BEGIN
                FOREACH l IN ARRAY {TYPES} LOOP FOREACH r IN ARRAY {TYPES} LOOP
                    EXECUTE format('CREATE FUNCTION public.{result}_trap(%s, %s) RETURNS {result} \
                    LANGUAGE plpgsql
                        AS $$ BEGIN RAISE EXCEPTION ''{CAUGHT}''; END $$', l, r);
                    FOREACH o IN ARRAY {names} LOOP
                        EXECUTE format('CREATE OPERATOR public.%s (LEFTARG = %s, RIGHTARG = %s,
                            FUNCTION = public.{result}_trap)', o, l, r);
                    END LOOP;
                END LOOP; END LOOP;
            END $lay$"
        );
        superuser.batch_execute(&sql).await.unwrap();
    }
    let functions = format!(
        "DO $lay$ DECLARE f text; a text; BEGIN
            FOREACH f IN ARRAY {FUNCTIONS} LOOP
                FOREACH a IN ARRAY \
                '{{int2,int4,int8,text,name,varchar,oid,\"text,text\",\"text,int4\",\"text,int8\",
                    \"name,name\",\"text,name\",\"name,text\",\"text,text,text\",\
                    \"int4,int8\"}}'::text[] LOOP
                    EXECUTE format('CREATE FUNCTION public.%I(%s) RETURNS text LANGUAGE plpgsql
                        AS $$ BEGIN RAISE EXCEPTION ''{CAUGHT}''; END $$', f, a);
                END LOOP;
            END LOOP;
        END $lay$"
    );
    superuser.batch_execute(&functions).await.unwrap();
}

/// Traps in a shard, as a tenant who may create objects there: also in place of PostgreSQL's own
/// operators and types.
async fn lay_in_a_shard(superuser: &Client) {
    let lay = format!(
        "CREATE ROLE tenant; GRANT USAGE, CREATE ON SCHEMA shard_0000 TO tenant; SET ROLE tenant;
        DO $lay$ DECLARE l text; r text; o text; BEGIN
            FOREACH l IN ARRAY '{{oid,name,text,int2,int4,int8,bool,xid,regclass}}'::text[] LOOP
                FOREACH r IN ARRAY '{{oid,name,text,int4,int8}}'::text[] LOOP
                    EXECUTE format('CREATE FUNCTION shard_0000.trap(pg_catalog.%s, pg_catalog.%s) \
                    RETURNS boolean
                        LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION ''{CAUGHT}''; END $$', l, r);
                    FOREACH o IN ARRAY '{{=,<>,>,>=,<,<=}}'::text[] LOOP
                        EXECUTE format('CREATE OPERATOR shard_0000.%s (LEFTARG = pg_catalog.%s,
                            RIGHTARG = pg_catalog.%s, FUNCTION = shard_0000.trap)', o, l, r);
                    END LOOP;
                END LOOP;
            END LOOP;
            FOREACH l IN ARRAY '{{text,oid,name,xid,regclass}}'::text[] LOOP
                EXECUTE format('CREATE FUNCTION shard_0000.trap(pg_catalog.%s) RETURNS boolean \
                LANGUAGE plpgsql
                    AS $$ BEGIN RAISE EXCEPTION ''{CAUGHT}''; END $$', l);
                EXECUTE format('CREATE DOMAIN shard_0000.%s AS pg_catalog.%s CHECK \
                (shard_0000.trap(VALUE))', l, l);
            END LOOP;
        END $lay$"
    );
    superuser.batch_execute(&lay).await.unwrap();
}

/// Runs a command that must work as it does without traps.
async fn goes_well(world: &World, args: &[&str], code: i32) -> Ran {
    let ran = world.run(args).await;
    assert!(
        !ran.stderr.contains(CAUGHT) && !ran.stdout.contains(CAUGHT),
        "{args:?}: {} {}",
        ran.stdout,
        ran.stderr
    );
    assert_eq!(ran.code(), code, "{args:?}: {} {}", ran.stdout, ran.stderr);
    ran
}

on_each_version! {
    /// No command of the operator, and nothing that the application gets from us, runs what a
    /// stranger has made. What the application's own statements find in `public` is its own affair.
    async fn traps_in_public(version) {
        let world = World::new(&[version, version], 4).await;
        for host in [0, 1] {
            lay(&world.servers.superuser(host).await).await;
        }
        // The traps do work: an integer and a real number have no operator of their own.
        let app = world.servers.app(0).await;
        let caught = app.batch_execute("SELECT 1 + 1::float8").await.unwrap_err();
        assert!(
            caught.as_db_error().unwrap().message().contains(CAUGHT),
            "{caught:?}"
        );

        app.batch_execute(
            "INSERT INTO shard_0000.users (name) VALUES ('by hand'), \
            ('twice')",
        )
        .await
        .unwrap();
        let ids = "SELECT count(*)::text FROM shard_0000.next_ids(100)";
        assert_eq!(lines(&app, ids).await, "100\n");
        app.batch_execute("SELECT shard_0000.resume_after(shard_0000.id_high_water())")
            .await
            .unwrap();

        std::fs::write(
            world.servers.directory().join("migrations/0002_title.sql"),
            "ALTER TABLE {shard}.users ADD COLUMN title text",
        )
        .unwrap();
        for args in [
            &["bootstrap"][..],
            &["check"],
            &["check", "--ddl"],
            &["check", "--movable"],
            &["check", "--rows"],
            &["migrate", "status"],
            &["migrate", "up"],
            &["map", "show"],
            &["map", "rebuild"],
            &["sql", "SELECT name FROM {shard}.users"],
            &["tickets", "create", "users", "--hosts", "db1,db2"],
            &["tickets", "next", "users"],
            &["tickets", "status"],
            &["host", "list"],
            &["rebalance", "--plan", "--by", "count"],
            &["rebalance", "--plan", "--by", "bytes"],
            &["move", "0", "--to", "db2", "--mode", "online", "--yes"],
            &["moves", "list"],
            &["check"],
        ] {
            goes_well(&world, args, 0).await;
        }
        let id = lines(
            &world.servers.app(0).await,
            "SELECT move_id::text FROM pgshard.move",
        )
        .await;
        goes_well(&world, &["moves", "rollback", id.trim(), "--yes"], 0).await;
        goes_well(&world, &["move", "1", "--to", "db2", "--yes"], 0).await;
        goes_well(&world, &["moves", "gc"], 0).await;

        let router = world.router().await;
        let insert = "INSERT INTO {shard}.users (name) VALUES ($1) RETURNING id";
        for key in 0..4 {
            let id: i64 = router
                .by_key(key)
                .query_one(insert, &[&"routed"])
                .await
                .unwrap()
                .get(0);
            let read = "SELECT name FROM {shard}.users WHERE id = $1";
            let name: String = router
                .by_id(id)
                .unwrap()
                .query_one(read, &[&id])
                .await
                .unwrap()
                .get(0);
            assert_eq!(name, "routed");
        }
    }
    /// What a tenant has made in a shard is not run by the commands that read the shard's
    /// definition, and so as the config's role. The shard is not moved while that is there, and
    /// others are.
    async fn traps_in_a_shard(version) {
        let world = World::new(&[version, version], 4).await;
        let app = world.servers.app(0).await;
        app.batch_execute(
            "CREATE VIEW shard_0000.seen AS SELECT id FROM shard_0000.users;
            CREATE VIEW shard_0001.seen AS SELECT id FROM shard_0001.users",
        )
        .await
        .unwrap();
        lay_in_a_shard(&world.servers.superuser(0).await).await;
        for args in [
            &["check"][..],
            &["check", "--ddl"],
            &["check", "--movable"],
            &["check", "--rows"],
            &["migrate", "status"],
            &["rebalance", "--plan", "--by", "bytes"],
            &["sql", "SELECT count(*) FROM {shard}.users"],
            &["move", "0", "--to", "db2", "--plan"],
            &["move", "0", "--to", "db2", "--mode", "online", "--yes"],
            &["move", "0", "--to", "db2", "--yes"],
            &["bootstrap"],
        ] {
            let ran = world.run(args).await;
            let said = format!("{args:?}: {} {}", ran.stdout, ran.stderr);
            assert!(!said.contains(CAUGHT), "{said}");
            if args[0] == "move" {
                assert_eq!(ran.code(), 4, "{said}");
                assert!(said.contains("belongs to tenant"), "{said}");
            }
        }
        goes_well(&world, &["move", "1", "--to", "db2", "--yes"], 0).await;
    }

    /// A tenant's tables in a shard, with policies and triggers that run as the role that reads or
    /// writes: no command reads or writes them by itself, neither to check rows nor to record the
    /// progress of a backfill.
    async fn traps_in_tables(version) {
        let world = World::new(&[version, version], 4).await;
        let lay = |table: &str, columns: &str| {
            format!(
                "CREATE TABLE shard_0000.{table} ({columns});
            INSERT INTO shard_0000.{table} DEFAULT VALUES;
            ALTER TABLE shard_0000.{table} ENABLE ROW LEVEL SECURITY;
            CREATE POLICY trap ON shard_0000.{table} USING (shard_0000.caught()) WITH CHECK \
            (shard_0000.caught());
            CREATE TRIGGER trap BEFORE INSERT OR UPDATE ON shard_0000.{table} EXECUTE FUNCTION \
            shard_0000.trigger();
            GRANT ALL ON shard_0000.{table} TO app"
            )
        };
        let lay = format!(
            "CREATE ROLE tenant; GRANT USAGE, CREATE ON SCHEMA shard_0000 TO tenant;
            GRANT USAGE ON ALL SEQUENCES IN SCHEMA shard_0000 TO tenant; SET ROLE tenant;
            CREATE FUNCTION shard_0000.caught() RETURNS boolean LANGUAGE plpgsql
                AS $$ BEGIN RAISE EXCEPTION '{CAUGHT}'; END $$;
            CREATE FUNCTION shard_0000.trigger() RETURNS trigger LANGUAGE plpgsql
                AS $$ BEGIN RAISE EXCEPTION '{CAUGHT}'; END $$;
            {}; {}",
            lay("notes", "id bigint DEFAULT shard_0000.next_id(), n serial"),
            lay(
                "pgshard_backfill",
                "name text PRIMARY KEY DEFAULT 'count', checksum text, done_to \
                text, until text,
                rows bigint, batches bigint, started_at timestamptz, updated_at timestamptz, \
                finished_at timestamptz"
            ),
        );
        world
            .servers
            .superuser(0)
            .await
            .batch_execute(&lay)
            .await
            .unwrap();
        let app = world.servers.app(0).await;
        // The traps do work.
        let caught = app
            .batch_execute("SELECT * FROM shard_0000.notes")
            .await
            .unwrap_err();
        assert!(
            caught.as_db_error().unwrap().message().contains(CAUGHT),
            "{caught:?}"
        );
        let set = "UPDATE {shard}.users SET name = name WHERE id BETWEEN {low} AND {high}";
        let file = world.write("count.sql", set).display().to_string();
        for args in [
            &["check", "--rows"][..],
            &["migrate", "backfill", &file, "--table", "users"],
            &["migrate", "backfill", "--status", "--name", "count"],
            &["migrate", "status"],
            &["check"],
            &["move", "0", "--to", "db2", "--plan"],
        ] {
            let ran = world.run(args).await;
            let said = format!("{args:?}: {} {}", ran.stdout, ran.stderr);
            assert!(!said.contains(CAUGHT), "{said}");
            if args.contains(&"--rows") {
                assert!(
                    said.contains("notes is not read: it belongs to tenant"),
                    "{said}"
                );
            }
            if args.contains(&"--table") {
                assert!(
                    said.contains("its table pgshard_backfill belongs to tenant"),
                    "{said}"
                );
            }
        }
    }

    /// A tenant who may make objects in the schema that a move builds could set traps there for its
    /// next statements. Such a schema is not built, neither by a grant at the source nor by default
    /// privileges at the target.
    async fn traps_in_what_a_move_builds(version) {
        let world = World::new(&[version, version], 4).await;
        for host in [0, 1] {
            world
                .servers
                .superuser(host)
                .await
                .batch_execute("CREATE ROLE tenant")
                .await
                .unwrap();
        }
        let (source, target) = (world.servers.app(0).await, world.servers.app(1).await);
        for role in ["tenant", "PUBLIC"] {
            source
                .batch_execute(&format!(
                    "GRANT CREATE ON SCHEMA shard_0000 TO \
                {role}"
                ))
                .await
                .unwrap();
            let refused = world
                .run(&["move", "0", "--to", "db2", "--mode", "online", "--yes"])
                .await;
            assert!(
                refused.ended(4).stderr.contains(&format!(
                    "lets {role} make objects in \
                it"
                )),
                "{}",
                refused.stderr
            );
            source
                .batch_execute(&format!(
                    "REVOKE CREATE ON SCHEMA shard_0000 FROM \
                {role}"
                ))
                .await
                .unwrap();
        }
        target
            .batch_execute(
                "ALTER DEFAULT PRIVILEGES GRANT CREATE ON SCHEMAS TO \
            tenant",
            )
            .await
            .unwrap();
        for mode in ["online", "blocking"] {
            let refused = world
                .run(&["move", "0", "--to", "db2", "--mode", mode, "--yes"])
                .await;
            assert_ne!(refused.code(), 0);
            assert!(
                refused.stderr.contains(
                    "has default privileges at the \
                target"
                ),
                "{}",
                refused.stderr
            );
            let built = "SELECT nspname FROM pg_namespace WHERE nspname LIKE '%incoming'";
            assert_eq!(lines(&target, built).await, "");
            world.run(&["moves", "abort"]).await;
        }
        target
            .batch_execute(
                "ALTER DEFAULT PRIVILEGES REVOKE CREATE ON SCHEMAS FROM \
            tenant",
            )
            .await
            .unwrap();
        goes_well(
            &world,
            &["move", "0", "--to", "db2", "--mode", "online", "--yes"],
            0,
        )
        .await;
        goes_well(&world, &["check"], 0).await;
    }
}
