//! `schema::bootstrap`, `host_facts`, `check` and `rebuild_map` on real servers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use pgshard::id::{Epoch, Id};
use pgshard::map::{HostName, MapVersion, Placement, ShardEpoch, ShardMap};
use pgshard::pg::ConnectOptions;
use pgshard::schema::Refusal;
use pgshard::schema::bootstrap::{Event, Host, HostReport, Report, Request};
use pgshard::schema::{self, Cluster, HostFault, Migrations, ShardFault, ShardState};
use pgshard::{SchemaPrefix, ShardCount, ShardId};

use crate::support::TestCluster;

const TABLES: &str = "
CREATE TABLE {shard}.photos (id bigint PRIMARY KEY DEFAULT {shard}.next_id(), title text NOT NULL);
CREATE FUNCTION {shard}.titles() RETURNS SETOF text LANGUAGE sql AS $$ SELECT title FROM \
{shard}.photos $$;
COMMENT ON TABLE {shard}.photos IS 'of {shard_id}' -- without a semicolon";

fn shard(number: u16) -> ShardId {
    ShardId::new(number).unwrap()
}

fn epoch(number: u32) -> ShardEpoch {
    ShardEpoch::new(number).unwrap()
}

fn migrations(files: &[(&str, &str)]) -> Migrations {
    let texts = files
        .iter()
        .map(|(name, sql)| ((*name).to_owned(), (*sql).to_owned()))
        .collect();
    Migrations::from_texts(&texts).unwrap()
}

fn cluster_of(shards: u16) -> Cluster {
    Cluster {
        shards: ShardCount::new(shards.into()).unwrap(),
        epoch: Epoch::from_unix_ms(1_293_840_000_000).unwrap(),
        schema_prefix: SchemaPrefix::default(),
        key: pgshard::KeyKind::Integer,
        legacy_below: 0,
        unsharded: None,
    }
}

/// Shards spread evenly over the hosts.
fn request(servers: &TestCluster, shards: u16, files: &[(&str, &str)]) -> Request {
    let cluster = cluster_of(shards);
    let hosts = servers.servers().len();
    let bound = |at: usize| at * usize::from(shards) / hosts;
    let host = |at: usize| Host {
        name: servers.name(at),
        connect: ConnectOptions::parse(&servers.server(at).url()).unwrap(),
        shards: (bound(at)..bound(at + 1))
            .map(|number| (shard(number as u16), ShardEpoch::FIRST))
            .collect(),
    };
    Request::new(cluster, (0..hosts).map(host).collect(), migrations(files))
}

fn map_of(request: &Request) -> ShardMap {
    let placements = request.hosts.iter().flat_map(|host| {
        host.shards.iter().map(|(shard, epoch)| {
            (
                *shard,
                Placement {
                    host: host.name.clone(),
                    epoch: *epoch,
                },
            )
        })
    });
    ShardMap::new(MapVersion::FIRST, request.cluster.shards, placements).unwrap()
}

async fn run(request: &Request) -> Report {
    schema::bootstrap(request, &|_| {}).await
}

async fn survey(request: &Request) -> schema::Survey {
    schema::survey(
        request
            .hosts
            .iter()
            .map(|host| (host.name.clone(), host.connect.clone())),
    )
    .await
}

async fn codes(request: &Request) -> Vec<(&'static str, String)> {
    let findings = schema::check(
        &map_of(request),
        &survey(request).await,
        &request.cluster,
        Some(&request.migrations),
    );
    findings
        .into_iter()
        .map(|finding| (finding.code, finding.message))
        .collect()
}

fn report_of<'a>(report: &'a Report, host: &str) -> &'a HostReport {
    &report.hosts[host]
}

