//! Tickets and leases of worker numbers on real servers. Everything is counted exactly.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use pgshard::dev::{ServerOptions, StopMode};
use pgshard::id::Epoch;
use pgshard::idgen::lease::{self, Elsewhere, Freed, Grant, Installed, Term};
use pgshard::idgen::snowflake::{self, Fields};
use pgshard::idgen::tickets::{
    self, Create, Created, Options, Refusal, Role, TicketHost, TicketName, create,
};
use pgshard::idgen::{IdSource, LeaseStore, Snowflake, Tickets, WorkerLeases};
use pgshard::pg::ConnectOptions;
use uuid::Uuid;

use crate::support::TestCluster;
use crate::support::proxy::Proxy;

fn connect(cluster: &TestCluster, host: usize) -> ConnectOptions {
    ConnectOptions::parse(&cluster.server(host).url()).unwrap()
}

fn hosts(cluster: &TestCluster, which: &[usize]) -> Vec<TicketHost> {
    which
        .iter()
        .map(|host| TicketHost {
            name: cluster.name(*host),
            connect: connect(cluster, *host),
        })
        .collect()
}

fn users() -> TicketName {
    TicketName::new("users").unwrap()
}

fn request(cluster: &TestCluster, which: &[usize]) -> Create {
    let hosts = which.iter().map(|host| cluster.name(*host)).collect();
    Create {
        name: users(),
        hosts,
        stride: None,
        run: Some(1),
        start: None,
        max: None,
        replace: None,
        lost: BTreeSet::new(),
    }
}

on_each_version! {
    /// A role with `default_transaction_read_only`.
    async fn a_role_that_only_reads(version) {
        let cluster = TestCluster::start(version, 1);
        let sql = "ALTER ROLE app SET default_transaction_read_only = on";
        cluster.superuser(0).await.batch_execute(sql).await.unwrap();
        assert_eq!(
            residues(&made(&cluster, &[0], &request(&cluster, &[0])).await).len(),
            1
        );
    }
}

async fn made(cluster: &TestCluster, all: &[usize], request: &Create) -> Vec<Created> {
    create(&hosts(cluster, all), request, Uuid::new_v4())
        .await
        .unwrap()
}

fn residues(created: &[Created]) -> Vec<(u32, Role)> {
    created
        .iter()
        .map(|host| (host.residue, host.role))
        .collect()
}

fn source(cluster: &TestCluster, which: &[usize], block: usize) -> Tickets {
    Tickets::new(Options::new(users(), hosts(cluster, which)).block(block))
}

/// A source that waits for a slow host, and so leaves out none of its tickets.
fn patient(cluster: &TestCluster, which: &[usize], block: usize) -> Tickets {
    let mut options = Options::new(users(), hosts(cluster, which)).block(block);
    options.impatience = Duration::from_secs(60);
    options.host_limit = Duration::from_secs(60);
    Tickets::new(options)
}

fn now_ms() -> u64 {
    u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap()
}

/// What a holder with this clock requests.
fn term(now_ms: u64, ms: u64) -> Term {
    let epoch = Epoch::from_unix_ms(1_700_000_000_000).unwrap();
    Term {
        epoch,
        now_ms,
        length: Duration::from_millis(ms),
        keep: Duration::from_millis(ms),
    }
}

/// Checks that every ticket is there once, with all of these residues and no others.
fn all_different(tickets: &[i64], wanted: &[i64]) {
    assert_eq!(
        tickets.iter().collect::<HashSet<_>>().len(),
        tickets.len(),
        "a ticket was given twice"
    );
    let residues: BTreeSet<i64> = tickets.iter().map(|ticket| ticket % 16).collect();
    assert_eq!(residues, wanted.iter().copied().collect());
    assert!(tickets.iter().all(|ticket| *ticket > 0));
}

