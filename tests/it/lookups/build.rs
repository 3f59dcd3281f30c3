//! A look-up over rows that were there before it.

use std::collections::BTreeMap;

use pgshard::lookups::{Definition, Step, Value, migration};
use pgshard::router::{Error, LookupProblem};

use super::support::World;
use super::{INSERT, USERS, both, define, emails, register, rows, world};

const EMAILS: &str = "[lookups.emails]\ntable = \"users\"\ncolumns = [\"email\"]\nkey = \"id\"\n";

async fn installed(world: &World) {
    let printed = world.text(&["lookups", "migration", "emails"]).await;
    printed.ended(0);
    assert_eq!(
        printed.stdout.trim_end(),
        migration(&emails(), Step::Create).trim_end()
    );
    world.write("migrations/0002_emails.sql", &printed.stdout);
    world.run(&["migrate", "up"]).await.ended(0);
}

on_each_version! {
    /// Rows from before the look-up, two keys with one value among them, and callers during the
    /// build.
    async fn complete_means_that_every_row_is_found(version) {
        let world = World::with_tables(&[version, version], 8, &[("0001_users.sql", USERS)]).await;
        define(&world, EMAILS);
        let router = world.router().await;
        let missing = register(&router, 1, "a").await.unwrap_err();
        assert!(
            matches!(missing, Error::Lookup { problem: LookupProblem::NotInstalled { .. }, .. }),
            "{missing}"
        );
        for id in 0..200_i64 {
            let email = format!("old{}@example.com", if id == 107 { 7 } else { id });
            router.by_key(id).execute(INSERT, &both(&id, &email)).await.unwrap();
        }
        router.by_key(201).execute(INSERT, &both(&201, &Option::<&str>::None)).await.unwrap();
        installed(&world).await;
        world.run(&["lookups", "status"]).await.ended(1);
        let find = |email: String| {
            let router = router.clone();
            async move { router.lookup("emails").unwrap().find::<i64>(email).await }
        };
        let refused = find("old1@example.com".to_owned()).await.unwrap_err();
        assert!(
            matches!(refused, Error::Lookup { problem: LookupProblem::NotComplete, .. }),
            "{refused}"
        );

        // Duplicates are listed, and nothing is decided.
        let calls: Vec<_> = (300..340_i64)
            .map(|id| {
                let router = router.clone();
                tokio::spawn(async move {
                    register(&router, id, &format!("new{}@example.com", id % 20)).await
                })
            })
            .collect();
        let built = world.run(&["lookups", "build", "emails"]).await;
        built.ended(1);
        let report: serde_json::Value = serde_json::from_str(built.stdout.trim()).unwrap();
        assert_eq!(report["complete"], false);
        let duplicates = report["duplicates"].as_array().unwrap();
        assert_eq!(duplicates.len(), 1, "{report}");
        let mut keys = ["key", "other"].map(|key| duplicates[0][key].as_str().unwrap());
        keys.sort_unstable();
        assert_eq!(keys, ["107", "7"]);
        for call in calls {
            match call.await.unwrap() {
                Ok(_) | Err(Error::Taken { .. } | Error::Busy { .. }) => {}
                Err(other) => panic!("{other}"),
            }
        }
        let refused = find("old1@example.com".to_owned()).await.unwrap_err();
        assert!(
            matches!(refused, Error::Lookup { problem: LookupProblem::NotComplete, .. }),
            "{refused}"
        );

        router.by_key(107).execute("DELETE FROM {shard}.users WHERE id = 107", &[]).await.unwrap();
        world.run(&["lookups", "build", "emails"]).await.ended(0);
        world.run(&["lookups", "status"]).await.ended(0);
        let all: BTreeMap<String, i64> =
            rows(&world).await.into_iter().map(|(id, email)| (email, id)).collect();
        assert!(all.len() >= 199 + 20, "{}", all.len());
        for (email, id) in &all {
            assert_eq!(find(email.clone()).await.unwrap(), Some(*id), "{email}");
        }
        assert_eq!(find("missing@example.com".to_owned()).await.unwrap(), None);
        let taken = register(&router, 500, "old7@example.com").await.unwrap_err();
        assert!(matches!(&taken, Error::Taken { key, .. } if key == "7"), "{taken}");
    }

    /// Dates that no calendar of the library has, and that it compares all the same.
    async fn every_date_of_postgresql_is_looked_up(version) {
        let table = "CREATE TABLE {shard}.days (id bigint PRIMARY KEY, day date UNIQUE)";
        let world = World::with_tables(&[version], 4, &[("0001_days.sql", table)]).await;
        define(&world, "[lookups.days]\ntable = \"days\"\ncolumns = [\"day\"]\nkey = \"id\"\n");
        let router = world.router().await;
        let days = ["infinity", "-infinity", "0044-03-15 BC", "4713-01-01 BC", "12345-06-07",
            "2000-02-29", "1999-12-31"];
        let insert = "INSERT INTO {shard}.days VALUES ($1, $2::text::date)";
        for (id, day) in (0_i64..).zip(days) {
            router.by_key(id).execute(insert, &[&id, &day]).await.unwrap();
        }
        let days_up = migration(&Definition::new("days", "days", ["day"], "id"), Step::Create);
        world.write("migrations/0002_days.sql", &days_up);
        world.run(&["migrate", "up"]).await.ended(0);
        world.run(&["lookups", "build", "days"]).await.ended(0);
        let lookup = router.lookup("days").unwrap();
        let find = async |value| lookup.find::<i64>(value).await.unwrap();
        assert_eq!(find(Value::Day(i32::MAX)).await, Some(0));
        assert_eq!(find(Value::Day(i32::MIN)).await, Some(1));
        assert_eq!(find(Value::Date(jiff::civil::date(-43, 3, 15))).await, Some(2));
        assert_eq!(find(Value::Date(jiff::civil::date(2000, 2, 29))).await, Some(5));
        assert_eq!(find(Value::Day(-1)).await, Some(6));
        // They are claimed, and refused, like all others.
        let claim = router.claiming(9_i64, [("days", Value::Day(i32::MAX))]).unwrap();
        let taken = claim.execute(insert, &[&9_i64, &"infinity"]).await.unwrap_err();
        assert!(matches!(&taken, Error::Taken { key, .. } if key == "0"), "{taken}");
    }

    /// A shard without its trigger may get rows that no entry leads to.
    async fn nothing_is_complete_without_its_trigger(version) {
        let world = world(&[version], 4).await;
        let client = world.servers.app(0).await;
        let disable = "ALTER TABLE shard_0002.users DISABLE TRIGGER pgshard_lookup_emails";
        client.batch_execute(disable).await.unwrap();
        let refused = world.run(&["lookups", "build", "emails"]).await;
        refused.ended(1);
        let stderr = &refused.stderr;
        assert!(stderr.contains("in shard 2 on host db1 is missing or disabled"), "{stderr}");
        client.batch_execute(&disable.replace("DISABLE", "ENABLE")).await.unwrap();
        world.run(&["lookups", "build", "emails"]).await.ended(0);
        world.run(&["lookups", "status"]).await.ended(0);
        client.batch_execute(disable).await.unwrap();
        world.run(&["lookups", "status"]).await.ended(1);
    }
}
