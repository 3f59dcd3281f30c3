//! Keys: PostgreSQL computes the same shards for them as we do, and a cluster has one kind of keys.

use pgshard::config::Config;
use pgshard::router::{Error, HostDiffers};
use pgshard::{KeyKind, ShardCount};
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::support::{TestCluster, World, other};

/// The statement in `docs/keys.md` for a kind.
fn sql_of(kind: &str) -> String {
    let text = include_str!("../../docs/keys.md");
    let block = text
        .split("```sql\n")
        .nth(1)
        .unwrap()
        .split("```")
        .next()
        .unwrap();
    let line = block
        .lines()
        .find(|line| line.ends_with(&format!("-- {kind}")))
        .unwrap();
    line.split(';').next().unwrap().to_owned()
}

on_each_version! {
    /// The statements of the manual, with all sorts of texts and UUIDs.
    async fn the_server_agrees(version) {
        let cluster = TestCluster::start(version, 1);
        let client = cluster.app(0).await;
        let (of_text, of_uuid) = (sql_of("string:sha256"), sql_of("uuid:sha256"));
        let of_integer = sql_of("integer")
            .replace("$1::numeric", "$1::int8::numeric")
            .replace("$2", "$2::int8");
        let of_integer = format!(
            "SELECT ({})::int8",
            of_integer.trim_start_matches("SELECT ")
        );
        let asked = async |sql: &str, parameters: &[&(dyn ToSql + Sync)]| -> i64 {
            client
                .query_one(sql, parameters)
                .await
                .unwrap_or_else(|error| panic!("{sql}: {error:?}"))
                .get(0)
        };
        for round in 0..200 {
            let shards = ShardCount::new(fastrand::u32(1..=8192)).unwrap();
            let n = i64::from(shards.get());
            let text: String = (0..round)
                .map(|_| fastrand::char(..))
                .filter(|c| *c != '\0')
                .collect();
            assert_eq!(
                asked(&of_text, &[&text, &n]).await,
                i64::from(shards.shard_of_key(&text).get()),
                "{text:?}"
            );
            let uuid = Uuid::from_u128(fastrand::u128(..));
            assert_eq!(
                asked(&of_uuid, &[&uuid, &n]).await,
                i64::from(shards.shard_of_key(uuid).get()),
                "{uuid}"
            );
            let integer = fastrand::i64(..);
            assert_eq!(
                asked(&of_integer, &[&integer, &n]).await,
                i64::from(shards.shard_of_key(integer).get()),
                "{integer}"
            );
        }
    }

    /// A cluster has texts as keys since its bootstrap; their keys cannot be used as numbers.
    async fn a_cluster_has_one_kind(version) {
        let mut world = World::new(&[version, other(version)], 8).await;
        let text = std::fs::read_to_string(&world.config.path).unwrap();
        let emails = text.replace("[cluster]\n", "[cluster]\nkey = \"string:sha256\"\n");

        // It was bootstrapped with integers: bootstrap, check and the router refuse any other kind.
        let path = world.write("emails.toml", &emails);
        let arguments = |verb| ["--config", path.to_str().unwrap(), verb];
        world.run(&arguments("bootstrap")).await.ended(4);
        let check = world.run(&arguments("check")).await.ended(1).last();
        let codes: Vec<&str> = check["findings"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["code"].as_str().unwrap())
            .collect();
        assert!(codes.contains(&"key_differs"), "{check}");
        let router = pgshard::connect(&path).await.unwrap();
        let error = router
            .by_key("ann@x.org")
            .query("SELECT * FROM {shard}.users", &[])
            .await
            .unwrap_err();
        let recorded = |error: &Error| match error {
            Error::HostDiffers {
                source:
                    HostDiffers::Key {
                        recorded,
                        config: KeyKind::String,
                    },
                ..
            } => recorded.clone(),
            error => panic!("{error}"),
        };
        assert_eq!(recorded(&error), "integer");
        assert!(!error.is_retryable());

        // As if it had been bootstrapped with texts.
        for client in world.all().await {
            client
                .batch_execute(
                    "UPDATE pgshard.cluster SET key_kind = \
                'string:sha256'",
                )
                .await
                .unwrap();
        }
        world.config = Config::load(&path).unwrap();
        world.run(&["bootstrap"]).await.ended(0);
        let shard = router.by_key("ann@x.org");
        let insert = "INSERT INTO {shard}.users (name) VALUES ('ann@x.org') RETURNING id";
        let id: i64 = shard.query_one(insert, &[]).await.unwrap().get(0);
        assert_eq!(router.by_id(id).unwrap().id(), shard.id());
        let located = world
            .run(&["locate", "--key", "ann@x.org"])
            .await
            .ended(0)
            .last();
        assert_eq!(
            (&located["key"], &located["shard"]),
            (&"ann@x.org".into(), &shard.id().get().into())
        );

        // A key of another kind is sent nowhere.
        for wrong in [router.by_key(31341), router.by_key(Uuid::nil())] {
            let statement = wrong.query(insert, &[]).await.unwrap_err();
            let transaction = wrong
                .transaction(async |tx| tx.execute(insert, &[]).await)
                .await
                .unwrap_err();
            let raw = wrong.client().await.map(drop).unwrap_err();
            let ids = wrong.next_ids(1).await.unwrap_err();
            for error in [statement, transaction, raw, ids] {
                assert!(
                    matches!(
                        error,
                        Error::WrongKey {
                            cluster: KeyKind::String,
                            ..
                        }
                    ),
                    "{error}"
                );
            }
        }
        let error = router.try_by_key(31341).unwrap_err().to_string();
        assert_eq!(
            error,
            "the keys of this cluster are string:sha256, and this one is integer: \
            nothing was sent"
        );
        assert!(router.try_by_key(String::from("ann@x.org")).is_ok());
    }
}
