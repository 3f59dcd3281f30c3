//! Several movers at the same time.

use futures_util::future::join_all;

use crate::support::{Ran, World, Writers, go_on, other, stopped};

on_each_version! {
    /// Both have planned, both claim: one gets the shard, the other is refused and has changed
    /// nothing.
    async fn one_shard_one_mover(version) {
        let world = World::new(&[version, other(version)], 8).await;
        let writers = Writers::start(&world, 2).await;
        for shard in ["0", "1", "2"] {
            let args = ["move", shard, "--to", "db2", "--yes"];
            let stop = [("PGSHARD_FAILPOINT", "before claim=stop")];
            let rivals = [
                world.command(&args, &stop).spawn().unwrap(),
                world.command(&args, &stop).spawn().unwrap(),
            ];
            let pids = join_all(rivals.iter().map(stopped)).await;
            pids.into_iter().for_each(go_on);
            let mut codes: Vec<i32> = join_all(rivals.into_iter().map(Ran::of))
                .await
                .iter()
                .map(Ran::code)
                .collect();
            codes.sort_unstable();
            assert_eq!(codes, [0, 4], "shard {shard}");
        }
        // One comes when all is over, with an old plan.
        let args = ["move", "3", "--to", "db2", "--yes"];
        let late = world
            .command(&args, &[("PGSHARD_FAILPOINT", "before claim=stop")])
            .spawn()
            .unwrap();
        let pid = stopped(&late).await;
        world.run(&args).await.ended(0);
        go_on(pid);
        let late = Ran::of(late).await;
        assert!(
            late.ended(4).stderr.contains(
                "claimed first, and has ended \
            meanwhile"
            ),
            "{}",
            late.stderr
        );
        // One comes while another is at work: its error contains who that is, and how to stop it.
        let args = ["move", "4", "--to", "db1", "--yes"];
        let late = world
            .command(&args, &[("PGSHARD_FAILPOINT", "before claim=stop")])
            .spawn()
            .unwrap();
        let pid = stopped(&late).await;
        let first = world
            .command(
                &args,
                &[
                    ("PGSHARD_FAILPOINT", "after claim=stop"),
                    ("PGSHARD_LEASE_MS", "60000"),
                ],
            )
            .spawn()
            .unwrap();
        let first_pid = stopped(&first).await;
        go_on(pid);
        let late = Ran::of(late).await;
        let worker = format!("pid {}", first.id().unwrap());
        let told = late.stderr.contains(&worker)
            && late.stderr.contains(" since ")
            && late.stderr.contains("`pgshard moves stop ");
        assert!(late.code() == 4 && told, "{} {}", late.code(), late.stderr);
        go_on(first_pid);
        Ran::of(first).await.ended(0);
        let notes = writers.stop().await;
        world.audit(notes.flawless()).await;
    }

    /// Two drop the same old copies: each of them finds, in the end, that they are dropped.
    async fn two_commands_complete_a_move_once(version) {
        let world = World::new(&[version, other(version)], 12).await;
        let id = world
            .run(&["move", "0-5", "--to", "db2", "--mode", "online", "--yes"])
            .await
            .ended(0)
            .id();
        let complete = || {
            world
                .command(&["moves", "complete", &id, "--yes"], &[])
                .spawn()
                .unwrap()
        };
        for ran in join_all([complete(), complete(), complete()].map(Ran::of)).await {
            ran.ended(0);
        }
        world.audit_places().await;
    }

    /// Movers of different shards publish into one file at the same time: none overwrites another's
    /// result.
    async fn different_shards_one_file(version) {
        let world = World::new(&[version, other(version)], 16).await;
        let writers = Writers::start(&world, 2).await;
        let moves = [
            ("0-1", "db2"),
            ("2", "db2"),
            ("8-9", "db1"),
            ("10", "db1"),
            ("3,11", "db2"),
        ];
        let runs = moves.map(|(shards, to)| {
            world
                .command(&["move", shards, "--to", to, "--yes"], &[])
                .spawn()
                .unwrap()
        });
        for ran in join_all(runs.into_iter().map(Ran::of)).await {
            ran.ended(0);
        }
        let notes = writers.stop().await;
        world.audit(notes.flawless()).await;
        let on_db2: Vec<u16> = (0..16).filter(|shard| world.host_of(*shard) == 1).collect();
        assert_eq!(on_db2, [0, 1, 2, 3, 11, 12, 13, 14, 15]);
    }

    /// Two commands resume the same move: the work is done once, and the other reports who does it.
    async fn two_commands_resume_a_move_once(version) {
        let world = World::new(&[version, other(version)], 4).await;
        let writers = Writers::start(&world, 2).await;
        for (shard, point) in [("0", "after rows=kill"), ("1", "after decide=kill")] {
            let id = world
                .run_until(&["move", shard, "--to", "db2", "--yes"], point)
                .await
                .ended(-9)
                .id();
            let resume = || {
                world
                    .command(&["moves", "resume", &id], &[])
                    .spawn()
                    .unwrap()
            };
            let codes: Vec<i32> = join_all([resume(), resume()].map(Ran::of))
                .await
                .iter()
                .map(Ran::code)
                .collect();
            assert!(
                codes.contains(&0) && codes.iter().all(|code| [0, 4].contains(code)),
                "{codes:?}"
            );
        }
        let notes = writers.stop().await;
        world.audit(notes.flawless()).await;
    }
}
