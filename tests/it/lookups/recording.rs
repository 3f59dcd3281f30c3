//! An application writes to the table before it claims: its rows are recorded, until the look-up
//! enforces.

use std::collections::BTreeMap;
use std::time::Duration;

use pgshard::Router;
use pgshard::config::Config;
use pgshard::router::{Error, LookupProblem};
use serde_json::Value;

use super::support::World;
use super::{INSERT, USERS, both, define, register, rows, world};

const EMAILS: &str = "[lookups.emails]\ntable = \"users\"\ncolumns = [\"email\"]\nkey = \"id\"\n";

/// A cluster with users, and a look-up that records what is not claimed.
async fn recording(version: u32, shards: u16, users: &[(i64, &str)]) -> World {
    let world = World::with_tables(&[version, version], shards, &[("0001_users.sql", USERS)]).await;
    let router = world.router().await;
    for (id, email) in users {
        insert(&router, *id, email).await.unwrap();
    }
    define(&world, EMAILS);
    add_step(&world, "0002_emails.sql", "create-recording").await;
    world.run(&["migrate", "up"]).await.ended(0);
    world
}

async fn add_step(world: &World, file: &str, step: &str) {
    let printed = world
        .text(&["lookups", "migration", "emails", "--step", step])
        .await;
    printed.ended(0);
    world.write(&format!("migrations/{file}"), &printed.stdout);
}

/// Writes a row without a claim.
async fn insert(router: &Router, id: i64, email: &str) -> Result<u64, Error> {
    router.by_key(id).execute(INSERT, &both(&id, &email)).await
}

/// Runs `lookups build emails`, which ends like this, and returns what it prints.
async fn build(world: &World, code: i32) -> Value {
    let ran = world.run(&["lookups", "build", "emails"]).await;
    ran.ended(code);
    serde_json::from_str(ran.stdout.trim()).unwrap()
}

async fn status(world: &World) -> Value {
    let ran = world.run(&["lookups", "status"]).await;
    let all: Value = serde_json::from_str(ran.stdout.trim()).unwrap();
    all["lookups"]["emails"].clone()
}

fn refuses_find(found: Result<Option<i64>, Error>) {
    match found {
        Err(Error::Lookup {
            problem: LookupProblem::NotComplete,
            ..
        }) => {}
        other => panic!("{other:?}"),
    }
}

fn is_not_claimed(written: Result<u64, Error>) {
    let error = written.unwrap_err();
    assert_eq!(
        error.code().map(|code| code.code()),
        Some("SH003"),
        "{error}"
    );
}

