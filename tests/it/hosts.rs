//! `pgshard host`, compared with what hosts really are: standbys, roles without rights.

use crate::support::World;

on_each_version! {
    /// The primary shows that it has a standby, and how far that is behind; a standby in the config
    /// is shown as one.
    async fn a_standby_is_listed_with_its_lag(version) {
        let world = World::new(&[version, version], 4).await;
        world.servers.make_standby(version, 1, 0);
        let superuser = world.servers.superuser(0).await;
        let streams = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'";
        while superuser
            .query_one(streams, &[])
            .await
            .unwrap()
            .get::<_, i64>(0)
            == 0
        {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        let listed = world.run(&["host", "list"]).await.ended(0).last();
        let (db1, db2) = (&listed["hosts"]["db1"], &listed["hosts"]["db2"]);
        assert_eq!(
            (&db1["standbys"], &db1["in_recovery"], &db2["in_recovery"]),
            (&1.into(), &false.into(), &true.into()),
            "{listed}"
        );
        assert!(db1["lag_bytes"].is_u64(), "{listed}");
        // Nothing is moved to a host that accepts no writes.
        let refused = world.run(&["drain", "db1", "--yes"]).await;
        assert_ne!(refused.code(), 0, "{}", refused.stderr);
    }

    /// A role that may not create schemas is refused before anything is written, with the statement
    /// that helps.
    async fn a_host_whose_role_has_no_rights_is_refused(version) {
        let world = World::new(&[version, version], 4).await;
        let text = std::fs::read_to_string(&world.config.path).unwrap();
        let superuser = world.servers.superuser(1).await;
        superuser
            .batch_execute("CREATE DATABASE spare")
            .await
            .unwrap();
        superuser
            .batch_execute("CREATE ROLE poor LOGIN")
            .await
            .unwrap();
        let url = world
            .servers
            .server(1)
            .url()
            .replace("app@", "poor@")
            .replace("/app", "/spare");
        let refused = world.run(&["host", "add", "db3", &url]).await;
        assert!(
            refused
                .ended(4)
                .stderr
                .contains("GRANT CREATE ON DATABASE \"spare\" TO \"poor\""),
            "{}",
            refused.stderr
        );
        assert_eq!(std::fs::read_to_string(&world.config.path).unwrap(), text);
        superuser
            .batch_execute("GRANT CREATE ON DATABASE spare TO poor")
            .await
            .unwrap();
        world.run(&["host", "add", "db3", &url]).await.ended(0);
    }
}

/// A host is named by a service of `pg_service.conf`, as for psql; a mistake in that file is
/// reported with file and section.
#[tokio::test]
async fn a_host_by_its_service() {
    let world = World::new(&[15], 4).await;
    let text = std::fs::read_to_string(&world.config.path).unwrap();
    let text = text.replace(&world.servers.server(0).url(), "service=first");
    assert!(text.contains("\"service=first\""), "{text}");
    std::fs::write(&world.config.path, text).unwrap();
    let run = async |services: &str| {
        let file = world.write("services.conf", services);
        let ran = world
            .run_with(
                &["sql", "SELECT 1"],
                &[("PGSERVICEFILE", file.to_str().unwrap())],
            )
            .await;
        (ran.code(), ran.stderr)
    };
    let good = format!(
        "[first]\nhost=127.0.0.1\nport={}\nuser=app\ndbname=app\n",
        world.servers.server(0).port()
    );
    assert_eq!(run(&good).await.0, 0);
    for (services, words) in [
        (
            "[second]\nhost=127.0.0.1\n".to_owned(),
            "there is no service \"first\"",
        ),
        (
            format!("{good}hots=hunter2\n"),
            "line 6 has a key that pgshard does not know",
        ),
        (good.replace("user=app\n", ""), "the url names no user"),
    ] {
        let (code, said) = run(&services).await;
        assert!(
            code == 2 && said.contains(words) && !said.contains("hunter2"),
            "{code} {said}"
        );
    }
}