on_each_version! {
    /// Everything exists, by the host's own catalogs, and IDs contain their shard and time. A
    /// second run finds nothing to do and writes nothing. A new migration is run in every shard,
    /// and only that.
    async fn a_second_run_changes_nothing(version) {
        let servers = TestCluster::start(version, 2);
        let mut request = request(&servers, 24, &[("0001_photos.sql", TABLES)]);
        let events = Mutex::new(Vec::new());
        let note = |event: Event<'_>| match event {
            Event::ShardDone { host, shard } => events.lock().unwrap().push((host.clone(), shard)),
            Event::ShardFailed { .. } | Event::HostFailed { .. } => panic!("{event:?}"),
            _ => {}
        };
        let first = schema::bootstrap(&request, &note).await;
        assert!(first.is_complete() && !first.nothing_to_do(), "{first:?}");
        assert_eq!(
            report_of(&first, "db2").created,
            (12..24).map(shard).collect::<Vec<_>>()
        );
        assert_eq!(
            report_of(&first, "db1").control,
            (1..=schema::control::VERSION).collect::<Vec<_>>()
        );
        let mut told = events.into_inner().unwrap();
        told.sort();
        assert_eq!(
            told,
            map_of(&request)
                .iter()
                .map(|(shard, host, _)| (host.clone(), shard))
                .collect::<Vec<_>>()
        );
        assert_eq!(codes(&request).await, []);

        let client = servers.app(1).await;
        let row = client
            .query_one(
                "INSERT INTO shard_0013.photos (title) VALUES ('a') RETURNING \
                id",
                &[],
            )
            .await
            .unwrap();
        assert_eq!(Id::decode(row.get(0)).shard(), shard(13));
        let row = client
            .query_one("SELECT obj_description('shard_0013.photos'::regclass)", &[])
            .await
            .unwrap();
        assert_eq!(row.get::<_, &str>(0), "of 13");
        // The sequences and everything else belong to the role, so the role can move and drop the
        // schema.
        let foreign =
            "SELECT count(*) FROM pg_class WHERE relnamespace = 'shard_0013'::regnamespace
            AND relowner <> current_user::regrole";
        assert_eq!(
            client
                .query_one(foreign, &[])
                .await
                .unwrap()
                .get::<_, i64>(0),
            0
        );

        let written = "SELECT xmin::text, (SELECT count(*) FROM pgshard.shard_migration) FROM \
            pgshard.cluster";
        let before: (String, i64) = {
            let row = client.query_one(written, &[]).await.unwrap();
            (row.get(0), row.get(1))
        };
        let second = run(&request).await;
        assert!(second.nothing_to_do(), "{second:?}");
        assert_eq!(report_of(&second, "db1").unchanged, 12);
        let row = client.query_one(written, &[]).await.unwrap();
        assert_eq!((row.get(0), row.get(1)), before);

        request.migrations = migrations(&[
            ("0001_photos.sql", TABLES),
            (
                "0002_width.sql",
                "ALTER TABLE \
                {shard}.photos ADD width int",
            ),
        ]);
        assert_eq!(
            codes(&request).await,
            [
                (
                    "migrations_pending",
                    "12 shards (0-11): it lacks 0002_width".to_owned()
                ),
                (
                    "migrations_pending",
                    "12 shards (12-23): it lacks 0002_width".to_owned()
                ),
            ]
        );
        let third = run(&request).await;
        assert!(third.is_complete(), "{third:?}");
        assert_eq!(
            (
                report_of(&third, "db1").created.len(),
                report_of(&third, "db1").migrated.len()
            ),
            (0, 12)
        );
        client
            .query("SELECT width FROM shard_0013.photos", &[])
            .await
            .unwrap();
        assert_eq!(codes(&request).await, []);
    }

    /// The clock of an ID is the server's (or a little ahead in a burst), its sequence counts, and
    /// the sign flips where the format defines it. Before the epoch and after 41 bits there are no
    /// IDs, only an error with the reason.
    async fn ids_have_the_configs_format(version) {
        let servers = TestCluster::start(version, 1);
        let superuser = servers.superuser(0).await;
        let now_ms = || async {
            let row = superuser
                .query_one(
                    "SELECT (extract(epoch FROM clock_timestamp()) * \
                1000)::int8",
                    &[],
                )
                .await;
            row.unwrap().get::<_, i64>(0)
        };
        let mut request = request(&servers, 8192, &[]);
        let now = now_ms().await;
        for (database, epoch_ms, negative) in [
            ("ids_a", now - 86_400_000, false),
            ("ids_b", now - (1 << 40) - 1000, true),
        ] {
            superuser
                .batch_execute(&format!(
                    "CREATE DATABASE {database} OWNER \
                app"
                ))
                .await
                .unwrap();
            let url = format!(
                "postgres://app@127.0.0.1:{}/{database}",
                servers.server(0).port()
            );
            request.hosts[0].connect = ConnectOptions::parse(&url).unwrap();
            request.hosts[0].shards = vec![
                (shard(8191), ShardEpoch::FIRST),
                (shard(0), ShardEpoch::FIRST),
            ];
            request.cluster.epoch = Epoch::from_unix_ms(epoch_ms).unwrap();
            assert!(run(&request).await.is_complete());
            let client = crate::support::connect(&url).await;
            // Whatever the search path: nothing in the function depends on it.
            client
                .batch_execute(
                    "CREATE SCHEMA trap; CREATE FUNCTION trap.floor(float8) RETURNS float8
                LANGUAGE sql AS 'SELECT 0::float8'; SET search_path = trap, pg_catalog",
                )
                .await
                .unwrap();
            let before = now_ms().await - epoch_ms;
            let ids = client
                .query(
                    "SELECT shard_8191.next_id() FROM generate_series(1, \
                1030)",
                    &[],
                )
                .await
                .unwrap();
            let after = now_ms().await - epoch_ms;
            for (at, row) in ids.iter().enumerate() {
                let bigint: i64 = row.get(0);
                let id = Id::decode(bigint);
                assert_eq!(
                    (id.shard(), usize::from(id.seq()), bigint < 0),
                    (shard(8191), (at + 1) % 1024, negative)
                );
                // 1030 IDs are never more than two milliseconds ahead.
                assert!(
                    (before..=after + 2).contains(&(id.ms() as i64)),
                    "{before} <= {} <= \
                    {after}",
                    id.ms()
                );
            }
            let id: i64 = client
                .query_one("SELECT shard_0000.next_id()", &[])
                .await
                .unwrap()
                .get(0);
            assert_eq!(
                (Id::decode(id).shard(), Id::decode(id).seq()),
                (shard(0), 1)
            );
        }
        for (database, epoch_ms, words) in [
            (
                "ids_c",
                now + 3_600_000,
                "the clock of this server is before the epoch of the \
                cluster's IDs",
            ),
            (
                "ids_d",
                now - (1 << 41),
                "the 41 bits of the cluster's IDs are used up",
            ),
        ] {
            superuser
                .batch_execute(&format!(
                    "CREATE DATABASE {database} OWNER \
                app"
                ))
                .await
                .unwrap();
            let url = format!(
                "postgres://app@127.0.0.1:{}/{database}",
                servers.server(0).port()
            );
            request.hosts[0].connect = ConnectOptions::parse(&url).unwrap();
            request.cluster.epoch = Epoch::from_unix_ms(epoch_ms).unwrap();
            assert!(run(&request).await.is_complete());
            let error = crate::support::connect(&url)
                .await
                .query("SELECT shard_0000.next_id()", &[])
                .await
                .unwrap_err();
            let error = error.as_db_error().unwrap().clone();
            assert_eq!((error.message(), error.code().code()), (words, "22008"));
        }
    }

    /// The shard that fails is named with file, line and the server's words, and nothing of it is
    /// left; all others are done. Once the cause is gone, only that shard is done.
    async fn a_failing_shard(version) {
        let servers = TestCluster::start(version, 1);
        let client = servers.app(0).await;
        client
            .batch_execute("CREATE SCHEMA shard_0040")
            .await
            .unwrap();
        // It fails in one shard only, and only when its rows are read.
        let sql =
            "CREATE TABLE {shard}.t (n int);\nINSERT INTO {shard}.t\nVALUES (1 / ({shard_id} \
            - 33));
            SET search_path = public; SET ROLE app";
        let request = request(
            &servers,
            64,
            &[("0001_photos.sql", TABLES), ("0002_t.sql", sql)],
        );
        let report = run(&request).await;
        let db1 = report_of(&report, "db1");
        assert_eq!((db1.created.len(), db1.failed.len()), (62, 2), "{db1:?}");
        let ShardFault::Migration {
            migration, words, ..
        } = &db1.failed[&shard(33)]
        else {
            panic!("{db1:?}")
        };
        assert_eq!(
            (migration.as_str(), words.as_str()),
            ("0002_t", "division by zero (22012)")
        );
        assert_eq!(
            db1.failed[&shard(40)],
            ShardFault::SchemaTaken {
                schema: "shard_0040".to_owned()
            }
        );
        let left = "SELECT count(*) FROM pg_namespace WHERE nspname = 'shard_0033'";
        assert_eq!(
            client.query_one(left, &[]).await.unwrap().get::<_, i64>(0),
            0
        );
        let taken = "shard 40: it is not there, and its schema (shard_ and the number) is one that \
            the host does not \
            know as a shard";
        let missing =
            ["shard 33: it is not there", taken].map(|what| ("shard_missing", what.to_owned()));
        assert_eq!(codes(&request).await, missing);

        // A syntax error has a line.
        let bad = "CREATE TABLE {shard}.u ();\n\nCREATE TABEL {shard}.t ()";
        let mut wrong = request.clone();
        wrong.migrations = migrations(&[
            ("0001_photos.sql", TABLES),
            ("0002_t.sql", sql),
            ("0003_u.sql", bad),
        ]);
        let report = run(&wrong).await;
        let fault = &report_of(&report, "db1").failed[&shard(0)];
        assert_eq!(
            fault.to_string(),
            "0003_u line 3 failed: syntax error at or near \"TABEL\" \
            (42601)"
        );
        // What others have run may not be changed for a shard that lacks it.
        wrong.migrations = migrations(&[("0001_photos.sql", TABLES), ("0002_t.sql", bad)]);
        let report = run(&wrong).await;
        let drift = &report_of(&report, "db1").failed[&shard(0)];
        assert_eq!(drift.to_string(), "0002_t was changed after it was run");
        assert_eq!(
            report_of(&report, "db1").failed[&shard(33)],
            ShardFault::Withheld
        );

        client
            .batch_execute("DROP SCHEMA shard_0040")
            .await
            .unwrap();
        // The file may no longer change, so the remedy is elsewhere: here, an operator for the
        // division.
        let report = run(&request).await;
        assert_eq!(report_of(&report, "db1").created, [shard(40)]);
        assert_eq!(report_of(&report, "db1").failed.len(), 1);
    }

    /// If every shard fails, not all of thousands are tried.
    async fn it_stops_when_every_shard_fails(version) {
        let servers = TestCluster::start(version, 1);
        let request = request(
            &servers,
            100,
            &[(
                "0001_a.sql",
                "CREATE TABLE {shard}.t (a \
            nosuch)",
            )],
        );
        let report = run(&request).await;
        let faults: Vec<_> = report_of(&report, "db1").failed.values().collect();
        let tried = faults
            .iter()
            .filter(|fault| matches!(fault, ShardFault::Migration { .. }))
            .count();
        assert_eq!((faults.len(), tried), (100, 32));
        assert!(report_of(&report, "db1").created.is_empty());
    }

    /// All of a host's record is compared with the config; a host that differs is not written to,
    /// and the others are.
    async fn another_clusters_host_is_not_written_to(version) {
        let servers = TestCluster::start(version, 2);
        let right = request(&servers, 8, &[]);
        let only = |host: usize| right.clone().only(BTreeSet::from([servers.name(host)]));
        let report = run(&only(0)).await;
        assert_eq!(
            report
                .hosts
                .keys()
                .map(HostName::as_str)
                .collect::<Vec<_>>(),
            ["db1"]
        );
        assert!(report.is_complete());

        let mut other = request(&servers, 16, &[]);
        other.cluster.epoch = Epoch::from_unix_ms(5).unwrap();
        other.cluster.schema_prefix = SchemaPrefix::new("s_").unwrap();
        other.hosts[0].name = HostName::new("db0").unwrap();
        let report = run(&other).await;
        let Some(HostFault::Refused(refusals)) = &report_of(&report, "db0").fault else {
            panic!("{report:?}")
        };
        assert_eq!(refusals.len(), 4, "{refusals:?}");
        assert!(report_of(&report, "db0").created.is_empty());
        // Two names for one database: the second is refused.
        let mut twice = right.clone();
        twice.hosts[1].connect = twice.hosts[0].connect.clone();
        let report = run(&twice).await;
        let refused = |host: &str| report.hosts[host].fault.clone();
        assert!(
            refused("db1").is_some() || refused("db2").is_some(),
            "{report:?}"
        );
        assert!(
            matches!(
                refused("db2"),
                Some(HostFault::Refused(_) | HostFault::Busy { .. })
            ),
            "{report:?}"
        );

        // A newer control schema, and one with another text.
        let client = servers.app(0).await;
        let newer = "INSERT INTO pgshard.control_migration VALUES (99, 'later', ''); UPDATE \
            pgshard.control_migration \
                     SET checksum = 'x' WHERE version = 1";
        client.batch_execute(newer).await.unwrap();
        let report = run(&only(0)).await;
        let Some(HostFault::Refused(refusals)) = &report_of(&report, "db1").fault else {
            panic!("{report:?}")
        };
        assert_eq!(refusals[1], Refusal::Newer { recorded: 99 });
        assert!(matches!(refusals[0], Refusal::Changed { version: 1, .. }));
    }

    /// Rights are checked before anything is written.
    async fn rights_are_checked_before_anything_is_written(version) {
        let servers = TestCluster::start(version, 1);
        let superuser = servers.superuser(0).await;
        let sql = "CREATE ROLE poor LOGIN; REVOKE CREATE ON DATABASE app FROM PUBLIC";
        superuser.batch_execute(sql).await.unwrap();
        let mut request = request(&servers, 4, &[]);
        let poor = format!("postgres://poor@127.0.0.1:{}/app", servers.server(0).port());
        request.hosts[0].connect = ConnectOptions::parse(&poor).unwrap();
        let report = run(&request).await;
        let fault = report_of(&report, "db1").fault.as_ref().unwrap();
        assert_eq!(
            fault.to_string(),
            "the role poor may not create schemas in the database app"
        );
        assert_eq!(
            fault.remedy(),
            r#"as the database's owner: GRANT CREATE ON DATABASE "app" TO "poor""#
        );
        // Later, when the schema belongs to another role.
        request.hosts[0].connect = ConnectOptions::parse(&servers.server(0).url()).unwrap();
        assert!(run(&request).await.is_complete());
        request.hosts[0].connect = ConnectOptions::parse(&poor).unwrap();
        let report = run(&request).await;
        let fault = report_of(&report, "db1")
            .fault
            .as_ref()
            .unwrap()
            .to_string();
        assert!(
            fault.contains(
                "its control schema belongs to the role app, not to \
            poor"
            ),
            "{fault}"
        );
    }

    /// Even with a stale or edited map, no shard is created that any host knows, or could know.
    async fn never_a_second_copy(version) {
        let servers = TestCluster::start(version, 3);
        let mut request = request(&servers, 9, &[]);
        assert!(run(&request).await.is_complete());
        // Shard 0 has moved from db1 to db2; 1 is fenced; 2 is on its way to db3, decided but not
        // opened.
        let db1 = servers.app(0).await;
        db1.batch_execute(
            "
            UPDATE pgshard.shard SET state = 'moved', epoch = 2, peer = 'db2' WHERE shard_id = 0;
            UPDATE pgshard.shard SET state = 'moved', epoch = 2, peer = 'db3' WHERE shard_id = 2;
            UPDATE pgshard.shard SET state = 'fenced', peer = 'db2', move_id = gen_random_uuid(), \
            attempt = 1,
                lease = gen_random_uuid(), fence_deadline = now() + interval '1 h' WHERE shard_id \
                = 1"
            .replace("gen_random_uuid()", "md5(random()::text)::uuid")
            .as_str(),
        )
        .await
        .unwrap();
        servers
            .app(1)
            .await
            .batch_execute(
                "CREATE SCHEMA shard_0000;
            INSERT INTO pgshard.shard (shard_id, schema_name, state, epoch) VALUES (0, \
            'shard_0000', 'serving', 2)",
            )
            .await
            .unwrap();
        servers
            .app(2)
            .await
            .batch_execute(
                "INSERT INTO pgshard.incoming (shard_id, schema_name, move_id, lease, source, epoch)
            VALUES (2, 'shard_0002', md5('m')::uuid, md5('l')::uuid, 'db1', 2)",
            )
            .await
            .unwrap();

        let survey_now = survey(&request).await;
        let states: BTreeMap<_, _> = survey_now[&servers.name(0)]
            .as_ref()
            .unwrap()
            .control
            .as_ref()
            .unwrap()
            .shards
            .iter()
            .map(|(shard, row)| (shard.get(), row.state))
            .collect();
        assert_eq!(
            states,
            BTreeMap::from([
                (0, ShardState::Moved),
                (1, ShardState::Fenced),
                (2, ShardState::Moved)
            ])
        );
        let rebuilt = schema::rebuild_map(&map_of(&request), &survey_now);
        let changes: Vec<String> = rebuilt.changes.iter().map(ToString::to_string).collect();
        assert_eq!(
            changes,
            ["shard 0: db1 @1 -> db2 @2", "shard 2: db1 @1 -> db3 @2"]
        );
        assert_eq!(rebuilt.notes, []);

        // The stale map, with a migration to run: the only shard that is still here gets it, and
        // the others are named.
        request.migrations = migrations(&[("0001_photos.sql", TABLES)]);
        let report = run(&request).await;
        let db1_report = report_of(&report, "db1");
        assert_eq!(db1_report.failed.len(), 3, "{db1_report:?}");
        assert_eq!(
            db1_report.failed[&shard(0)].to_string(),
            "db1 says that it has moved to db2 \
            (epoch 2)"
        );
        assert!(
            matches!(db1_report.failed[&shard(1)], ShardFault::Moving(_)),
            "{db1_report:?}"
        );
        assert_eq!(
            report_of(&report, "db2").migrated,
            (3..6).map(shard).collect::<Vec<_>>()
        );

        // Maps edited by hand: 0 and 1 are put on db3, 2 and 6 on db2.
        let mut edited = request.clone();
        edited.hosts[0].shards.clear();
        edited.hosts[1]
            .shards
            .extend([(shard(2), epoch(1)), (shard(6), epoch(1))]);
        edited.hosts[2]
            .shards
            .extend([(shard(0), epoch(1)), (shard(1), epoch(2))]);
        let report = run(&edited).await;
        assert!(
            report.hosts.values().all(|host| host.created.is_empty()),
            "{report:?}"
        );
        let said = |host: &str, number| report.hosts[host].failed[&shard(number)].to_string();
        assert_eq!(said("db2", 2), "a move is bringing it from db1 to db3");
        assert_eq!(said("db2", 6), "db3 serves it (epoch 1)");
        assert_eq!(said("db3", 0), "db2 serves it (epoch 2)");
        assert_eq!(said("db3", 1), "db1 serves it (epoch 1)");

        // A host that is down could know anything. Its shards, placed elsewhere, are not created;
        // nor are new ones, unless the operator passes `--assume-empty` for the host.
        servers
            .server(2)
            .stop(pgshard::dev::StopMode::Fast)
            .unwrap();
        let mut grown = edited.clone();
        grown.hosts[1].shards.push((shard(7), epoch(1)));
        let report = run(&grown).await;
        let fault = &report_of(&report, "db2").failed[&shard(7)];
        assert_eq!(
            fault,
            &ShardFault::Unread {
                hosts: vec![servers.name(2)]
            }
        );
        assert!(matches!(
            report_of(&report, "db3").fault,
            Some(HostFault::Unread { .. })
        ));
        let down = survey(&request).await;
        let kept = schema::rebuild_map(&map_of(&request), &down);
        assert_eq!(kept.map.host(shard(8)), Some(&servers.name(2)));
        assert_eq!(kept.map.host(shard(2)), Some(&servers.name(2)));
        let codes = codes(&request).await;
        assert!(
            codes.iter().any(|(code, _)| *code == "host_unreachable"),
            "{codes:?}"
        );

        // The first set-up of a cluster with a third server that does not exist yet.
        let fresh = TestCluster::start(version, 1);
        let mut first = request.clone();
        first.hosts.truncate(1);
        first.hosts[0].connect = ConnectOptions::parse(&fresh.server(0).url()).unwrap();
        first.hosts.push(Host {
            name: servers.name(2),
            ..request.hosts[2].clone()
        });
        let report = run(&first).await;
        assert!(report_of(&report, "db1").created.is_empty());
        first.assume_empty.insert(servers.name(2));
        let report = run(&first).await;
        assert_eq!(report_of(&report, "db1").created.len(), 3);
        // A shard that has moved before is never created.
        first.hosts[0].shards.push((shard(8), epoch(3)));
        let report = run(&first).await;
        assert_eq!(
            report_of(&report, "db1").failed[&shard(8)],
            ShardFault::Unknown { epoch: epoch(3) }
        );
    }

    /// Two bootstraps at the same time create every shard once; if the future of one is dropped
    /// halfway, it leaves only whole shards.
    async fn at_the_same_time(version) {
        let servers = TestCluster::start(version, 2);
        let request = request(&servers, 64, &[("0001_photos.sql", TABLES)]);
        let (done, some_done) = tokio::sync::oneshot::channel();
        let done = Mutex::new(Some(done));
        let tell = |event: Event<'_>| {
            if let Event::ShardDone { .. } = event
                && let Some(done) = done.lock().unwrap().take()
            {
                let _ = done.send(());
            }
        };
        tokio::select! {
            _ = schema::bootstrap(&request, &tell) => panic!("it ended before its first shard was \
                heard of"),
            heard = some_done => heard.unwrap(),
        }
        let (a, b) = tokio::join!(run(&request), run(&request));
        let total = |report: &Report| {
            report
                .hosts
                .values()
                .map(|host| host.created.len())
                .sum::<usize>()
        };
        assert!(a.is_complete() && b.is_complete(), "{a:?} {b:?}");
        assert!(
            total(&a) == 0 || total(&b) == 0,
            "the second finds everything done"
        );
        assert!(
            total(&a) + total(&b) < 64,
            "what the dropped one had done stays"
        );
        assert_eq!(codes(&request).await, []);
    }

    /// Hundreds of shards on servers with few locks.
    async fn many_shards_few_locks(version) {
        let settings = [
            ("max_locks_per_transaction", "10"),
            ("max_prepared_transactions", "0"),
        ];
        let settings = settings
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .to_vec();
        let options = pgshard::dev::ServerOptions::default()
            .max_connections(20)
            .settings(settings);
        let servers = TestCluster::start_with(version, 2, options);
        let request = request(&servers, 512, &[("0001_photos.sql", TABLES)]);
        let report = run(&request).await;
        assert!(
            report.is_complete(),
            "{:?}",
            report.hosts.values().flat_map(|host| &host.failed).next()
        );
        assert!(run(&request).await.nothing_to_do());
        assert_eq!(codes(&request).await, []);
    }
}