on_each_version! {
    async fn an_application_that_does_not_claim_writes_until_the_look_up_enforces(version) {
        let old = [(1, "a"), (2, "b"), (3, "same"), (4, "same")];
        let world = recording(version, 8, &old).await;
        let router = world.router().await;
        let find = async |email: &str| router.lookup("emails").unwrap().find::<i64>(email).await;

        // Every kind of write, without a claim.
        insert(&router, 5, "c").await.unwrap();
        for sql in [
            "UPDATE {shard}.users SET email = 'd' WHERE id = 1",
            "UPDATE {shard}.users SET name = 'Bo', email = email WHERE id = 2",
        ] {
            let id = if sql.ends_with('1') { 1_i64 } else { 2 };
            assert_eq!(router.by_key(id).execute(sql, &[]).await.unwrap(), 1);
        }
        // And writes with a claim, in between.
        register(&router, 6, "e").await.unwrap();
        let taken = register(&router, 7, "e").await.unwrap_err();
        assert!(matches!(&taken, Error::Taken { key, .. } if key == "6"), "{taken}");
        refuses_find(find("a").await);
        let before = status(&world).await;
        assert_eq!(before["state"], "recording");
        assert_eq!(before["recorded"], 2, "{before}");
        assert_eq!(before["writers"][0]["rows"], 2);
        assert_eq!(before["writers"][0]["role"], "app");

        // What shares a value is listed until it is mended.
        let built = build(&world, 1).await;
        assert_eq!(built["recorded"], 2);
        assert_eq!(built["duplicates"].as_array().unwrap().len(), 1, "{built}");
        insert(&router, 8, "b").await.unwrap();
        let built = build(&world, 1).await;
        assert_eq!(built["duplicates"].as_array().unwrap().len(), 2, "{built}");
        assert_eq!(status(&world).await["recorded"], 1);
        add_step(&world, "0003_enforce.sql", "enforce").await;
        let refused = world.text(&["migrate", "up"]).await;
        assert_ne!(refused.code(), 0);
        for why in ["without a claim since then, last by pgshard", "not every row has its entry"] {
            assert!(refused.stderr.contains(why), "{why}: {}", refused.stderr);
        }
        // Nothing is refused where it did not succeed.
        insert(&router, 9, "f").await.unwrap_or_default();
        for id in [4_i64, 8] {
            let sql = "DELETE FROM {shard}.users WHERE id = $1";
            router.by_key(id).execute(sql, &[&id]).await.unwrap();
        }
        let built = build(&world, 0).await;
        assert_eq!(built["duplicates"], Value::Array(Vec::new()));
        assert_eq!(built["state"], "recording");
        assert_eq!(built["complete"], false);
        refuses_find(find("a").await);

        world.run(&["migrate", "up"]).await.ended(0);
        is_not_claimed(insert(&router, 10, "g").await);
        refuses_find(find("a").await);
        assert_eq!(build(&world, 0).await["complete"], true);
        for (id, email) in rows(&world).await {
            assert_eq!(find(&email).await.unwrap(), Some(id), "{email}");
        }
        assert_eq!(find("nobody").await.unwrap(), None);
    }

    async fn a_look_up_that_answers_records_only_after_it_was_suspended(version) {
        let world = world(&[version, version], 8).await;
        let router = world.router().await;
        register(&router, 1, "a").await.unwrap();
        world.run(&["lookups", "build", "emails"]).await.ended(0);
        add_step(&world, "0003_record.sql", "record").await;
        let refused = world.text(&["migrate", "up"]).await;
        assert_ne!(refused.code(), 0);
        assert!(refused.stderr.contains("cannot record while it answers"), "{}", refused.stderr);
        assert_eq!(router.lookup("emails").unwrap().find::<i64>("a").await.unwrap(), Some(1));

        world.run(&["lookups", "suspend", "emails"]).await.ended(0);
        refuses_find(router.lookup("emails").unwrap().find("a").await);
        is_not_claimed(insert(&router, 2, "b").await);
        // Building undoes it, and it can be suspended again.
        assert_eq!(build(&world, 0).await["complete"], true);
        assert_ne!(world.text(&["migrate", "up"]).await.code(), 0);
        world.run(&["lookups", "suspend", "emails"]).await.ended(0);
        world.run(&["migrate", "up"]).await.ended(0);
        insert(&router, 2, "b").await.unwrap();
        insert(&router, 3, "a").await.unwrap();
        let built = build(&world, 1).await;
        assert_eq!(built["state"], "recording");
        assert_eq!(built["duplicates"][0]["other"], "1");
        router.by_key(3_i64).execute("DELETE FROM {shard}.users WHERE id = 3", &[]).await.unwrap();
        build(&world, 0).await;
        add_step(&world, "0004_enforce.sql", "enforce").await;
        world.run(&["migrate", "up"]).await.ended(0);
        assert_eq!(build(&world, 0).await["complete"], true);
        assert_eq!(router.lookup("emails").unwrap().find::<i64>("b").await.unwrap(), Some(2));
        assert_eq!(world.run(&["check"]).await.code(), 0);
    }

    /// A new cluster runs all steps in one `migrate up`.
    async fn the_steps_of_a_look_up_run_on_empty_shards(version) {
        let world = recording(version, 4, &[]).await;
        add_step(&world, "0003_enforce.sql", "enforce").await;
        add_step(&world, "0004_record.sql", "record").await;
        add_step(&world, "0005_enforce.sql", "enforce").await;
        world.run(&["migrate", "up"]).await.ended(0);
        is_not_claimed(insert(&world.router().await, 1, "a").await);
        assert_eq!(build(&world, 0).await["complete"], true);
    }

    /// A role that may write the table may write what the trigger and a claim write.
    async fn a_role_that_writes_the_table_needs_no_other_rights(version) {
        let world = World::with_tables(&[version], 4, &[("0001_users.sql", USERS)]).await;
        let admin = world.servers.superuser(0).await;
        admin.batch_execute("CREATE ROLE web LOGIN PASSWORD 'web'").await.unwrap();
        let owner = world.servers.app(0).await;
        for shard in 0..4 {
            let sql = format!(
                "GRANT USAGE ON SCHEMA shard_{shard:04}, pgshard TO web;
                GRANT SELECT, DELETE ON shard_{shard:04}.users TO web;
                GRANT INSERT (id, email), UPDATE (email) ON shard_{shard:04}.users TO web"
            );
            owner.batch_execute(&sql).await.unwrap();
        }
        define(&world, EMAILS);
        add_step(&world, "0002_emails.sql", "create-recording").await;
        world.run(&["migrate", "up"]).await.ended(0);
        let text = std::fs::read_to_string(&world.config.path).unwrap();
        let text = text.replace("//app@", "//web:web@").replace("//app:", "//web:web@ignored:");
        assert!(text.contains("//web:web@"), "{text}");
        let path = world.servers.directory().join("web.toml");
        std::fs::write(&path, text).unwrap();
        let rights = world.text(&["rights", "--for", "router", "--role", "web"]).await;
        owner.batch_execute(&rights.stdout.replace("\\", "--")).await.unwrap_or_default();
        let router = pgshard::connect(&path).await.unwrap();
        insert(&router, 1, "a").await.unwrap();
        register(&router, 2, "b").await.unwrap();
        let taken = register(&router, 3, "b").await.unwrap_err();
        assert!(matches!(&taken, Error::Taken { key, .. } if key == "2"), "{taken}");
        // And a role that only has a view of it.
        let by_view = "CREATE ROLE guest; GRANT USAGE ON SCHEMA shard_0001 TO guest; \
            CREATE VIEW shard_0001.seen AS SELECT id, email FROM shard_0001.users; \
            ALTER VIEW shard_0001.seen OWNER TO app; \
            GRANT INSERT ON shard_0001.seen TO guest; SET ROLE guest; \
            INSERT INTO shard_0001.seen VALUES (5, 'c'); RESET ROLE";
        admin.batch_execute(by_view).await.unwrap();
        let status = status(&world).await;
        assert_eq!(status["recorded"], 2, "{status}");
        let writers = status["writers"].as_array().unwrap();
        let roles: Vec<_> = writers.iter().map(|one| &one["role"]).collect();
        assert!(roles.contains(&&Value::from("web")), "{status}");
    }

    /// Its rows are recorded or refused, and it never gets an answer that a value belongs to no
    /// key.
    async fn a_process_with_another_config_gets_no_empty_answer(version) {
        let world = world(&[version], 4).await;
        let router = world.router().await;
        register(&router, 1, "Ada").await.unwrap();
        world.run(&["lookups", "build", "emails"]).await.ended(0);
        let text = std::fs::read_to_string(&world.config.path).unwrap();
        let with = |other: &str| {
            let path = world.servers.directory().join("other.toml");
            std::fs::write(&path, text.replace(EMAILS, other)).unwrap();
            Config::load(&path).unwrap();
            path
        };
        let folded = with(&format!("{EMAILS}fold = \"ascii\"\n"));
        let folded = pgshard::connect(&folded).await.unwrap();
        for error in [
            folded.lookup("emails").unwrap().find::<i64>("ada").await.map(drop).unwrap_err(),
            register(&folded, 2, "ada").await.map(drop).unwrap_err(),
        ] {
            let Error::Lookup { problem, .. } = &error else { panic!("{error}") };
            assert!(matches!(problem, LookupProblem::OtherDefinition { .. }), "{error}");
        }
        let without = pgshard::connect(&with("")).await.unwrap();
        is_not_claimed(insert(&without, 3, "b").await);
        let error = without.lookup("emails").unwrap_err();
        let Error::Lookup { problem, .. } = &error else { panic!("{error}") };
        assert_eq!(*problem, LookupProblem::Undefined);
    }

    /// A build that is killed is made again, and ends with every row found.
    async fn a_build_that_is_killed_is_made_again(version) {
        let world = recording(version, 8, &[]).await;
        let client = world.servers.app(0).await;
        let other = world.servers.app(1).await;
        for shard in 0..8_u16 {
            let owner = if world.host_of(shard) == 0 { &client } else { &other };
            let sql = format!(
                "INSERT INTO shard_{shard:04}.users (id, email) SELECT g, 'user' || g FROM \
                 generate_series({shard}, 799, 8) g"
            );
            owner.batch_execute(&sql).await.unwrap();
        }
        let mut killed = 0;
        for milliseconds in (20..).step_by(60) {
            let mut child = world.command(&["lookups", "build", "emails"], &[]).spawn().unwrap();
            let ended = tokio::time::timeout(Duration::from_millis(milliseconds), child.wait());
            if ended.await.is_ok() {
                break;
            }
            child.kill().await.unwrap();
            killed += 1;
        }
        assert!(killed > 1);
        build(&world, 0).await;
        add_step(&world, "0003_enforce.sql", "enforce").await;
        world.run(&["migrate", "up"]).await.ended(0);
        for milliseconds in [5, 20, 60] {
            let mut child = world.command(&["lookups", "build", "emails"], &[]).spawn().unwrap();
            let _ = tokio::time::timeout(Duration::from_millis(milliseconds), child.wait()).await;
            let _ = child.kill().await;
        }
        assert_eq!(build(&world, 0).await["complete"], true);
        let router = world.router().await;
        let all: BTreeMap<String, i64> =
            rows(&world).await.into_iter().map(|(id, email)| (email, id)).collect();
        assert_eq!(all.len(), 800);
        for (email, id) in all {
            let found = router.lookup("emails").unwrap().find(email.as_str()).await.unwrap();
            assert_eq!(found, Some(id), "{email}");
        }
    }
}
