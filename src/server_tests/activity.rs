//! What is shown of other sessions' statements.

use super::servers::Servers;
use crate::pg::shown;

on_each_version! {
    async fn no_literal_of_somebodys_statement(version) {
        let servers = Servers::start(version, 1);
        let client = servers.app(0).await;
        let sql = format!("SELECT {}", shown("$1::text"));
        for (query, expected) in [
            (
                "UPDATE shard_0007.t1 SET a = $1, n = 12.5",
                "UPDATE shard_0007.t1 SET a = $?, n = ?",
            ),
            (
                "ALTER ROLE app PASSWORD 'hunter2'",
                "ALTER ROLE app PASSWORD ?",
            ),
            (
                "SELECT 'it''s hunter2', E'it\\'s hunter2', 'x'",
                "SELECT ?, E?, ?",
            ),
            ("SELECT $$hunter2$$ AS a", "SELECT ?"),
            ("SELECT $a$hunter2", "SELECT ?"),
            ("SELECT 'hunter2 and it is cut of", "SELECT ?"),
            (
                "SELECT /* user hunter2 */ a -- hunter2\n FROM\n\tt",
                "SELECT ? a ? FROM t",
            ),
            ("SELECT a /* hunter2", "SELECT a ?"),
        ] {
            let answer: String = client.query_one(&sql, &[&query]).await.unwrap().get(0);
            assert_eq!(answer, expected, "{query}");
        }
    }
}
