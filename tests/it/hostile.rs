//! A host that lies: each answer of a real server, one at a time, is falsified for a command, a
//! mover or a router.
//!
//! Whatever it returns, the client ends soon, with an error that names the host or with the
//! requested result, without a panic and in little memory; what is known of other hosts is
//! reported; and nothing is lost that an honest server has. A few seeds are tried here;
//! `PGSHARD_HOSTILE_SEEDS=1000-1200` tries those.

mod commands;
mod library;
mod moves;
mod network;
mod words;

use std::ops::Range;
use std::time::{Duration, Instant};

use fastrand::Rng;

use crate::support::liar::{Kind, Liar, Lie};
use crate::support::{Ran, World, lines};

/// Far more than a command takes that waits for a host in vain, on a machine that is busy.
const ENDS_WITHIN: Duration = Duration::from_secs(90);

/// Apart from what a process reserves for its threads, a command needs little. A length that is
/// believed is a gigabyte.
const MEMORY_KILOBYTES: u32 = 3 << 20;

/// Seeds to try: those of the environment, or these.
fn seeds(few: Range<u64>) -> Range<u64> {
    let Ok(asked) = std::env::var("PGSHARD_HOSTILE_SEEDS") else {
        return few;
    };
    let (from, to) = asked
        .split_once('-')
        .expect("PGSHARD_HOSTILE_SEEDS is like 1000-1200");
    from.parse().expect("a number")..to.parse().expect("a number")
}

/// A lie about one of so many answers.
fn lie(seed: u64, answers: u64) -> Lie {
    let mut rng = Rng::with_seed(seed);
    let kind = Kind::ALL[rng.usize(..Kind::ALL.len())];
    Lie {
        at: rng.u64(..answers.max(1)),
        kind,
        seed,
    }
}

/// A cluster of which one host, db2, can lie.
struct Enemy {
    world: World,
    liar: Liar,
}

impl Enemy {
    /// Two hosts with two shards each.
    async fn new(version: u32) -> Enemy {
        Enemy::of(World::new(&[version, version], 4).await).await
    }

    async fn of(world: World) -> Enemy {
        let port = world.servers.server(1).port();
        let liar = Liar::before(port).await;
        let config = std::fs::read_to_string(&world.config.path).unwrap();
        world.write("pgshard.toml", &through(&config, port, liar.port));
        Enemy { world, liar }
    }

    /// Runs a command, in little memory. Panics, with what the servers do, if it does not end.
    async fn run(&self, args: &[&str]) -> Ran {
        let command = self.world.command(args, &[]);
        let command = command.as_std();
        let mut limited = tokio::process::Command::new("sh");
        limited.args([
            "-c",
            &format!("ulimit -v {MEMORY_KILOBYTES}; exec \"$0\" \"$@\""),
        ]);
        limited.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => limited.env(name, value),
                None => limited.env_remove(name),
            };
        }
        limited
            .stdin(std::process::Stdio::null())
            .kill_on_drop(true);
        limited
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped());
        if let Ok(log) = std::env::var("PGSHARD_HOSTILE_LOG") {
            // The log of a command that hangs.
            limited
                .env("PGSHARD_LOG", "debug")
                .stderr(std::fs::File::create(log).expect("the log can be written"));
        }
        let child = limited.spawn().expect("there is a shell");
        tokio::select! {
            ran = Ran::of(child) => ran,
            () = tokio::time::sleep(ENDS_WITHIN) => {
                panic!("{args:?} does not end: {:?}\n{}", self.liar.told(), self.at_work().await)
            }
        }
    }

    /// What the sessions of pgshard wait for.
    async fn at_work(&self) -> String {
        let sql = "SELECT concat_ws(' | ', application_name, backend_type, state, wait_event, \
            left(query, 120))
            FROM pg_stat_activity WHERE application_name LIKE 'pgshard%' OR backend_type = \
            'walsender'";
        let mut text = String::new();
        for host in 0..2 {
            text += &format!(
                "db{}\n{}",
                host + 1,
                lines(&self.world.servers.superuser(host).await, sql).await
            );
        }
        text
    }

    /// How many answers of db2 a command requests, without any lie.
    async fn answers(&self, args: &[&str]) -> u64 {
        self.liar.tell(None);
        let ran = self.run(args).await;
        assert!(
            ran.code() != 101 && ran.code() >= 0,
            "{}{}",
            ran.stdout,
            ran.stderr
        );
        self.liar.asked()
    }

    /// Runs a command while db2 lies, and looks how it ended.
    async fn lied_to(&self, args: &[&str], lie: Lie) -> Ran {
        let story = format!("{args:?}: {lie}");
        eprintln!("{story}");
        self.liar.tell(Some(lie));
        let begun = Instant::now();
        let ran = self.run(args).await;
        let elapsed = begun.elapsed();
        let told = self.liar.told();
        let all = format!(
            "{story}\n{told:?}\n{elapsed:?}, code {}\n{}\n{}",
            ran.code(),
            ran.stdout,
            ran.stderr
        );
        eprintln!("  {told:?}: {} in {elapsed:?}", ran.code());
        assert!([0, 1, 2, 4, 5, 6, 7, 8].contains(&ran.code()), "{all}");
        assert!(!ran.stderr.contains("panicked"), "{all}");
        assert!(elapsed < ENDS_WITHIN, "{all}");
        let says = format!("{}{}", ran.stdout, ran.stderr);
        let named = says.contains("db2") || says.contains(&self.liar.port.to_string());
        // Nothing else is wrong, so where something failed it is for the lie.
        let is_well = told.is_none() || ran.code() == 0 || says.contains("schema_missing");
        assert!(is_well || named, "the host is not named: {all}");
        self.liar.tell(None);
        ran
    }
}

/// A config by which one server is reached through another port, and silence is noticed soon.
fn through(config: &str, port: u16, other: u16) -> String {
    let keys = "?sslmode=disable&connect_timeout=3&keepalives_idle=2&keepalives_interval=1";
    let (before, after) = (format!(":{port}/app\""), format!(":{other}/app{keys}\""));
    assert!(config.contains(&before), "{config}");
    config.replace(&before, &after)
}
