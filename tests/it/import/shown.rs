//! The whole report of a small database, as text, JSON and a page: what an engineer reads.

use std::path::Path;

use super::run;
use crate::support::{TestCluster, connect};

/// The schema of a shop, with obstacles of each level.
fn shop() -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/import/shop.sql");
    std::fs::read_to_string(file).expect("the schema is there")
}

/// What differs from run to run.
const FILTERS: &[(&str, &str)] = &[(r"\b\d{18}\b", "[first ID]"), (r"18\.\d+", "18.n")];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_report_is_for_people() {
    let cluster = TestCluster::start(18, 1);
    let admin = cluster.superuser(0).await;
    admin.batch_execute("CREATE DATABASE shop").await.unwrap();
    let url = cluster.server(0).superuser_url_of("shop");
    let base = connect(&url).await;
    base.batch_execute(&shop()).await.unwrap();
    base.batch_execute("VACUUM ANALYZE").await.unwrap();
    // The harness copies a cluster that may be hours old.
    admin
        .batch_execute("SELECT pg_stat_reset_shared('wal')")
        .await
        .unwrap();
    let statements = "SELECT * FROM orders WHERE user_id = 1
SELECT * FROM orders WHERE id = 7
SELECT count(*) FROM orders
SELECT * FROM orders o JOIN warehouses w ON w.id = o.id WHERE o.user_id = 1
SELECT * FROM warehouses";
    let statements = cluster.write("statements.sql", statements);
    let page = cluster.directory().join("report.html");
    let (statements, page) = (statements.to_str().unwrap(), page.to_str().unwrap());
    let args = ["--statements", statements, "--html", page];
    let (exit, text, stderr) = run(&url, &args);
    assert_eq!(exit, 1, "{stderr}");
    let (_, json, _) = run(&url, &["--statements", statements, "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let json = serde_json::to_string_pretty(&json).unwrap();
    let html = std::fs::read_to_string(page).unwrap();
    let body = html.split("</style>").nth(1).unwrap().replace("><", ">\n<");
    insta::with_settings!({ filters => FILTERS.to_vec() }, {
        insta::assert_snapshot!("text", text);
        insta::assert_snapshot!("json", json);
        insta::assert_snapshot!("page", body);
    });
}
