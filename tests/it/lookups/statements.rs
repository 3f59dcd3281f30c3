//! An INSERT that uses its claims in its own statement, as [`Claiming::execute`] does it.
//!
//! [`Claiming::execute`]: pgshard::lookups::Claiming::execute

use std::time::Duration;

use pgshard::lookups::{Definition, Step, migration};
use pgshard::router::{Error, LookupProblem};

use super::{USERS, World, both, define, emails, register, rows, world};

on_each_version! {
    async fn a_claim_that_was_made_unusable_is_made_again(version) {
        let world = world(&[version], 4).await;
        let router = world.router().await;
        let other = world.servers.app(0).await;
        let lock = "BEGIN; LOCK shard_0001.pgshard_claim IN EXCLUSIVE MODE";
        other.batch_execute(lock).await.unwrap();
        let registering = tokio::spawn({
            let router = router.clone();
            async move { register(&router, 1, "a").await }
        });
        // The entry is there, and the statement that uses it waits for the lock.
        let entries: Vec<String> = (0..4)
            .map(|shard| {
                format!("SELECT lookup, hash, claim, key FROM shard_{shard:04}.pgshard_entry")
            })
            .collect();
        let void = format!(
            "INSERT INTO shard_0001.pgshard_claim SELECT lookup, hash, claim, key, 'void', \
                pg_current_xact_id(), now() FROM ({}) e",
            entries.join(" UNION ALL ")
        );
        while other.execute(&void, &[]).await.unwrap() == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        other.batch_execute("COMMIT").await.unwrap();
        assert_eq!(registering.await.unwrap().unwrap(), 1);
        assert_eq!(rows(&world).await, [(1, "a".to_owned())]);
    }

    /// The claim succeeds in the shard of the value, and cannot be used in that of the key.
    async fn nothing_is_written_where_the_shard_of_the_key_has_another_look_up(version) {
        let world = world(&[version], 2).await;
        let router = world.router().await;
        let client = world.servers.app(0).await;
        let mut emails = (0..).map(|n| format!("user{n}@example.com"));
        // The first refusal of a value with its entry in shard 0, for a key in shard 1.
        let mut refusal = async || loop {
            client.batch_execute("DELETE FROM shard_0000.pgshard_entry").await.unwrap();
            let refused = register(&router, 1, &emails.next().unwrap()).await.unwrap_err();
            let entries = client.query("SELECT FROM shard_0000.pgshard_entry", &[]).await.unwrap();
            if !entries.is_empty() {
                return refused;
            }
        };
        let recorded = "UPDATE shard_0001.pgshard_lookup SET definition = 'other'";
        client.batch_execute(recorded).await.unwrap();
        let refused = refusal().await;
        let is_other = matches!(&refused, Error::Lookup {
            problem: LookupProblem::OtherDefinition { shard, .. }, ..
        } if shard.get() == 1);
        assert!(is_other, "{refused}");
        for removed in [
            "DELETE FROM shard_0001.pgshard_lookup",
            "DROP TABLE shard_0001.pgshard_claim",
        ] {
            client.batch_execute(removed).await.unwrap();
            let refused = refusal().await;
            let is_missing = matches!(&refused, Error::Lookup {
                problem: LookupProblem::NotInstalled { shard, .. }, ..
            } if shard.get() == 1);
            assert!(is_missing && !refused.may_have_run(), "{removed}: {refused}");
        }
        assert_eq!(rows(&world).await, []);
    }

    async fn a_statement_that_cannot_follow_with_runs_in_a_transaction(version) {
        let world = world(&[version], 4).await;
        let router = world.router().await;
        let client = world.servers.app(0).await;
        let rule = "CREATE TABLE shard_0001.log (id bigint); CREATE RULE logs AS ON INSERT TO \
            shard_0001.users DO ALSO INSERT INTO shard_0001.log VALUES (NEW.id)";
        client.batch_execute(rule).await.unwrap();
        register(&router, 1, "a").await.unwrap();
        let claiming = |email| router.claiming(2_i64, [("emails", email)]).unwrap();
        let with = "WITH given AS (SELECT $1::bigint, $2::text) \
            INSERT INTO {shard}.users (id, email) SELECT * FROM given";
        claiming("b").execute(with, &both(&2, &"b")).await.unwrap();
        // The parameters of claims are not at the statement's disposal.
        let beyond = "INSERT INTO {shard}.users (id, email, name) VALUES ($1, $2, $3)";
        let refused = claiming("c").execute(beyond, &both(&2, &"c")).await.unwrap_err();
        assert!(refused.as_db_error().is_none(), "{refused}");
        assert_eq!(rows(&world).await, [(1, "a".to_owned()), (2, "b".to_owned())]);
    }

    async fn several_claims_are_used_in_one_statement(version) {
        let names = Definition::new("names", "users", ["name"], "id");
        let unique = "CREATE UNIQUE INDEX ON {shard}.users (name)";
        let migrations = [
            ("0001_users.sql", USERS),
            ("0002_names.sql", unique),
            ("0003_emails.sql", &migration(&emails(), Step::Create)),
            ("0004_names.sql", &migration(&names, Step::Create)),
        ];
        let world = World::with_tables(&[version, version], 8, &migrations).await;
        let lookup = |name, column| {
            format!("[lookups.{name}]\ntable = \"users\"\ncolumns = [\"{column}\"]\nkey = \"id\"\n")
        };
        define(&world, &(lookup("emails", "email") + &lookup("names", "name")));
        let router = world.router().await;
        let insert = "INSERT INTO {shard}.users (id, email, name) VALUES ($1, $2, $3)";
        let register = async |id: i64, email: &str, name: &str| {
            let claiming = router.claiming(id, [("emails", email), ("names", name)])?;
            claiming.execute(insert, &[&id, &email, &name]).await
        };
        register(1, "a", "Ada").await.unwrap();
        for (email, name, taken) in [("a", "Eve", "emails"), ("b", "Ada", "names")] {
            let refused = register(2, email, name).await.unwrap_err();
            assert!(
                matches!(&refused, Error::Taken { lookup, .. } if lookup == taken),
                "{refused}"
            );
        }
        register(2, "b", "Eve").await.unwrap();
        // One claim is not enough.
        let claiming = router.claiming(3_i64, [("emails", "c")]).unwrap();
        let one = claiming.execute(insert, &[&3_i64, &"c", &"Bob"]).await.unwrap_err();
        assert_eq!(one.code().unwrap().code(), "SH003", "{one}");
        let expected = [(1, "a".to_owned()), (2, "b".to_owned())];
        assert_eq!(rows(&world).await, expected);
    }

    /// What the table itself refuses is reported as without claims.
    async fn the_tables_own_refusal_is_reported(version) {
        let world = world(&[version], 1).await;
        let router = world.router().await;
        register(&router, 1, "a").await.unwrap();
        let refused = register(&router, 1, "b").await.unwrap_err();
        assert_eq!(refused.code().unwrap().code(), "23505", "{refused}");
        assert!(refused.to_string().contains("users_pkey"), "{refused}");
        let wrong = router.claiming(1_i64, [("emails", "c")]).unwrap()
            .execute("INSERT INTO {shard}.nowhere VALUES ($1, $2)", &both(&1, &"c"))
            .await
            .unwrap_err();
        assert_eq!(wrong.code().unwrap().code(), "42P01", "{wrong}");
    }
}
