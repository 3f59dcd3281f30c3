//! Two transactions, step by step: a row is added while the key of the row that it refers to
//! changes. Before and after the unique index is there, which changes the locks of an UPDATE.

use std::time::Duration;

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::{database, differ, report};
use crate::support::{TestCluster, connect};

/// The key of a like.
async fn key_of(base: &Client, like: i64) -> i64 {
    let sql = "SELECT user_id FROM likes WHERE id = $1";
    base.query_one(sql, &[&like]).await.unwrap().get(0)
}

/// Whether a statement waits, and then its end.
async fn waits(
    statement: impl Future<Output = Result<(), tokio_postgres::Error>>,
    until: &Client,
) -> Result<(), tokio_postgres::Error> {
    let mut statement = std::pin::pin!(statement);
    let early = tokio::time::timeout(Duration::from_millis(400), &mut statement).await;
    assert!(
        early.is_err(),
        "it waits for the other transaction: {early:?}"
    );
    until.batch_execute("COMMIT").await.unwrap();
    statement.await
}

async fn races(url: &str, base: &Client) {
    let (one, other) = (connect(url).await, connect(url).await);
    let reset = "UPDATE albums SET user_id = 1 WHERE id = 50;
        UPDATE photos SET album_id = 50 WHERE id IN (500, 501)";
    base.batch_execute(reset).await.unwrap();

    // The key changes first: the row waits, and has the new one.
    one.batch_execute("BEGIN; UPDATE albums SET user_id = 2 WHERE id = 50")
        .await
        .unwrap();
    let insert = other.batch_execute("INSERT INTO likes (id, photo_id) VALUES (-1, 500)");
    waits(insert, &one).await.unwrap();
    assert_eq!(key_of(base, -1).await, 2);

    // The same, and the transaction has an older snapshot: it fails as that of a foreign key does.
    base.batch_execute(reset).await.unwrap();
    other
        .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM users")
        .await
        .unwrap();
    one.batch_execute("BEGIN; UPDATE albums SET user_id = 3 WHERE id = 50")
        .await
        .unwrap();
    let insert = other.batch_execute("INSERT INTO likes (id, photo_id) VALUES (-2, 500)");
    let failed = waits(insert, &one).await.unwrap_err();
    assert_eq!(failed.code(), Some(&SqlState::T_R_SERIALIZATION_FAILURE));
    other.batch_execute("ROLLBACK").await.unwrap();
    // The other one has ended before.
    other
        .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM users")
        .await
        .unwrap();
    base.batch_execute(reset).await.unwrap();
    let insert = other.batch_execute("INSERT INTO likes (id, photo_id) VALUES (-2, 500)");
    let failed = insert.await.unwrap_err();
    assert_eq!(failed.code(), Some(&SqlState::T_R_SERIALIZATION_FAILURE));
    other.batch_execute("ROLLBACK").await.unwrap();

    // The row comes first: the change of key waits, and the row follows.
    for isolation in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
        base.batch_execute(reset).await.unwrap();
        let insert = format!(
            "BEGIN ISOLATION LEVEL {isolation}; INSERT INTO likes (id, photo_id) VALUES (-3, 500)"
        );
        other.batch_execute(&insert).await.unwrap();
        let change = one.batch_execute("UPDATE albums SET user_id = 4 WHERE id = 50");
        waits(change, &other).await.unwrap();
        assert_eq!(key_of(base, -3).await, 4);
        base.batch_execute("DELETE FROM likes WHERE id = -3")
            .await
            .unwrap();
    }

    // A photo goes to another album while that album gets another key, in both orders.
    base.batch_execute(reset).await.unwrap();
    one.batch_execute("BEGIN; UPDATE albums SET user_id = 5 WHERE id = 51")
        .await
        .unwrap();
    let update = other.batch_execute("UPDATE photos SET album_id = 51 WHERE id = 501");
    waits(update, &one).await.unwrap();
    other
        .batch_execute("BEGIN; UPDATE photos SET album_id = 51 WHERE id = 500")
        .await
        .unwrap();
    let change = one.batch_execute("UPDATE albums SET user_id = 6 WHERE id = 51");
    waits(change, &other).await.unwrap();

    // A transaction with an older snapshot would not see all rows that have to follow.
    one.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM users")
        .await
        .unwrap();
    base.batch_execute("INSERT INTO likes (id, photo_id) VALUES (-4, 500)")
        .await
        .unwrap();
    let change = one.batch_execute("UPDATE albums SET user_id = 7 WHERE id = 51");
    let refused = change.await.unwrap_err();
    assert_eq!(refused.code(), Some(&SqlState::FEATURE_NOT_SUPPORTED));
    one.batch_execute("ROLLBACK; DELETE FROM likes WHERE id < 0")
        .await
        .unwrap();

    // Other changes of a row wait for no child.
    other
        .batch_execute("BEGIN; INSERT INTO likes (id, photo_id) VALUES (-5, 500)")
        .await
        .unwrap();
    one.batch_execute(
        "SET lock_timeout = '1s'; UPDATE photos SET likes = likes + 1 WHERE id = 500",
    )
    .await
    .unwrap();
    other.batch_execute("ROLLBACK").await.unwrap();
}

on_each_version! {
    /// Every order of a change of key and of a row that refers to it, with the index and without.
    async fn a_row_and_a_change_of_its_key(version) {
        let cluster = TestCluster::start(version, 1);
        let (url, base) = database(&cluster).await;
        let (exit, done) = report(&url, &[]);
        assert_eq!(exit, 0, "{done}");
        races(&url, &base).await;
        assert_eq!(differ(&base).await, 0);
        // As before the index was there, when an UPDATE of the key has the weaker lock.
        base.batch_execute(
            "DO $$ DECLARE r record; BEGIN FOR r IN SELECT relname FROM pg_class
                WHERE relname LIKE 'pgshard_key_%' LOOP EXECUTE 'DROP INDEX ' || r.relname;
                END LOOP; END $$"
        ).await.unwrap();
        races(&url, &base).await;
        assert_eq!(differ(&base).await, 0);
    }
}
