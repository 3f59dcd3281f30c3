//! Commands that read, and bootstrap.

use super::*;

/// The commands that run on an intact cluster.
const COMMANDS: [&[&str]; 10] = [
    &["check"],
    &["check", "--ddl"],
    &["check", "--rows"],
    &["bootstrap"],
    &["migrate", "status"],
    &["migrate", "up"],
    &["map", "rebuild", "--yes"],
    &["moves", "list"],
    &["host", "list"],
    &["move", "0", "--to", "db2", "--plan"],
];

on_each_version! {
    /// Each of them, with one answer that is a lie: it ends, and has changed nothing.
    async fn commands_end_after_a_false_answer(version) {
        let enemy = Enemy::new(version).await;
        let mut answers = Vec::new();
        for args in COMMANDS {
            answers.push(enemy.answers(args).await);
        }
        eprintln!("{answers:?}");
        let before = enemy.world.everything().await;
        for seed in seeds(u64::from(version)..u64::from(version) + 12) {
            let at = seed as usize % COMMANDS.len();
            enemy.lied_to(COMMANDS[at], lie(seed, answers[at])).await;
            assert_eq!(
                enemy.world.everything().await,
                before,
                "{:?} changed something",
                COMMANDS[at]
            );
        }
        enemy.run(&["check"]).await.ended(0);
    }

    /// What `check` finds at another host is reported next to what db2 returns.
    async fn the_other_hosts_are_told_of(version) {
        let enemy = Enemy::new(version).await;
        let answers = enemy.answers(&["check"]).await;
        enemy
            .world
            .servers
            .app(0)
            .await
            .batch_execute(
                "DROP SCHEMA shard_0001 \
            CASCADE",
            )
            .await
            .unwrap();
        for (at, kind) in [
            Kind::Null,
            Kind::EmptyError,
            Kind::Announced(u32::MAX),
            Kind::Cut,
        ]
        .into_iter()
        .enumerate()
        {
            let lie = Lie {
                at: answers * at as u64 / 4,
                kind,
                seed: at as u64,
            };
            let ran = enemy.lied_to(&["check"], lie).await;
            let findings = ran.last()["findings"].as_array().unwrap().clone();
            let told = findings
                .iter()
                .any(|found| found["code"] == "schema_missing" && found["host"] == "db1");
            assert!(told, "{findings:?}");
        }
    }
}
