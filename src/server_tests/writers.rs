//! Writers that change whatever is in some tables, at random.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::task::JoinHandle;

use super::pair::Pair;

/// A table that writers know how to change, with a way to make its key from a number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    /// Its name in SQL.
    pub(crate) table: &'static str,
    /// Key columns, and an expression of `$n` for each.
    pub(crate) key: &'static [(&'static str, &'static str)],
}

impl Target {
    fn list(&self, number: i64, between: &str, one: impl Fn(&str, &str) -> String) -> String {
        let value = |expression: &str| expression.replace("$n", &format!("({number})"));
        self.key
            .iter()
            .map(|(name, expression)| one(name, &value(expression)))
            .collect::<Vec<_>>()
            .join(between)
    }

    /// Every table has columns `n` (integer) and `long` (text, large and not compressed).
    fn statement(&self, random: &mut fastrand::Rng, wide: i64) -> String {
        let table = self.table;
        let number = random.i64(-wide..wide);
        let is = self.list(number, " AND ", |name, value| format!("{name} = {value}"));
        match random.u32(0..100) {
            0..35 => {
                let names = self.list(number, ", ", |name, _| name.to_owned());
                let values = self.list(number, ", ", |_, value| value.to_owned());
                let long = random.u32(0..3000);
                format!(
                    "INSERT INTO {table} ({names}, n, long) VALUES ({values}, 1, repeat('x', \
                        {long})) \
                     ON CONFLICT DO NOTHING"
                )
            }
            35..60 => format!("UPDATE {table} SET n = n + 1 WHERE {is}"),
            60..65 => format!(
                "UPDATE {table} SET long = repeat('y', {}) WHERE {is}",
                random.u32(0..4000)
            ),
            65..85 => {
                let other = random.i64(-wide..wide);
                let set = self.list(other, ", ", |name, value| format!("{name} = {value}"));
                format!("UPDATE {table} SET {set}, n = n + 1 WHERE {is}")
            }
            _ => format!("DELETE FROM {table} WHERE {is}"),
        }
    }
}

/// Writers at work. They run until they are stopped.
pub(crate) struct Writers {
    stop: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<u64>>,
}

impl Writers {
    /// Starts this many. Their transactions have one to five statements, some with savepoints and
    /// rollbacks, and sometimes a TRUNCATE of one of `truncated`.
    pub(crate) async fn start(
        pair: &Pair,
        count: u64,
        seed: u64,
        wide: i64,
        targets: Vec<Target>,
        truncated: Vec<&'static str>,
    ) -> Writers {
        let stop = Arc::new(AtomicBool::new(false));
        let mut tasks = Vec::new();
        for writer in 0..count {
            let client = pair.app(0).await;
            let (stop, targets, truncated) =
                (Arc::clone(&stop), targets.clone(), truncated.clone());
            let mut random = fastrand::Rng::with_seed(seed.wrapping_add(writer));
            tasks.push(tokio::spawn(async move {
                let mut committed = 0;
                while !stop.load(Ordering::Relaxed) {
                    let mut sql = String::from("BEGIN;");
                    for _ in 0..random.u32(1..6) {
                        let statement =
                            targets[random.usize(..targets.len())].statement(&mut random, wide);
                        match random.u32(0..10) {
                            0 => sql.push_str(&format!("SAVEPOINT s; {statement}; ROLLBACK TO s;")),
                            1 => sql.push_str(&format!("SAVEPOINT s; {statement}; RELEASE s;")),
                            _ => sql.push_str(&format!("{statement};")),
                        }
                    }
                    if !truncated.is_empty() && random.u32(0..60) == 0 {
                        sql.push_str(&format!(
                            "TRUNCATE {};",
                            truncated[random.usize(..truncated.len())]
                        ));
                    }
                    sql.push_str(if random.u32(0..8) == 0 {
                        "ROLLBACK"
                    } else {
                        "COMMIT"
                    });
                    // The key exists, or there was a deadlock: the transaction is rolled back,
                    // which is fine.
                    match client.batch_execute(&sql).await {
                        Ok(()) => committed += 1,
                        Err(_) => client.batch_execute("ROLLBACK").await.unwrap(),
                    }
                }
                committed
            }));
        }
        Writers { stop, tasks }
    }

    /// Returns how many transactions they made.
    pub(crate) async fn stop(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        let mut committed = 0;
        for task in self.tasks {
            committed += task.await.unwrap();
        }
        committed
    }
}
