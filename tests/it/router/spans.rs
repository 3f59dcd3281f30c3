//! What a call leaves for observers: a span with its outcome, and a count, however it ends.

use std::collections::BTreeMap;
use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use metrics_util::debugging::DebuggingRecorder;
use pgshard::Router;
use pgshard::router::{Error, Options};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::{Layer, Registry, registry::LookupSpan};

use super::by_hand::{Shards, shard};
use super::metrics::Recorded;
use super::{COUNT, INSERT};

/// The spans that have ended: name, parent's name, fields.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<Ended>>>);

type Ended = (
    &'static str,
    Option<&'static str>,
    BTreeMap<&'static str, String>,
);

#[derive(Default)]
struct Fields(BTreeMap<&'static str, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let mut text = String::new();
        write!(text, "{value:?}").unwrap();
        self.0
            .insert(field.name(), text.trim_matches('"').to_owned());
    }
}

impl<S: tracing::Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Spans {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        context.span(id).unwrap().extensions_mut().insert(fields);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        values.record(
            context
                .span(id)
                .unwrap()
                .extensions_mut()
                .get_mut::<Fields>()
                .unwrap(),
        );
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let span = context.span(&id).unwrap();
        if span.name().starts_with("pgshard.") {
            let fields = span.extensions_mut().remove::<Fields>().unwrap();
            let parent = span.parent().map(|parent| parent.name());
            self.0.lock().unwrap().push((span.name(), parent, fields.0));
        }
    }
}

impl Spans {
    /// The spans since the last time.
    fn take(&self) -> Vec<Ended> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }

    /// The only one.
    #[track_caller]
    fn one(&self, name: &str) -> BTreeMap<&'static str, String> {
        let spans: Vec<Ended> = self
            .take()
            .into_iter()
            .filter(|(found, ..)| *found == name)
            .collect();
        assert_eq!(spans.len(), 1, "{spans:?}");
        spans.into_iter().next().unwrap().2
    }
}

/// Calls that end in every way, each with its span.
async fn calls(options: Options, spans: &Spans) {
    let router = Router::new(options);
    let shard = router.by_key(1);
    let fields = |fields: BTreeMap<&'static str, String>, names: &[&str]| {
        names
            .iter()
            .map(|name| fields.get(name).cloned().unwrap_or_default())
            .collect::<Vec<_>>()
    };
    let all = [
        "shard",
        "host",
        "outcome",
        "retries",
        "db.system.name",
        "db.response.status_code",
        "error.type",
    ];

    shard.execute(INSERT, &[&1_i64, &"x"]).await.unwrap();
    assert_eq!(
        fields(spans.one("pgshard.statement"), &all),
        ["1", "db1", "ok", "0", "postgresql", "", ""]
    );
    shard.execute(INSERT, &[&1_i64, &"x"]).await.unwrap_err();
    let constraint = [
        "1",
        "db1",
        "constraint",
        "0",
        "postgresql",
        "23505",
        "23505",
    ];
    assert_eq!(fields(spans.one("pgshard.statement"), &all), constraint);
    let in_transaction = shard.transaction(async |tx| tx.execute(INSERT, &[&1_i64, &"x"]).await);
    in_transaction.await.unwrap_err();
    assert_eq!(fields(spans.one("pgshard.transaction"), &all), constraint);
    let own = shard
        .transaction(async |_| Err::<(), Error>(Error::TransactionEnded { shard: shard.id() }));
    own.await.unwrap_err();
    assert_eq!(
        fields(spans.one("pgshard.transaction"), &all)[2],
        "rolled_back"
    );
    shard
        .query("SELECT * FROM {shard}.nothing", &[])
        .await
        .unwrap_err();
    assert_eq!(
        fields(spans.one("pgshard.statement"), &all)[2..6],
        ["application", "0", "postgresql", "42P01"]
    );

    shard
        .within(Duration::from_millis(200))
        .query("SELECT pg_sleep(60)", &[])
        .await
        .unwrap_err();
    let late = fields(
        spans.one("pgshard.statement"),
        &["outcome", "error.type", "otel.status_code"],
    );
    assert_eq!(late, ["timeout", "timeout", "ERROR"]);
    let dropped = shard.query("SELECT pg_sleep(60)", &[]);
    tokio::time::timeout(Duration::from_millis(200), dropped)
        .await
        .unwrap_err();
    assert_eq!(
        fields(spans.one("pgshard.statement"), &["shard", "outcome"]),
        ["1", "dropped"]
    );
    router.by_key(2).query(COUNT, &[]).await.unwrap_err();
    assert_eq!(
        fields(spans.one("pgshard.statement"), &["host", "outcome"]),
        ["db2", "cluster"]
    );

    let results: Vec<_> = router.all_shards().query(COUNT, &[]).collect().await;
    assert_eq!(
        results.iter().filter(|(_, result)| result.is_ok()).count(),
        2
    );
    // The tasks end a little later than their answers arrive, in any order; two pipelines may share
    // the two.
    let mut ended: Vec<Ended> = Vec::new();
    let statements = |ended: &[Ended]| -> u64 {
        let pipelines = ended.iter().filter(|span| span.0 == "pgshard.pipeline");
        pipelines
            .map(|span| span.2["statements"].parse::<u64>().unwrap())
            .sum()
    };
    while statements(&ended) < 2 || !ended.iter().any(|(name, ..)| *name == "pgshard.fanout") {
        tokio::task::yield_now().await;
        ended.extend(spans.take());
    }
    assert_eq!(statements(&ended), 2);
    let pipeline = ended
        .iter()
        .find(|(name, ..)| *name == "pgshard.pipeline")
        .unwrap();
    assert_eq!(
        (pipeline.1, &*pipeline.2["host"]),
        (Some("pgshard.fanout"), "db1")
    );
    let fanout = ended
        .iter()
        .find(|(name, ..)| *name == "pgshard.fanout")
        .unwrap();
    assert_eq!((&*fanout.2["shards"], &*fanout.2["failed"]), ("4", "2"));
}

