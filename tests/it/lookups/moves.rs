//! Look-ups move with their shards.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pgshard::router::Error;

use super::{INSERT, both, register, rows, world};

on_each_version! {
    /// Callers register while shards move, online and blocking.
    async fn values_stay_unique_while_shards_move(version) {
        let world = world(&[version, version], 8).await;
        let router = world.router().await;
        let stop = Arc::new(AtomicBool::new(false));
        let callers: Vec<_> = (0..4_i64)
            .map(|caller| {
                let (router, stop) = (router.clone(), stop.clone());
                tokio::spawn(async move {
                    let mut written = Vec::new();
                    let mut id = caller;
                    while !stop.load(Ordering::Relaxed) {
                        id += 4;
                        let email = format!("{}@example.com", fastrand::u32(..400));
                        match register(&router, id, &email).await {
                            Ok(_) => written.push((id, email)),
                            Err(Error::Taken { .. } | Error::Busy { .. }) => {}
                            Err(other) => panic!("{other}"),
                        }
                    }
                    written
                })
            })
            .collect();
        let mover = world.mover();
        for request in [
            world.online("0-3", "db2"),
            world.request("4-7", "db1"),
        ] {
            let plan = mover.plan(&request).await.unwrap();
            let report = mover.run(&plan).await;
            assert!(report.failed.is_empty() && report.done.len() == 4, "{report:?}");
        }
        stop.store(true, Ordering::Relaxed);
        let mut written = Vec::new();
        for caller in callers {
            written.extend(caller.await.unwrap());
        }
        written.sort();
        assert_eq!(rows(&world).await, written);
        let mut emails: Vec<_> = written.iter().map(|(_, email)| email).collect();
        emails.sort();
        emails.dedup();
        assert_eq!(emails.len(), written.len());
        assert!(written.len() > 50, "{}", written.len());
        // The trigger has moved, too.
        let plain = router.by_key(0).execute(INSERT, &both(&8_000_000, &"new")).await.unwrap_err();
        assert_eq!(plain.code().unwrap().code(), "SH003", "{plain}");
    }
}
