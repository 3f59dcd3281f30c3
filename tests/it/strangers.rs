//! Somebody who may create objects in `public` sets traps there for what the operator and the application run:
//! PostgreSQL also looks there for an operator or a function that it does not have for exactly these types
//! (CVE-2018-1058).

use tokio_postgres::Client;

use crate::support::{Ran, World, lines};

/// What the trap says when it is called.
const CAUGHT: &str = "a trap in public";

/// Types that are combined in statements.
const TYPES: &str = r#"'{int2,int4,int8,float8,numeric,text,varchar,name,"\"char\"",oid,bool,timestamptz,interval,jsonb,
    uuid,pg_lsn}'::text[]"#;

/// Operators that give a boolean, and operators that give a number.
const OPERATORS: [(&str, &str); 2] =
    [("boolean", "'{=,<>,<,>,<=,>=,~,!~,~~}'::text[]"), ("numeric", "'{+,-,*,/,%,&,|,<<,>>,||,->,->>}'::text[]")];

/// Functions whose arguments PostgreSQL would have to convert.
const FUNCTIONS: &str = "'{format,concat,concat_ws,left,right,round,floor,ceil,length,lower,quote_ident,date_part,
    to_timestamp,generate_series,to_regclass,string_agg,array_agg,unnest,sum,max,count,md5,mod,nextval,setval,
    split_part,starts_with,has_schema_privilege,pg_has_role,extract,array_to_string}'::text[]";

/// Sets the traps, as a role that has no other right.
async fn lay(superuser: &Client) {
    let role = "CREATE ROLE stranger; GRANT USAGE, CREATE ON SCHEMA public TO stranger; SET ROLE stranger";
    superuser.batch_execute(role).await.unwrap();
    for (result, names) in OPERATORS {
        let sql = format!(
            "DO $lay$ DECLARE l text; r text; o text; BEGIN
                FOREACH l IN ARRAY {TYPES} LOOP FOREACH r IN ARRAY {TYPES} LOOP
                    EXECUTE format('CREATE FUNCTION public.{result}_trap(%s, %s) RETURNS {result} LANGUAGE plpgsql
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
                FOREACH a IN ARRAY '{{int2,int4,int8,text,name,varchar,oid,\"text,text\",\"text,int4\",\"text,int8\",
                    \"name,name\",\"text,name\",\"name,text\",\"text,text,text\",\"int4,int8\"}}'::text[] LOOP
                    EXECUTE format('CREATE FUNCTION public.%I(%s) RETURNS text LANGUAGE plpgsql
                        AS $$ BEGIN RAISE EXCEPTION ''{CAUGHT}''; END $$', f, a);
                END LOOP;
            END LOOP;
        END $lay$"
    );
    superuser.batch_execute(&functions).await.unwrap();
}

/// Runs a command that must work as it does without traps.
async fn goes_well(world: &World, args: &[&str], code: i32) -> Ran {
    let ran = world.run(args).await;
    assert!(!ran.stderr.contains(CAUGHT) && !ran.stdout.contains(CAUGHT), "{args:?}: {} {}", ran.stdout, ran.stderr);
    assert_eq!(ran.code(), code, "{args:?}: {} {}", ran.stdout, ran.stderr);
    ran
}

on_each_version! {
    /// No command of the operator, and nothing that the application gets from us, runs what a stranger has made. What
    /// the application's own statements find in `public` is its own affair.
    async fn traps_in_public(version) {
        let world = World::new(&[version, version], 4).await;
        for host in [0, 1] {
            lay(&world.servers.superuser(host).await).await;
        }
        // The traps do work: an integer and a real number have no operator of their own.
        let app = world.servers.app(0).await;
        let caught = app.batch_execute("SELECT 1 + 1::float8").await.unwrap_err();
        assert!(caught.as_db_error().unwrap().message().contains(CAUGHT), "{caught:?}");

        app.batch_execute("INSERT INTO shard_0000.users (name) VALUES ('by hand'), ('twice')").await.unwrap();
        let ids = "SELECT count(*)::text FROM shard_0000.next_ids(100)";
        assert_eq!(lines(&app, ids).await, "100\n");
        app.batch_execute("SELECT shard_0000.resume_after(shard_0000.id_high_water())").await.unwrap();

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
        let id = lines(&world.servers.app(0).await, "SELECT move_id::text FROM pgshard.move").await;
        goes_well(&world, &["moves", "rollback", id.trim(), "--yes"], 0).await;
        goes_well(&world, &["move", "1", "--to", "db2", "--yes"], 0).await;
        goes_well(&world, &["moves", "gc"], 0).await;

        let router = world.router().await;
        let insert = "INSERT INTO {shard}.users (name) VALUES ($1) RETURNING id";
        for key in 0..4 {
            let id: i64 = router.by_key(key).query_one(insert, &[&"routed"]).await.unwrap().get(0);
            let read = "SELECT name FROM {shard}.users WHERE id = $1";
            let name: String = router.by_id(id).unwrap().query_one(read, &[&id]).await.unwrap().get(0);
            assert_eq!(name, "routed");
        }
    }
}
