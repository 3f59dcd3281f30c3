//! `on_each_version!`.

/// How long one test may take.
macro_rules! test_limit {
    () => {{
        let is_long = std::env::var_os("PGSHARD_TEST_LONG").is_some();
        std::time::Duration::from_secs(if is_long { 7200 } else { 600 })
    }};
}

/// The older of the two versions that we test: 15, or what `script/test-versions` puts in its
/// place.
macro_rules! older {
    () => {
        std::env::var("PGSHARD_TEST_MAJOR").map_or(15, |major| {
            major
                .parse::<u32>()
                .expect("PGSHARD_TEST_MAJOR is a major version, such as 13")
        })
    };
}

/// Makes a test of every function in it for every tested major version of PostgreSQL: `name::pg15`
/// and `name::pg18`. If one is not installed its tests fail and name the remedy; they are never
/// skipped.
///
/// ```ignore
/// on_each_version! {
///     /// What it shows.
///     async fn it_answers(version) {
///         let cluster = TestCluster::start(version, 1);
///         cluster.app(0).await.simple_query("SELECT 1").await.unwrap();
///     }
/// }
/// ```
///
/// A test that waits for something that never happens fails after ten minutes.
///
/// The runtime has two threads, so that background tasks (such as a writer) continue while a test
/// blocks in `Server::restart`.
macro_rules! on_each_version {
    ($($(#[$attribute:meta])* async fn $name:ident($version:ident) $body:block)+) => {$(
        $(#[$attribute])*
        mod $name {
            #[allow(unused_imports, reason = "which of them a test needs is its own affair")]
            use super::*;

            async fn body($version: u32) $body

            async fn bounded(version: u32) {
                let max = test_limit!();
                tokio::time::timeout(max, Box::pin(body(version))).await.expect("a test ends");
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn pg15() {
                bounded(older!()).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn pg18() {
                bounded(18).await;
            }
        }
    )+};
}

/// Makes one test of every function in it, `name::mixed`, with hosts of different versions: the
/// first host has `version`, given before the function, and the next one has
/// [`other`](super::world::other). It is for tests that take long, go both ways between the hosts,
/// and need nothing of PostgreSQL that the tests of each version do not need too. With
/// `PGSHARD_TEST_LONG` it also runs the other way round.
///
/// ```ignore
/// on_mixed_versions! {
///     /// What it shows.
///     18: async fn it_goes_and_comes_back(version) {
///         let world = World::new(&[version, other(version)], 4).await;
///     }
/// }
/// ```
#[allow(unused_macros, reason = "the crate's own tests have none of these")]
macro_rules! on_mixed_versions {
    ($(
        $(#[$attribute:meta])*
        $first:literal: async fn $name:ident($version:ident) $body:block
    )+) => {$(
        $(#[$attribute])*
        mod $name {
            #[allow(unused_imports, reason = "which of them a test needs is its own affair")]
            use super::*;

            async fn body($version: u32) $body

            async fn bounded(version: u32) {
                let max = test_limit!();
                tokio::time::timeout(max, Box::pin(body(version))).await.expect("a test ends");
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn mixed() {
                bounded(if $first == 15 { older!() } else { $first }).await;
                if crate::support::is_long() {
                    bounded(crate::support::other($first)).await;
                }
            }
        }
    )+};
}