on_each_version! {
    /// Each call has one span, with its outcome, in whichever way it ended.
    async fn each_call_has_one(version) {
        let shards = Shards::start(version, 4).await;
        shards
            .cluster
            .server(1)
            .stop(pgshard::dev::StopMode::Fast)
            .unwrap();
        let options = shards.options();
        let spans = Spans::default();
        // A runtime on one thread that records its spans.
        let playing = tokio::task::spawn_blocking(move || {
            // With only one subscriber in the process, the thread that reaches the span first
            // decides whether it is enabled; that may be another test's thread, which wants none. A
            // second subscriber prevents this.
            let _second = tracing::Dispatch::new(Registry::default());
            let subscriber = Registry::default().with(spans.clone());
            let _here = tracing::subscriber::set_default(subscriber);
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(calls(options, &spans));
        });
        playing.await.unwrap();
    }

    /// Calls that are not awaited, and those that time out, are counted as such.
    async fn none_is_forgotten(version) {
        let shards = Shards::start(version, 4).await;
        let recorder = DebuggingRecorder::new();
        let recorded = Recorded::new(&recorder);
        let _here = metrics::set_default_local_recorder(&recorder);
        let router = Router::new(shards.options());
        for number in 0..4 {
            router
                .shard(shard(number))
                .unwrap()
                .query(COUNT, &[])
                .await
                .unwrap();
        }
        recorded.since();
        let requests = || {
            let counted = recorded
                .since()
                .into_iter()
                .filter(|(name, _)| name.starts_with("requests_total"));
            counted
                .map(|(name, count)| (name.trim_start_matches("requests_total ").to_owned(), count))
                .collect::<Vec<_>>()
        };
        let slow = router.by_key(1).query("SELECT pg_sleep(60)", &[]);
        tokio::time::timeout(Duration::from_millis(100), slow)
            .await
            .unwrap_err();
        assert_eq!(requests(), [("db1 dropped".to_owned(), 1)]);
        let slow = router
            .by_key(1)
            .transaction(async |tx| tx.query("SELECT pg_sleep(60)", &[]).await);
        tokio::time::timeout(Duration::from_millis(100), slow)
            .await
            .unwrap_err();
        assert_eq!(requests(), [("db1 dropped".to_owned(), 1)]);
        router
            .by_key(1)
            .within(Duration::from_millis(100))
            .query("SELECT pg_sleep(60)", &[])
            .await
            .unwrap_err();
        assert_eq!(requests(), [("db1 timeout".to_owned(), 1)]);
        // On each host one shard does not answer; the call does not wait for the rest.
        let sleeps = "SELECT CASE WHEN '{shard}' ~ '_000[13]' THEN pg_sleep(60)::text END";
        let results = router
            .all_shards()
            .deadline(Duration::from_secs(2))
            .query(sleeps, &[])
            .collect::<Vec<_>>()
            .await;
        assert_eq!(
            results.iter().filter(|(_, result)| result.is_ok()).count(),
            2
        );
        let one = |name: &str| (name.to_owned(), 1);
        assert_eq!(
            requests(),
            [
                one("db1 ok"),
                one("db1 timeout"),
                one("db2 ok"),
                one("db2 timeout")
            ]
        );
        // Waits until this many are stuck on each host.
        let sleeping = async |wanted: i64| {
            let sql = "SELECT count(*) FROM pg_stat_activity
                WHERE state = 'active' AND query LIKE '%pg_sleep(60)%' AND pid <> pg_backend_pid()";
            for client in &shards.db {
                while client.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) != wanted {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        };
        sleeping(0).await;
        let mut results = router.all_shards().query(sleeps, &[]);
        let both = [
            results.next().await.unwrap().0,
            results.next().await.unwrap().0,
        ];
        assert!(both.iter().all(|number| number.get() % 2 == 0), "{both:?}");
        sleeping(1).await;
        drop(results);
        assert_eq!(
            requests(),
            [
                one("db1 dropped"),
                one("db1 ok"),
                one("db2 dropped"),
                one("db2 ok")
            ]
        );
    }
}