on_each_version! {
    /// Eight clients, each like a process of its own for PostgreSQL, while a host stops immediately
    /// and comes back, and a third host is added: no ticket twice, and no client sees an error.
    async fn a_host_stops_and_another_is_added(version) {
        let cluster = TestCluster::start(version, 3);
        let created = made(&cluster, &[0, 1], &request(&cluster, &[0, 1])).await;
        assert_eq!(residues(&created), [(1, Role::Created), (2, Role::Created)]);

        let work = async |which: &[usize], per_client: usize| {
            let mut clients = tokio::task::JoinSet::new();
            for number in 0..8 {
                let source = source(&cluster, which, if number % 2 == 0 { 100 } else { 1 });
                clients.spawn(async move {
                    let mut tickets = Vec::new();
                    for _ in 0..per_client {
                        tickets.push(source.next().await.unwrap());
                    }
                    tickets.extend(source.next_many(50).await.unwrap());
                    tickets
                });
            }
            clients
        };
        let mut clients = work(&[0, 1], 2000).await;
        let mut all = Vec::new();
        // In the middle: as after a crash, without a checkpoint.
        cluster.server(1).stop(StopMode::Immediate).unwrap();
        while let Some(tickets) = clients.join_next().await {
            all.extend(tickets.unwrap());
        }
        assert_eq!(all.len(), 8 * 2050);
        cluster.server(1).start().unwrap();

        let created = made(&cluster, &[0, 1, 2], &request(&cluster, &[2])).await;
        assert_eq!(residues(&created), [(3, Role::Created)]);
        let mut clients = work(&[0, 1, 2], 500).await;
        while let Some(tickets) = clients.join_next().await {
            all.extend(tickets.unwrap());
        }
        all_different(&all, &[1, 2, 3]);
        // Which tickets of a block are lost is unknown, but the third host began where the others
        // were.
        let third = all
            .iter()
            .filter(|ticket| **ticket % 16 == 3)
            .min()
            .unwrap();
        assert!(*third > 1600, "{third}");
    }

    /// A host with an immediate shutdown gives no ticket again, whichever transaction wrote the WAL
    /// record that covers it.
    async fn a_crash_gives_nothing_again(version) {
        let cluster = TestCluster::start(version, 1);
        made(&cluster, &[0], &request(&cluster, &[0])).await;
        cluster
            .superuser(0)
            .await
            .batch_execute(
                "ALTER DATABASE app SET synchronous_commit = \
            off",
            )
            .await
            .unwrap();
        let mut all = Vec::new();
        for _ in 0..3 {
            let mut clients = tokio::task::JoinSet::new();
            for _ in 0..4 {
                let source = source(&cluster, &[0], 1);
                clients.spawn(async move {
                    let mut tickets = Vec::new();
                    while let Ok(ticket) = source.next().await {
                        tickets.push(ticket);
                    }
                    tickets
                });
            }
            // Waits until every client has some.
            let watch = cluster.app(0).await;
            let sql = "SELECT last_value FROM pgshard_tickets.ticket_users";
            let begun: i64 = watch.query_one(sql, &[]).await.unwrap().get(0);
            while watch.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) < begun + 300 {
                tokio::task::yield_now().await;
            }
            cluster.server(0).stop(StopMode::Immediate).unwrap();
            while let Some(tickets) = clients.join_next().await {
                all.extend(tickets.unwrap());
            }
            cluster.server(0).start().unwrap();
        }
        assert!(all.len() > 900, "{}", all.len());
        all_different(&all, &[1]);
    }

    /// The counterpart of that test: nextval() writes WAL for 32 values at a time, here in a
    /// transaction that is still open, and transactions that get the other values have nothing to
    /// flush. Without the message in `take()` they would be given again after a crash.
    async fn what_the_flush_is_for(version) {
        for (flushed, given_again) in [(true, 0), (false, 1)] {
            // No other process writes WAL to disk in that time.
            let late = vec![("wal_writer_delay".to_owned(), "10s".to_owned())];
            let cluster =
                TestCluster::start_with(version, 1, ServerOptions::default().settings(late));
            made(&cluster, &[0], &request(&cluster, &[0])).await;
            if !flushed {
                cluster
                    .app(0)
                    .await
                    .batch_execute(
                        "DO $do$ BEGIN
                    EXECUTE replace(pg_get_functiondef('pgshard_tickets.take'::regproc),
                        $$PERFORM pg_catalog.pg_logical_emit_message(true, 'pgshard_tickets', \
                        '');$$, '');
                    ASSERT (SELECT prosrc NOT LIKE '%emit%' FROM pg_proc WHERE oid = \
                    'pgshard_tickets.take'::regproc);
                END $do$",
                    )
                    .await
                    .unwrap();
            }
            let take = async |client: &tokio_postgres::Client| {
                let row = client
                    .query_one(
                        "SELECT tickets FROM pgshard_tickets.take('users', \
                    1)",
                        &[],
                    )
                    .await
                    .unwrap();
                row.get::<_, Vec<i64>>(0)[0]
            };
            let (writer, other) = (cluster.app(0).await, cluster.app(0).await);
            writer.batch_execute("BEGIN").await.unwrap();
            take(&writer).await;
            // It was given: its transaction has committed, with synchronous_commit = on.
            let given = take(&other).await;
            cluster.server(0).restart(StopMode::Immediate).unwrap();
            let client = cluster.app(0).await;
            let after = [take(&client).await, take(&client).await];
            assert_eq!(
                after.iter().filter(|ticket| **ticket == given).count(),
                given_again,
                "{given}, then {after:?}"
            );
        }
    }

    /// Again, at the same time, with another stride, without a host that is needed, and with values
    /// that are never allowed.
    async fn create_again_and_refusals(version) {
        let cluster = TestCluster::start(version, 3);
        // Two at the same time make one series with a residue for each host.
        let (all, both) = (hosts(&cluster, &[0, 1]), request(&cluster, &[0, 1]));
        let (one, two) = tokio::join!(
            create(&all, &both, Uuid::new_v4()),
            create(&all, &both, Uuid::new_v4())
        );
        let numbers =
            |created: Vec<Created>| created.iter().map(|host| host.residue).collect::<Vec<_>>();
        assert_eq!(
            (numbers(one.unwrap()), numbers(two.unwrap())),
            (vec![1, 2], vec![1, 2])
        );
        let again = made(&cluster, &[0, 1], &both).await;
        assert_eq!(
            residues(&again),
            [(1, Role::Unchanged), (2, Role::Unchanged)]
        );

        // The start is raised, and never lowered.
        let from = |start| Create {
            start: Some(start),
            ..request(&cluster, &[0])
        };
        assert_eq!(
            residues(&made(&cluster, &[0, 1], &from(1_000_000)).await),
            [(1, Role::Raised)]
        );
        assert_eq!(source(&cluster, &[0], 1).next().await.unwrap(), 1_000_001);
        assert_eq!(
            residues(&made(&cluster, &[0, 1], &from(10)).await),
            [(1, Role::Unchanged)]
        );
        assert_eq!(source(&cluster, &[0], 1).next().await.unwrap(), 1_000_017);

        let refused = async |all: &[usize], request: &Create| match create(
            &hosts(&cluster, all),
            request,
            Uuid::new_v4(),
        )
        .await
        {
            Err(tickets::Error::Refused(refusals)) => refusals,
            other => panic!("{other:?}"),
        };
        let two = Create {
            stride: Some(2),
            ..both.clone()
        };
        assert_eq!(
            refused(&[0, 1], &two).await,
            [Refusal::StrideDiffers { recorded: 16 }]
        );

        // A host that began on its own has residue 1 too, in a series of its own: it can never be
        // used together with the others.
        made(&cluster, &[2], &request(&cluster, &[2])).await;
        assert!(matches!(
            refused(&[0, 1, 2], &request(&cluster, &[2])).await[..],
            [Refusal::SeriesDiffer { .. }]
        ));
        let mixed = source(&cluster, &[0, 2], 1);
        let mut seen = Vec::new();
        for _ in 0..4 {
            seen.push(mixed.next().await.unwrap() > 1_000_000);
        }
        let used: BTreeSet<bool> = seen.into_iter().collect();
        assert_eq!(used.len(), 1, "only the series that came first is used");

        // A copy of a database under another name is not one of the hosts.
        let copy = vec![TicketHost {
            name: cluster.name(1),
            connect: connect(&cluster, 0),
        }];
        let error = Tickets::new(Options::new(users(), copy.clone()))
            .next()
            .await
            .unwrap_err();
        assert!(
            error.to_string().contains("it gives the tickets of db1"),
            "{error}"
        );
        let error = create(&copy, &request(&cluster, &[1]), Uuid::new_v4())
            .await
            .unwrap_err();
        assert!(
            matches!(
                &error,
                tickets::Error::Refused(said) if matches!(said[..], [Refusal::HostName { .. }])
            ),
            "{error}"
        );

        // The table itself enforces it: no other host gets a residue that is taken.
        let sql = "INSERT INTO pgshard_tickets.claim (name, residue, host_name) VALUES ('users', \
            1, 'db9')";
        let error = cluster.app(0).await.execute(sql, &[]).await.unwrap_err();
        assert_eq!(error.code().unwrap().code(), "23505");

        let nobody = Options::new(TicketName::new("groups").unwrap(), hosts(&cluster, &[0]));
        let error = Tickets::new(nobody).next().await.unwrap_err();
        assert!(
            error
                .to_string()
                .contains("pgshard tickets create groups --hosts db1"),
            "{error}"
        );
    }

    /// Every ticket up to the maximum is given once, by whichever host it belongs to, in blocks and
    /// one by one; then taking tickets fails with an error that contains what to do.
    async fn no_ticket_is_above_the_maximum(version) {
        let cluster = TestCluster::start(version, 2);
        for (stride, run, max, block) in [
            (2, 1, 1, 1),
            (2, 1, 407, 10),
            (3, 8, 397, 1),
            (3, 8, 200, 1000),
        ] {
            for host in [0, 1] {
                let client = cluster.app(host).await;
                let sql = "DROP SCHEMA IF EXISTS pgshard_tickets CASCADE";
                client.batch_execute(sql).await.unwrap();
            }
            let first: &[usize] = if max == 1 { &[0] } else { &[0, 1] };
            let create = Create {
                stride: Some(stride),
                run: Some(run),
                max: Some(max),
                ..request(&cluster, first)
            };
            made(&cluster, &[0, 1], &create).await;
            let source = patient(&cluster, first, block);
            let mut given = BTreeSet::new();
            let error = loop {
                let taken = match given.len() % 3 {
                    0 => source.next_many(7).await,
                    _ => source.next().await.map(|ticket| vec![ticket]),
                };
                match taken {
                    Ok(tickets) => {
                        for ticket in tickets {
                            assert!(given.insert(ticket), "{ticket} was given twice");
                        }
                    }
                    // Fewer than seven are left, and the next caller gets them.
                    Err(_) if source.ahead() > 0 => given.extend([source.next().await.unwrap()]),
                    Err(error) => break error,
                }
            };
            let residue = |ticket: &i64| ticket / i64::from(run) % i64::from(stride);
            let residues: &[i64] = match (stride, first.len()) {
                (2, 1) => &[1],
                (2, _) => &[0, 1],
                _ => &[1, 2],
            };
            let all: BTreeSet<i64> = (1..=max)
                .filter(|one| residues.contains(&residue(one)))
                .collect();
            assert_eq!(given, all, "stride {stride}, run {run}, blocks of {block}");
            assert!(
                matches!(
                    &error,
                    tickets::Error::UsedUp { hosts, .. } if hosts.len() == first.len()
                ),
                "{error:?}"
            );
            let said = pgshard::pg::cause::chain(&error);
            let wanted = [
                "tickets users are used up on db1",
                "--max N",
                &format!("end at {max}"),
            ];
            assert!(wanted.iter().all(|words| said.contains(words)), "{said}");
            // Those that take tickets by SQL, and an earlier version of the library, get an error.
            let sql = "SELECT tickets FROM pgshard_tickets.take('users', 5)";
            let error = cluster.app(0).await.query_one(sql, &[]).await.unwrap_err();
            assert_eq!(error.code().unwrap().code(), "2200H");
        }
    }

    /// Many take the last tickets at the same time.
    async fn a_maximum_is_met_by_many_at_once(version) {
        let cluster = TestCluster::start(version, 2);
        let create = Create {
            stride: Some(2),
            max: Some(5003),
            ..request(&cluster, &[0, 1])
        };
        made(&cluster, &[0, 1], &create).await;
        let mut clients = tokio::task::JoinSet::new();
        for number in 0..8 {
            let source = patient(&cluster, &[0, 1], if number % 2 == 0 { 40 } else { 1 });
            clients.spawn(async move {
                let mut tickets = Vec::new();
                while let Ok(ticket) = source.next().await {
                    tickets.push(ticket);
                }
                tickets
            });
        }
        let mut all = Vec::new();
        while let Some(tickets) = clients.join_next().await {
            all.extend(tickets.unwrap());
        }
        all.sort_unstable();
        assert_eq!(all, (1..=5003).collect::<Vec<_>>());
    }

    /// A maximum comes to a series that gives tickets already, is raised and lowered, reaches hosts
    /// that come later, and is refused where tickets above it were given.
    async fn a_maximum_is_set_raised_and_lowered(version) {
        let cluster = TestCluster::start(version, 3);
        made(&cluster, &[0, 1], &request(&cluster, &[0, 1])).await;
        let both = patient(&cluster, &[0, 1], 1);
        for _ in 0..10 {
            both.next().await.unwrap();
        }
        let with = |which: &[usize], max| Create {
            max,
            ..request(&cluster, which)
        };
        let refused = async |request: &Create| match create(
            &hosts(&cluster, &[0, 1, 2]),
            request,
            Uuid::new_v4(),
        )
        .await
        {
            Err(tickets::Error::Refused(refusals)) => refusals,
            other => panic!("{other:?}"),
        };
        // Each has given five: 1, 17 … 65 and 2, 18 … 66.
        let (db1, db2, db3) = (cluster.name(0), cluster.name(1), cluster.name(2));
        assert_eq!(
            refused(&with(&[0], Some(60))).await,
            [(&db1, 65), (&db2, 66)].map(|(host, last)| Refusal::MaxPassed {
                host: host.clone(),
                last,
                max: 60
            })
        );
        assert_eq!(refused(&with(&[0], Some(0))).await[0], Refusal::Max(0));
        let status = async |host: usize| {
            let said = tickets::status(&hosts(&cluster, &[host])).await.remove(0);
            said.names.unwrap().remove(0)
        };
        assert_eq!(status(0).await.max, None, "a refusal changes nothing");

        // It holds for all hosts, although one is named.
        made(&cluster, &[0, 1, 2], &with(&[0], Some(98))).await;
        assert_eq!(
            (
                status(0).await.used().unwrap().left,
                status(1).await.used().unwrap().left
            ),
            (2, 2)
        );
        assert_eq!(
            (status(2).await.max, status(2).await.used()),
            (Some(98), None)
        );
        let rest: BTreeSet<i64> = both.next_many(4).await.unwrap().into_iter().collect();
        assert_eq!(rest, [81, 82, 97, 98].into());
        assert!(matches!(
            both.next().await,
            Err(tickets::Error::UsedUp { .. })
        ));

        // Creating it again without a maximum changes nothing, also when no ticket is left. A new
        // host has none below it from where the others are.
        let again = made(&cluster, &[0, 1, 2], &with(&[0, 1], None)).await;
        assert_eq!(
            residues(&again),
            [(1, Role::Unchanged), (2, Role::Unchanged)]
        );
        assert_eq!(again[0].max, Some(98));
        assert_eq!(
            refused(&with(&[2], None)).await,
            [Refusal::MaxLeavesNone {
                host: db3,
                start: 98,
                max: 98
            }]
        );
        let beyond = Create {
            start: Some(98),
            ..with(&[0], None)
        };
        assert_eq!(
            refused(&beyond).await,
            [Refusal::MaxLeavesNone {
                host: db1,
                start: 98,
                max: 98
            }]
        );

        // Raised, with the third host, and lowered.
        made(&cluster, &[0, 1, 2], &with(&[2], Some(200))).await;
        made(&cluster, &[0, 1, 2], &with(&[2], Some(120))).await;
        let three = patient(&cluster, &[0, 1, 2], 1);
        let more: BTreeSet<i64> = three.next_many(4).await.unwrap().into_iter().collect();
        assert_eq!(more, [99, 113, 114, 115].into());
        assert!(matches!(
            three.next().await,
            Err(tickets::Error::UsedUp { .. })
        ));
    }

    /// A series without a maximum gives tickets and reports them; creating it again sets one.
    async fn a_series_gets_a_maximum_later(version) {
        let cluster = TestCluster::start(version, 1);
        let client = cluster.app(0).await;
        client
            .batch_execute(include_str!("../../migrations/tickets/0001_tickets.sql"))
            .await
            .unwrap();
        let sql = "INSERT INTO pgshard_tickets.series VALUES ('users', gen_random_uuid(), 16, 1);
            INSERT INTO pgshard_tickets.claim VALUES ('users', 1, 'db1');
            INSERT INTO pgshard_tickets.ticket VALUES ('users', 1, 'db1');
            CREATE SEQUENCE pgshard_tickets.ticket_users AS bigint MINVALUE 0 START 0";
        client.batch_execute(sql).await.unwrap();
        let source = source(&cluster, &[0], 1);
        assert_eq!(source.next().await.unwrap(), 1);
        let said = tickets::status(&hosts(&cluster, &[0]))
            .await
            .remove(0)
            .names
            .unwrap();
        assert_eq!((said[0].last, said[0].max), (Some(1), None));
        made(
            &cluster,
            &[0],
            &Create {
                max: Some(20),
                ..request(&cluster, &[0])
            },
        )
        .await;
        assert_eq!(source.next().await.unwrap(), 17);
        assert!(matches!(
            source.next().await,
            Err(tickets::Error::UsedUp { .. })
        ));
    }

    /// db2 is lost for ever: its residue is given to no host, except one with an explicit start.
    async fn a_lost_host(version) {
        let cluster = TestCluster::start(version, 3);
        let odd_and_even = Create {
            stride: Some(2),
            ..request(&cluster, &[0, 1])
        };
        assert_eq!(
            residues(&made(&cluster, &[0, 1], &odd_and_even).await),
            [(1, Role::Created), (0, Role::Created)]
        );
        let mut before = source(&cluster, &[0, 1], 1).next_many(100).await.unwrap();
        before.extend(source(&cluster, &[1], 1).next_many(100).await.unwrap());
        cluster.server(1).stop(StopMode::Immediate).unwrap();

        let third = request(&cluster, &[2]);
        let still_in_config = create(&hosts(&cluster, &[0, 1, 2]), &third, Uuid::new_v4()).await;
        assert!(
            matches!(still_in_config, Err(tickets::Error::Connect { .. })),
            "every host must \
            answer"
        );
        let refused = create(&hosts(&cluster, &[0, 2]), &third, Uuid::new_v4())
            .await
            .unwrap_err();
        assert!(
            refused.to_string().contains(
                "db2 is not: add it, or name what is lost for ever with \
                --lost"
            ),
            "{refused}"
        );
        let without = Create {
            lost: [cluster.name(1)].into(),
            ..third.clone()
        };
        let refused = create(&hosts(&cluster, &[0, 2]), &without, Uuid::new_v4())
            .await
            .unwrap_err();
        assert!(
            refused.to_string().contains("all 2 residues are taken"),
            "{refused}"
        );
        let replace = Create {
            replace: Some(cluster.name(1)),
            ..third
        };
        let refused = create(&hosts(&cluster, &[0, 2]), &replace, Uuid::new_v4())
            .await
            .unwrap_err();
        assert!(refused.to_string().contains("--start"), "{refused}");

        let with_start = Create {
            start: Some(5000),
            ..replace
        };
        assert_eq!(
            residues(&made(&cluster, &[0, 2], &with_start).await),
            [(0, Role::Created)]
        );
        assert_eq!(
            residues(&made(&cluster, &[0, 2], &with_start).await),
            [(0, Role::Unchanged)]
        );
        let after = source(&cluster, &[2], 1).next_many(100).await.unwrap();
        assert!(
            after
                .iter()
                .all(|ticket| *ticket >= 5000 && ticket % 2 == 0)
        );
        assert!(after.iter().all(|ticket| !before.contains(ticket)));

        // It comes back nevertheless: together with its successor it is refused.
        cluster.server(1).start().unwrap();
        let refused = create(
            &hosts(&cluster, &[0, 1, 2]),
            &request(&cluster, &[1]),
            Uuid::new_v4(),
        )
        .await
        .unwrap_err();
        assert!(refused.to_string().contains("residue 0 is"), "{refused}");
        let beside = source(&cluster, &[1, 2], 1);
        let mut residues = BTreeSet::new();
        for _ in 0..4 {
            residues.insert(beside.next().await.unwrap() >= 5000);
        }
        assert_eq!(residues.len(), 1, "one of the two is not used");
    }

    /// db1's database is lost and created again, empty: it gives no ticket again, except from a
    /// start above those it gave.
    async fn a_host_that_was_built_anew(version) {
        let cluster = TestCluster::start(version, 3);
        let (all, three) = (hosts(&cluster, &[0, 1, 2]), request(&cluster, &[0, 1, 2]));
        made(&cluster, &[0, 1, 2], &three).await;
        let mut before = source(&cluster, &[0], 1).next_many(12).await.unwrap();
        before.extend(source(&cluster, &[1], 1).next_many(2).await.unwrap());
        cluster
            .app(0)
            .await
            .batch_execute("DROP SCHEMA pgshard_tickets CASCADE")
            .await
            .unwrap();
        for hosts_asked in [&three, &request(&cluster, &[0])] {
            let refused = create(&all, hosts_asked, Uuid::new_v4()).await.unwrap_err();
            assert!(
                refused.to_string().contains(
                    "db1 has lost its record of the tickets it \
                gave"
                ),
                "{refused}"
            );
        }
        let sql = "SELECT to_regnamespace('pgshard_tickets') IS NULL";
        assert!(
            cluster
                .app(0)
                .await
                .query_one(sql, &[])
                .await
                .unwrap()
                .get::<_, bool>(0),
            "nothing was written"
        );
        let with_start = Create {
            start: Some(1000),
            ..request(&cluster, &[0])
        };
        assert_eq!(
            residues(&made(&cluster, &[0, 1, 2], &with_start).await),
            [(1, Role::Created)]
        );
        let after = source(&cluster, &[0], 1).next_many(100).await.unwrap();
        assert!(
            after
                .iter()
                .all(|ticket| *ticket >= 1000 && !before.contains(ticket)),
            "{after:?}"
        );
    }

    /// A future is dropped while its block is on the way, and a source is dropped while it has a
    /// block: there are gaps, but no repeats.
    async fn a_block_that_is_dropped(version) {
        let cluster = TestCluster::start(version, 2);
        made(&cluster, &[0, 1], &request(&cluster, &[0, 1])).await;
        let mut all = Vec::new();
        let source_of_all = source(&cluster, &[0, 1], 10);
        for round in 0..300_u64 {
            let limit = Duration::from_micros(round * 7 % 900);
            if let Ok(ticket) = tokio::time::timeout(limit, source_of_all.next()).await {
                all.push(ticket.unwrap());
            }
            if let Ok(tickets) = tokio::time::timeout(limit, source_of_all.next_many(7)).await {
                all.extend(tickets.unwrap());
            }
            if round % 30 == 0 {
                let short_lived = source(&cluster, &[0, 1], 10);
                all.push(short_lived.next().await.unwrap());
                assert_eq!(short_lived.ahead(), 9);
            }
        }
        assert!(source_of_all.ahead() <= 20);
        all.extend(source_of_all.next_many(1000).await.unwrap());
        all_different(&all, &[1, 2]);
        assert!(matches!(
            source_of_all.next_many(100_001).await,
            Err(tickets::Error::BatchTooLarge { count: 100_001 })
        ));

        let nowhere = "postgres://app@127.0.0.1:1/app?connect_timeout=1";
        let nowhere = TicketHost {
            name: cluster.name(0),
            connect: ConnectOptions::parse(nowhere).unwrap(),
        };
        let error = Tickets::new(Options::new(users(), vec![nowhere]))
            .next()
            .await
            .unwrap_err();
        // With the operating system's message: two hosts may fail for two reasons.
        let said = error.to_string();
        assert!(
            said.contains(
                "host db1 is out of reach: cannot connect \
            to"
            ) && said.contains("refused"),
            "{said}"
        );
    }

    /// A host that accepts connections and never responds costs no caller a ticket: another is
    /// queried at the same time, and then it is left alone and tried in the background. Otherwise
    /// it would cost each call to it a minute.
    async fn a_host_that_says_nothing(version) {
        let cluster = TestCluster::start(version, 2);
        made(&cluster, &[0, 1], &request(&cluster, &[0, 1])).await;
        let proxy = Proxy::to(cluster.server(1).port()).await;
        let mut hosts = hosts(&cluster, &[0, 1]);
        let through = format!(
            "host=127.0.0.1 port={} user=app dbname=app \
            connect_timeout=60",
            proxy.port
        );
        hosts[1].connect = ConnectOptions::parse(&through).unwrap();
        let options = Options::new(users(), hosts)
            .block(1)
            .host_limit(Duration::from_secs(60))
            .rest(Duration::from_millis(200));
        let source = Tickets::new(options);
        let both = async || {
            let enough = async {
                let mut seen = BTreeSet::new();
                while seen.len() < 2 {
                    seen.insert(source.next().await.unwrap() % 16);
                }
            };
            tokio::time::timeout(Duration::from_secs(30), enough)
                .await
                .expect(
                    "both hosts give \
                tickets",
                );
        };
        both().await;
        proxy.fall_silent();
        let many = async {
            for _ in 0..40 {
                source.next().await.unwrap();
            }
            // Callers that wait for less time than it takes to see that a host hangs.
            let patience = Duration::from_millis(50);
            let mut given = 0;
            while given < 20 {
                given += u32::from(tokio::time::timeout(patience, source.next()).await.is_ok());
            }
        };
        tokio::time::timeout(Duration::from_secs(30), many)
            .await
            .expect(
                "the other host gives \
            tickets",
            );
        proxy.speak_again();
        both().await;
    }

    /// A database that went back in time: a source that saw it before reports that instead of
    /// giving its tickets again.
    async fn a_sequence_that_went_back(version) {
        let cluster = TestCluster::start(version, 1);
        made(&cluster, &[0], &request(&cluster, &[0])).await;
        let source = source(&cluster, &[0], 1);
        source.next_many(10).await.unwrap();
        cluster
            .app(0)
            .await
            .batch_execute(
                "SELECT setval('pgshard_tickets.ticket_users', \
            1)",
            )
            .await
            .unwrap();
        let error = source.next().await.unwrap_err();
        assert!(
            error.to_string().contains("went back, from 145 to 33"),
            "{error}"
        );
        made(
            &cluster,
            &[0],
            &Create {
                start: Some(1000),
                ..request(&cluster, &[0])
            },
        )
        .await;
        assert_eq!(source.next().await.unwrap(), 1009);

        // Runs of 8,192 unless another number is given: the users of one host are on every shard.
        let groups = TicketName::new("groups").unwrap();
        let request = Create {
            name: groups.clone(),
            run: None,
            ..request(&cluster, &[0])
        };
        made(&cluster, &[0], &request).await;
        let source = Tickets::new(Options::new(groups, hosts(&cluster, &[0])));
        let tickets = source.next_many(8193).await.unwrap();
        let shards: HashSet<i64> = tickets.iter().map(|ticket| ticket % 4096).collect();
        assert_eq!(
            (shards.len(), tickets[0], tickets[8191], tickets[8192]),
            (4096, 8192, 16_383, 139_264)
        );
    }

    /// Many processes lease at the same time: each has a number of its own. One that is stopped for
    /// longer than its lease is fenced by the milliseconds it was granted, and notices when it
    /// renews.
    async fn leases_are_distinct_and_fenced(version) {
        let cluster = TestCluster::start(version, 1);
        let store = WorkerLeases::new(connect(&cluster, 0), "test");
        let begun = now_ms();
        let at = |ms, length| term(now_ms() + ms, length);
        assert!(matches!(
            store.acquire(Uuid::new_v4(), at(0, 60_000)).await,
            Err(lease::Error::NotInstalled)
        ));
        let (one, two) = tokio::join!(
            store.install(Elsewhere::Nobody),
            store.install(Elsewhere::Nobody)
        );
        one.and(two).unwrap();

        let mut processes = tokio::task::JoinSet::new();
        for _ in 0..16 {
            let store = store.clone();
            processes
                .spawn(async move { store.acquire(Uuid::new_v4(), at(0, 60_000)).await.unwrap() });
        }
        let mut workers = BTreeSet::new();
        while let Some(grant) = processes.join_next().await {
            let grant: Grant = grant.unwrap();
            assert!(
                grant.floor_ms == 0 && grant.ceiling_ms >= begun + 60_000,
                "{grant:?}"
            );
            assert!(workers.insert(grant.worker));
        }
        assert_eq!(workers, (0..16).collect());
        let other = WorkerLeases::new(connect(&cluster, 0), "other");
        assert_eq!(
            other
                .acquire(Uuid::new_v4(), at(0, 60_000))
                .await
                .unwrap()
                .worker,
            0,
            "a space of its own"
        );

        // All numbers but one are taken.
        let fill =
            "INSERT INTO pgshard_workers.lease (space, worker, token, ceiling_ms, expires_at)
            SELECT 'test', n, gen_random_uuid(), 0, now() + interval '1 hour' FROM \
            generate_series(16, 1022) n";
        cluster.app(0).await.batch_execute(fill).await.unwrap();
        let last = store.acquire(Uuid::new_v4(), at(100, 3000)).await.unwrap();
        assert!(
            last.worker == 1023 && last.floor_ms == 0 && last.ceiling_ms >= begun + 3100,
            "{last:?}"
        );
        let none = store.acquire(Uuid::new_v4(), at(100, 3000)).await;
        assert!(matches!(none, Err(lease::Error::NoneFree { .. })));
        let renewed = store.renew(last, at(8000, 3000)).await.unwrap().unwrap();
        assert!(renewed.ceiling_ms >= begun + 11_000);
        // A clock that steps back lowers no ceiling.
        assert_eq!(
            store
                .renew(last, at(0, 3000))
                .await
                .unwrap()
                .unwrap()
                .ceiling_ms,
            renewed.ceiling_ms
        );

        // Its lease ends; it could renew it, but another holder has the number by now. A request
        // before the granted time is over gets none.
        let next = loop {
            match store.acquire(Uuid::new_v4(), at(8500, 60_000)).await {
                Ok(grant) => break grant,
                Err(error) => assert!(matches!(error, lease::Error::NoneFree { .. }), "{error}"),
            }
        };
        assert_eq!((next.worker, next.floor_ms), (1023, renewed.ceiling_ms + 1));
        assert_eq!(store.renew(last, at(8500, 3000)).await.unwrap(), None);

        // A number that is given back is available immediately, from the last used millisecond on;
        // if an operator releases it, what was granted stays reserved.
        store.release(next, next.floor_ms + 50).await.unwrap();
        let again = store
            .acquire(Uuid::new_v4(), at(9000, 60_000))
            .await
            .unwrap();
        assert_eq!((again.worker, again.floor_ms), (1023, next.floor_ms + 51));
        store.release(next, 0).await.unwrap();
        assert!(
            matches!(
                store.acquire(Uuid::new_v4(), at(9000, 300)).await,
                Err(lease::Error::NoneFree { .. })
            ),
            "it was another's"
        );
        assert_eq!(
            (
                store.take_back(1023).await.unwrap(),
                store.take_back(1023).await.unwrap()
            ),
            (Freed::Now, Freed::Before)
        );
        assert_eq!(store.renew(again, at(9000, 300)).await.unwrap(), None);
        let early = store.acquire(Uuid::new_v4(), at(9000, 300)).await;
        assert!(
            matches!(early, Err(lease::Error::NoneFree { .. })),
            "{early:?}: its last holder may go on for a minute"
        );
    }

    /// Generators with one epoch, and clocks that agree with the server's: others get an error that
    /// contains what to do.
    async fn epochs_and_clocks(version) {
        let cluster = TestCluster::start(version, 1);
        let store = WorkerLeases::new(connect(&cluster, 0), "test");
        store.install(Elsewhere::Nobody).await.unwrap();
        let grant = store
            .acquire(Uuid::new_v4(), term(now_ms(), 60_000))
            .await
            .unwrap();
        let other = Term {
            epoch: Epoch::from_unix_ms(1_600_000_000_000).unwrap(),
            ..term(now_ms(), 60_000)
        };
        let said = store
            .acquire(Uuid::new_v4(), other)
            .await
            .unwrap_err()
            .to_string();
        assert!(
            said.contains(
                "count from 1700000000000 \
            ms"
            ) && said.contains("from 1600000000000"),
            "{said}"
        );
        let elsewhere = WorkerLeases::new(connect(&cluster, 0), "elsewhere");
        elsewhere.acquire(Uuid::new_v4(), other).await.unwrap();

        for (off, word) in [(20_000_i64, "ahead of"), (-20_000, "behind")] {
            let wrong = term(now_ms().checked_add_signed(off).unwrap(), 60_000);
            let error = store.acquire(Uuid::new_v4(), wrong).await.unwrap_err();
            let right =
                matches!(error, lease::Error::ClockOff { by_ms } if by_ms.signum() == off.signum());
            assert!(right && error.to_string().contains(word), "{error}");
            let error = store.renew(grant, wrong).await.unwrap_err();
            assert!(matches!(error, lease::Error::ClockOff { .. }), "{error}");
        }
        for off in [8000_i64, -5000] {
            store
                .acquire(
                    Uuid::new_v4(),
                    term(now_ms().checked_add_signed(off).unwrap(), 1000),
                )
                .await
                .unwrap();
        }
        let sql = "SELECT count(*), max(ceiling_ms) FROM pgshard_workers.lease WHERE space = \
            'test'";
        let row = cluster.app(0).await.query_one(sql, &[]).await.unwrap();
        assert!(
            row.get::<_, i64>(0) == 3 && row.get::<_, i64>(1).unsigned_abs() < now_ms() + 70_000,
            "nothing is poisoned"
        );
    }

    /// The database of the leases falls silent: callers wait at the same time, not one after the
    /// other. Those with deadlines of their own use up neither numbers nor connections; and a
    /// process that was granted a number without getting the answer gets the same one.
    async fn one_renewal_for_all(version) {
        let cluster = TestCluster::start(version, 1);
        let proxy = Proxy::to(cluster.server(0).port()).await;
        let through = format!(
            "host=127.0.0.1 port={} user=app dbname=app \
            connect_timeout=30",
            proxy.port
        );
        let store = WorkerLeases::new(ConnectOptions::parse(&through).unwrap(), "test");
        store.install(Elsewhere::Nobody).await.unwrap();
        let mut options = snowflake::Options::new(Epoch::from_unix_ms(1_700_000_000_000).unwrap());
        (options.lease, options.margin) = (Duration::from_millis(600), Duration::from_millis(100));
        let generator = Snowflake::acquire(store, options, pgshard::idgen::SystemClock::shared())
            .await
            .unwrap();
        proxy.fall_silent();
        while generator.try_next().is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let mut callers = tokio::task::JoinSet::new();
        for number in 0..200_u64 {
            let generator = generator.clone();
            let patience = Duration::from_millis(50 + number % 50);
            callers.spawn(async move {
                tokio::time::timeout(patience, generator.next())
                    .await
                    .is_err()
            });
        }
        assert!(callers.join_all().await.into_iter().all(|late| late));
        proxy.speak_again();
        let speaks = async { while generator.next().await.is_err() {} };
        tokio::time::timeout(Duration::from_secs(60), speaks)
            .await
            .expect("IDs come again");
        let client = cluster.app(0).await;
        let count = async |sql: &str| client.query_one(sql, &[]).await.unwrap().get::<_, i64>(0);
        assert!(
            count("SELECT count(*) FROM pgshard_workers.lease").await <= 2,
            "numbers"
        );
        assert!(
            count(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgshard \
                workers'"
            )
            .await
                <= 2,
            "connections"
        );

        // Six callers wait for a database that does not answer: for one limit in all.
        proxy.fall_silent();
        while generator.try_next().is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let mut callers = tokio::task::JoinSet::new();
        for _ in 0..6 {
            let generator = generator.clone();
            callers.spawn(async move { generator.next().await.unwrap_err().to_string() });
        }
        let all = tokio::time::timeout(Duration::from_secs(45), callers.join_all())
            .await
            .expect("together");
        assert!(
            all.iter()
                .all(|said| said.contains("no worker number is leased")),
            "{all:?}"
        );
        proxy.speak_again();

        // A grant with a lost answer.
        let store = WorkerLeases::new(connect(&cluster, 0), "test");
        let token = Uuid::new_v4();
        let first = store.acquire(token, term(now_ms(), 60_000)).await.unwrap();
        let again = store.acquire(token, term(now_ms(), 60_000)).await.unwrap();
        assert_eq!(
            (again.worker, again.floor_ms),
            (first.worker, first.floor_ms)
        );
        assert!(again.ceiling_ms >= first.ceiling_ms);
    }

    /// The rights that docs/ids.md gives to an application's role are enough, and needed.
    async fn the_manuals_grants(version) {
        let cluster = TestCluster::start(version, 1);
        made(&cluster, &[0], &request(&cluster, &[0])).await;
        let owner = WorkerLeases::new(connect(&cluster, 0), "test");
        owner.install(Elsewhere::Nobody).await.unwrap();
        cluster
            .superuser(0)
            .await
            .batch_execute("CREATE ROLE web LOGIN")
            .await
            .unwrap();
        let web = format!(
            "host=127.0.0.1 port={} user=web dbname=app",
            cluster.server(0).port()
        );
        let web = ConnectOptions::parse(&web).unwrap();
        let host = TicketHost {
            name: cluster.name(0),
            connect: web.clone(),
        };
        let source = || Tickets::new(Options::new(users(), vec![host.clone()]));
        let leases = WorkerLeases::new(web, "test");
        let use_all = async || {
            let ticket = source().next().await.map_err(|error| error.to_string())?;
            let refused = |error: lease::Error| format!("{error:?}");
            let grant = leases
                .acquire(Uuid::new_v4(), term(now_ms(), 60_000))
                .await
                .map_err(refused)?;
            let renewed = leases
                .renew(grant, term(now_ms(), 60_000))
                .await
                .map_err(refused)?;
            leases.release(grant, now_ms()).await.map_err(refused)?;
            Ok::<_, String>((ticket, renewed.is_some()))
        };
        assert!(use_all().await.unwrap_err().contains("permission denied"));
        let page = include_str!("../../docs/ids.md");
        let grants: Vec<&str> = page
            .lines()
            .filter(|line| line.starts_with("GRANT "))
            .collect();
        assert_eq!(grants.len(), 5);
        for grant in grants {
            cluster.app(0).await.batch_execute(grant).await.unwrap();
        }
        assert_eq!(use_all().await, Ok((1, true)));
    }

    /// Processes start and end, each time with new generators, far more than there are numbers:
    /// none is refused, and no ID is given twice.
    async fn rolling_restarts_repeat_no_id(version) {
        let cluster = TestCluster::start(version, 1);
        let store = WorkerLeases::new(connect(&cluster, 0), "test");
        store.install(Elsewhere::Nobody).await.unwrap();
        // Twelve numbers are left of all.
        let fill =
            "INSERT INTO pgshard_workers.lease (space, worker, token, ceiling_ms, expires_at)
            SELECT 'test', n, gen_random_uuid(), 0, now() + interval '1 hour' FROM \
            generate_series(12, 1023) n";
        cluster.app(0).await.batch_execute(fill).await.unwrap();
        let options = snowflake::Options::new(Epoch::from_unix_ms(1_700_000_000_000).unwrap());
        let mut seen = HashSet::new();
        for round in 0..8 {
            let mut generators = tokio::task::JoinSet::new();
            for _ in 0..8 {
                let (store, options) = (store.clone(), options.clone());
                generators.spawn(async move { Snowflake::start(store, options).await.unwrap() });
            }
            for generator in generators.join_all().await {
                for id in generator.next_many(5000).await.unwrap() {
                    assert!(seen.insert(id), "{:?} comes twice", Fields::decode(id));
                }
                let clone = generator.clone();
                generator.release().await.unwrap();
                assert!(clone.try_next().is_ok(), "a clone is there");
                // The release is waited for, or left to a task.
                if round % 2 == 0 {
                    clone.release().await.unwrap()
                } else {
                    drop(clone)
                }
            }
            let held = "SELECT count(*) FROM pgshard_workers.lease WHERE worker < 12 AND \
                expires_at >= \
                    clock_timestamp()";
            let client = cluster.app(0).await;
            let given_back = async {
                while client.query_one(held, &[]).await.unwrap().get::<_, i64>(0) > 0 {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(20), given_back)
                .await
                .expect(
                    "all numbers \
                are given back",
                );
        }
        assert_eq!(seen.len(), 8 * 8 * 5000);
    }

    /// Generators as an application uses them: eight tasks on each, a lease that is lost halfway, a
    /// server that restarts; and everything that was given is different.
    async fn snowflakes_are_all_different(version) {
        let cluster = TestCluster::start(version, 1);
        let store = WorkerLeases::new(connect(&cluster, 0), "test");
        store.install(Elsewhere::Nobody).await.unwrap();
        let mut options = snowflake::Options::new(Epoch::from_unix_ms(1_700_000_000_000).unwrap());
        let (one, two) = tokio::join!(
            Snowflake::start(store.clone(), options.clone()),
            Snowflake::start(store.clone(), options.clone())
        );
        let generators = [one.unwrap(), two.unwrap()];
        assert_ne!(generators[0].worker(), generators[1].worker());

        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..8 {
            let generator = generators[number % 2].clone();
            tasks.spawn(async move {
                let mut ids = generator.next_many(20_000).await.unwrap();
                for _ in 0..5000 {
                    ids.push(generator.next().await.unwrap());
                }
                assert!(ids.is_sorted(), "each caller's IDs grow");
                ids
            });
        }
        let lost = generators[0].worker();
        cluster
            .app(0)
            .await
            .batch_execute(
                "UPDATE pgshard_workers.lease SET token = md5('')::uuid WHERE worker = \
                0",
            )
            .await
            .unwrap();
        for generator in &generators {
            generator.renew().await.unwrap();
        }
        let mut all = HashSet::new();
        while let Some(ids) = tasks.join_next().await {
            for id in ids.unwrap() {
                assert!(all.insert(id), "{:?} comes twice", Fields::decode(id));
            }
        }
        assert_eq!(all.len(), 8 * 25_000);
        let workers: BTreeSet<_> = generators
            .iter()
            .map(|generator| generator.worker().unwrap())
            .collect();
        assert_eq!(workers.len(), 2);
        assert!(
            workers.contains(&2),
            "whoever had number 0 ({lost:?} or the other) has another"
        );

        // Without the database IDs continue until the lease ends, and then stop with an error that
        // reports it.
        options.lease = Duration::from_millis(1500);
        options.margin = Duration::from_millis(500);
        let short = Snowflake::acquire(store, options, pgshard::idgen::SystemClock::shared())
            .await
            .unwrap();
        cluster.server(0).stop(StopMode::Fast).unwrap();
        let mut given = 0;
        let error = loop {
            match short.next().await {
                Ok(id) => assert!(all.insert(id)),
                Err(error) => break error,
            }
            given += 1;
        };
        assert!(
            given > 0 && error.to_string().contains("no worker number is leased"),
            "{given}: \
            {error}"
        );
        cluster.server(0).start().unwrap();
        assert!(all.insert(short.next().await.unwrap()));
    }

    /// The table of leases goes back in time, in every way that it can; former and present holders
    /// never have one number at the same time.
    async fn leases_that_went_back(version) {
        let cluster = TestCluster::start(version, 1);
        let store = WorkerLeases::new(connect(&cluster, 0), "test");
        let lease = Duration::from_millis(3000);
        // By this machine's clock, which is the server's too: floors count from that.
        let term = || term(now_ms(), lease.as_millis() as u64);
        let on_hold = async |why: &str| match store.acquire(Uuid::new_v4(), term()).await {
            Err(lease::Error::OnHold { left_ms }) => {
                assert!(left_ms <= 121_000, "{why}: {left_ms}")
            }
            other => panic!("{why}: {other:?}"),
        };
        assert_eq!(
            store.install(Elsewhere::Nobody).await.unwrap(),
            Installed::Now
        );
        assert_eq!(
            store.install(Elsewhere::Perhaps).await.unwrap(),
            Installed::Before
        );
        let client = cluster.app(0).await;
        let kept = store.acquire(Uuid::new_v4(), term()).await.unwrap();

        // Rows cannot be deleted.
        for sql in [
            "DELETE FROM pgshard_workers.lease",
            "TRUNCATE pgshard_workers.lease",
        ] {
            assert_eq!(
                client
                    .batch_execute(sql)
                    .await
                    .unwrap_err()
                    .code()
                    .unwrap()
                    .code(),
                "55000",
                "{sql}"
            );
        }

        // What a base backup contains: the files as they are now.
        drop(client);
        cluster.server(0).stop(StopMode::Fast).unwrap();
        let data = cluster.server(0).data_directory().to_path_buf();
        let backup = data.with_extension("backup");
        let copy = |from: &std::path::Path, to: &std::path::Path| {
            assert!(
                std::process::Command::new("cp")
                    .arg("-a")
                    .arg(from)
                    .arg(to)
                    .status()
                    .unwrap()
                    .success()
            );
        };
        copy(&data, &backup);
        cluster.server(0).start().unwrap();
        let after_backup = loop {
            match store.acquire(Uuid::new_v4(), term()).await {
                Ok(grant) => break grant,
                Err(lease::Error::OnHold { left_ms }) => {
                    tokio::time::sleep(Duration::from_millis(left_ms)).await
                }
                Err(error) => panic!("{error}"),
            }
        };
        assert_ne!(after_backup.worker, kept.worker);
        cluster.server(0).stop(StopMode::Immediate).unwrap();
        std::fs::remove_dir_all(&data).unwrap();
        copy(&backup, &data);
        cluster.server(0).start().unwrap();
        on_hold("the base backup was restored").await;
        let again = loop {
            match store.acquire(Uuid::new_v4(), term()).await {
                Ok(grant) => break grant,
                Err(lease::Error::OnHold { left_ms }) => {
                    tokio::time::sleep(Duration::from_millis(left_ms)).await
                }
                Err(error) => panic!("{error}"),
            }
        };
        assert!(
            again.floor_ms > after_backup.ceiling_ms,
            "{again:?} follows on {after_backup:?}"
        );

        // Another timeline or another system. The timeline of a promoted standby is simulated by
        // setting the recorded one back.
        let client = cluster.app(0).await;
        for (what, sql) in [
            (
                "a promotion",
                "UPDATE pgshard_workers.home SET timeline = '00000000'",
            ),
            (
                "rows that were copied to another \
                system",
                "UPDATE pgshard_workers.home SET system_id \
                = 1",
            ),
            ("an operator's word", "SELECT pgshard_workers.hold(2000)"),
        ] {
            let held = store.acquire(Uuid::new_v4(), term()).await.unwrap();
            client.batch_execute(sql).await.unwrap();
            // A lease that has not ended continues; one that has may have a successor.
            assert!(store.renew(held, term()).await.unwrap().is_some(), "{what}");
            on_hold(what).await;
            let end = "UPDATE pgshard_workers.lease SET expires_at = now() - interval '1 second' \
                WHERE token = $1";
            client.execute(end, &[&held.token]).await.unwrap();
            assert!(store.renew(held, term()).await.unwrap().is_none(), "{what}");
            client
                .batch_execute(
                    "UPDATE pgshard_workers.home SET hold_until = \
                now()",
                )
                .await
                .unwrap();
        }

        // A table is created again, with and without a process that may hold a number.
        client
            .batch_execute("DROP SCHEMA pgshard_workers CASCADE")
            .await
            .unwrap();
        assert_eq!(
            store.install(Elsewhere::Perhaps).await.unwrap(),
            Installed::Now
        );
        on_hold("a table that was made anew").await;

        // A table without a function that this program calls is of an older version.
        store.install(Elsewhere::Nobody).await.unwrap();
        client
            .batch_execute(
                "DROP FUNCTION pgshard_workers.acquire(text, uuid, bigint, bigint, bigint, bigint)",
            )
            .await
            .unwrap();
        let outdated = store.acquire(Uuid::new_v4(), term()).await.unwrap_err();
        assert!(
            matches!(outdated, lease::Error::Outdated)
                && outdated.to_string().contains("workers install"),
            "{outdated}"
        );
    }

    /// Forty generators start at the same time with `repeatable read` as the default isolation.
    async fn leases_under_another_isolation(version) {
        let cluster = TestCluster::start(version, 1);
        let store = WorkerLeases::new(connect(&cluster, 0), "test");
        store.install(Elsewhere::Nobody).await.unwrap();
        cluster
            .superuser(0)
            .await
            .batch_execute("ALTER ROLE app SET default_transaction_isolation = 'repeatable read'")
            .await
            .unwrap();
        let mut generators = tokio::task::JoinSet::new();
        for _ in 0..40 {
            let store = store.clone();
            let options = snowflake::Options::new(Epoch::from_unix_ms(1_700_000_000_000).unwrap());
            generators.spawn(async move {
                Snowflake::start(store, options)
                    .await
                    .unwrap()
                    .worker()
                    .unwrap()
            });
        }
        let workers: BTreeSet<u16> = generators.join_all().await.into_iter().collect();
        assert_eq!(workers.len(), 40);
    }
}
