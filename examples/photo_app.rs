//! A photo service on a sharded database: users, photos, likes, the feed of those whom one follows,
//! health and metrics.
//!
//! ```text
//! pgshard dev up --hosts 2 --shards 256 --dir photo_dev
//! rm photo_dev/migrations/*                                       # the sample that is there
//! cp examples/photo_app/migrations/* photo_dev/migrations/
//! pgshard --config photo_dev/pgshard.toml bootstrap
//! pgshard --config photo_dev/pgshard.toml tickets create users    # the users' IDs: docs/ids.md
//! PGSHARD_CONFIG=photo_dev/pgshard.toml cargo run --example photo_app
//!
//! curl -X POST localhost:3000/users -H content-type:application/json -d '{"name": "Ada"}'
//! curl -X POST localhost:3000/users/USER/photos -H content-type:application/json \
//!     -d '{"title": "Prague"}'
//! curl -X PUT  localhost:3000/photos/ID/likes/USER
//! curl         localhost:3000/photos/ID
//! curl        'localhost:3000/users/USER/photos?since=7d'
//! curl        'localhost:3000/photos?ids=ID,ID'
//! curl        'localhost:3000/feed?users=USER,USER&limit=20'        # the next page: &before=NEXT
//! curl         localhost:3000/healthz
//! curl         localhost:3000/metrics                               # docs/metrics.md
//! ```
//!
//! Nothing in it knows of hosts, and `pgshard move` may run while it serves:
//! `examples/photo_app/load.sh` does that, under load. `PHOTO_APP_LISTEN` is the address to listen
//! on.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router as Routes};
use jiff::{Span, Timestamp, tz::TimeZone};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use pgshard::Router;
use pgshard::config::Config;
use pgshard::id::{Epoch, Id, IdRange};
use pgshard::idgen::tickets::{self, TicketHost, TicketName};
use pgshard::idgen::{IdSource, Tickets};
use pgshard::params;
use pgshard::router::{Error, Sql};
use serde::{Deserialize, Serialize};
use tokio_postgres::Row;

/// What every request needs. Made once.
struct App {
    router: Router,
    /// The users' IDs. They pick the shard, so no shard can make them.
    users: Tickets,
    /// The zero of the IDs' clock.
    epoch: Epoch,
    metrics: PrometheusHandle,
}

type Shared = State<Arc<App>>;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Before the router: its hosts take their handles when they are first used.
    let metrics = PrometheusBuilder::new().install_recorder()?;
    tokio::spawn(upkeep(metrics.clone()));
    // PGSHARD_CONFIG, or ./pgshard.toml. The service starts even if a host is down.
    let path = Config::find(None);
    let config = Config::load(&path)?;
    let app = App {
        router: pgshard::connect(&path).await?,
        users: users(&config)?,
        epoch: config.cluster.epoch,
        metrics,
    };

    let routes = Routes::new()
        .route("/users", post(post_user))
        .route("/users/{user}", put(put_user))
        .route("/users/{user}/photos", get(photos_of_user).post(post_photo))
        .route("/photos", get(photos))
        .route("/photos/{id}", get(photo))
        .route("/photos/{id}/likes/{user}", put(like))
        .route("/feed", get(feed))
        .route("/healthz", get(health))
        .route("/metrics", get(rendered_metrics))
        .with_state(Arc::new(app));
    let address = std::env::var("PHOTO_APP_LISTEN").unwrap_or_else(|_| "127.0.0.1:3000".to_owned());
    let listener = tokio::net::TcpListener::bind(&address).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, routes).await?;
    Ok(())
}

/// The source of the users' IDs.
fn users(config: &Config) -> Result<Tickets, tickets::NameError> {
    let name = TicketName::new("users")?;
    Ok(Tickets::new(tickets::Options::new(name, hosts(config))))
}

/// The hosts that give them: all.
fn hosts(config: &Config) -> Vec<TicketHost> {
    let host = |host: &pgshard::config::HostConfig| TicketHost {
        name: host.name.clone(),
        connect: host.connect.clone(),
    };
    config.hosts.values().map(host).collect()
}

#[derive(Deserialize)]
struct NewUser {
    name: String,
}

#[derive(Deserialize)]
struct NewPhoto {
    title: String,
}

/// A photo as clients see it. Numbers of 64 bits are strings: JavaScript's have 53.
#[derive(Serialize)]
struct Photo {
    id: String,
    user: String,
    title: String,
    likes: i32,
    taken_at: String,
}

const COLUMNS: &str = "id, user_id, title, likes";

impl App {
    fn photo(&self, row: &Row) -> Photo {
        let (id, user): (i64, i64) = (row.get("id"), row.get("user_id"));
        // The time is in the ID; there is no column for it.
        let taken_at = self.epoch.time(Id::decode(id).ms());
        Photo {
            id: id.to_string(),
            user: user.to_string(),
            title: row.get("title"),
            likes: row.get("likes"),
            taken_at: taken_at.to_string(),
        }
    }
}

/// A user as clients see one.
#[derive(Serialize)]
struct User {
    id: String,
}

/// A ticket, and then the key picks the shard. If the insert fails the ticket is lost, which does
/// no harm.
async fn post_user(
    State(app): Shared,
    Json(new): Json<NewUser>,
) -> Result<(StatusCode, Json<User>), Failure> {
    let id = app.users.next().await?;
    let sql = "INSERT INTO {shard}.users (id, name) VALUES ($1, $2)";
    app.router
        .by_key(id)
        .execute(sql, &[&id, &new.name])
        .await?;
    Ok((StatusCode::CREATED, Json(User { id: id.to_string() })))
}

/// Another name for a user who is there.
async fn put_user(
    State(app): Shared,
    Path(user): Path<i64>,
    Json(new): Json<NewUser>,
) -> Result<StatusCode, Failure> {
    let sql = "UPDATE {shard}.users SET name = $2 WHERE id = $1";
    match app
        .router
        .by_key(user)
        .execute(sql, &[&user, &new.name])
        .await?
    {
        0 => Err(Failure::not_found(format!("there is no user {user}"))),
        _ => Ok(StatusCode::NO_CONTENT),
    }
}

/// The database makes the ID, on the user's shard.
async fn post_photo(
    State(app): Shared,
    Path(user): Path<i64>,
    Json(new): Json<NewPhoto>,
) -> Result<(StatusCode, Json<Photo>), Failure> {
    let sql = format!(
        "INSERT INTO {{shard}}.photos (user_id, title) VALUES ($1, $2) RETURNING {COLUMNS}"
    );
    let row = app
        .router
        .by_key(user)
        .query_one(&sql, &[&user, &new.title])
        .await?;
    Ok((StatusCode::CREATED, Json(app.photo(&row))))
}

/// The ID knows its shard.
async fn photo(State(app): Shared, Path(id): Path<i64>) -> Result<Json<Photo>, Failure> {
    // It only reads: if its connection is lost, nothing has happened, and the client may try again.
    let sql = Sql::reading(&format!(
        "SELECT {COLUMNS} FROM {{shard}}.photos WHERE id = $1"
    ));
    let row = app.router.by_id(id)?.query_opt(&sql, &[&id]).await?;
    let row = row.ok_or_else(|| Failure::not_found(format!("there is no photo {id}")))?;
    Ok(Json(app.photo(&row)))
}

/// Two changes on one shard: a transaction. It may be run twice, so it does nothing but SQL.
async fn like(
    State(app): Shared,
    Path((id, user)): Path<(i64, i64)>,
) -> Result<StatusCode, Failure> {
    let liked = async |tx: pgshard::router::Transaction| {
        let sql =
            "INSERT INTO {shard}.likes (photo_id, user_id) VALUES ($1, $2) ON CONFLICT DO NOTHING";
        let new = tx.execute(sql, &[&id, &user]).await?;
        if new == 1 {
            tx.execute(
                "UPDATE {shard}.photos SET likes = likes + 1 WHERE id = $1",
                &[&id],
            )
            .await?;
        }
        Ok::<_, Error>(())
    };
    app.router.by_id(id)?.transaction(liked).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Deserialize)]
struct Since {
    /// `7d`, `90m`, …; everything where it is not given.
    since: Option<String>,
}

/// The newest hundred, by a range of the index: IDs order by time. What is some seconds old will
/// do, so a standby may answer, where the config names one (`replica_url`).
async fn photos_of_user(
    State(app): Shared,
    Path(user): Path<i64>,
    Query(Since { since }): Query<Since>,
) -> Result<Json<Vec<Photo>>, Failure> {
    let oldest = match since {
        None => IdRange::min_at(0),
        Some(since) => {
            let span: Span = since
                .parse()
                .map_err(|error| Failure::bad_request(format!("since: {error}")))?;
            let from = Timestamp::now().to_zoned(TimeZone::UTC).checked_sub(span);
            let from = from
                .map_err(|error| Failure::bad_request(format!("since: {error}")))?
                .timestamp();
            IdRange::min_at(app.epoch.ms(from).unwrap_or(0))
        }
    };
    let sql = format!(
        "SELECT {COLUMNS} FROM {{shard}}.photos WHERE user_id = $1 AND id >= $2 ORDER BY id DESC \
            LIMIT 100"
    );
    let rows = app
        .router
        .by_key(user)
        .reads()
        .query(&sql, &[&user, &oldest])
        .await?;
    Ok(Json(rows.iter().map(|row| app.photo(row)).collect()))
}

#[derive(Deserialize)]
struct Wanted {
    /// `id,id,…`
    ids: String,
}

/// Photos of any shards in one call, in the order in which they were requested.
async fn photos(
    State(app): Shared,
    Query(Wanted { ids }): Query<Wanted>,
) -> Result<Json<Vec<Photo>>, Failure> {
    let ids: Result<Vec<i64>, _> = ids.split(',').map(|id| id.trim().parse()).collect();
    let ids = ids.map_err(|error| Failure::bad_request(format!("ids: {error}")))?;
    if ids.len() > 1000 {
        return Err(Failure::bad_request("ids: at most 1000".to_owned()));
    }
    let sql = Sql::reading(&format!(
        "SELECT {COLUMNS} FROM {{shard}}.photos WHERE id = ANY($1)"
    ));
    let rows = match app
        .router
        .by_ids(&ids)
        .deadline(PATIENCE)
        .query_in_order(&sql)
        .await
    {
        Ok(rows) => rows,
        // A number that is no ID is a photo that is not there.
        Err(partial)
            if partial
                .failed
                .iter()
                .all(|failed| matches!(failed.error, Error::NoSuchId { .. })) =>
        {
            partial.done
        }
        Err(partial) => return Err(Error::from(partial).into()),
    };
    Ok(Json(rows.iter().map(|row| app.photo(row)).collect()))
}

/// How long a client waits that requests many rows in one call.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Deserialize)]
struct FeedOf {
    /// `user,user,…`: whom one follows.
    users: String,
    /// [`Feed::next`] of the page before.
    before: Option<i64>,
    limit: Option<usize>,
}

#[derive(Serialize)]
struct Feed {
    photos: Vec<Photo>,
    /// What to give as `before` for the next page.
    next: Option<String>,
    /// Whether some shards did not answer: what there is, is shown.
    incomplete: bool,
}

/// The newest photos of many users, wherever they are. Half a feed is better than none.
async fn feed(State(app): Shared, Query(of): Query<FeedOf>) -> Result<Json<Feed>, Failure> {
    let users: Result<Vec<i64>, _> = of
        .users
        .split(',')
        .map(|user| user.trim().parse())
        .collect();
    let users = users.map_err(|error| Failure::bad_request(format!("users: {error}")))?;
    let limit = of.limit.unwrap_or(50);
    if users.len() > 5000 || limit > 500 {
        return Err(Failure::bad_request(
            "at most 5000 users and 500 photos".to_owned(),
        ));
    }
    let sql = Sql::reading(&format!(
        "SELECT {COLUMNS} FROM {{shard}}.photos WHERE user_id = ANY($1) AND id < $2 \
            ORDER BY id DESC LIMIT {limit}"
    ));
    let before = of.before.unwrap_or(i64::MAX);
    let newest = app.router.by_keys(&users)?.deadline(PATIENCE);
    let newest = newest.merge(sql, params![before], limit, |row| {
        row.try_get::<_, i64>("id").map(Reverse)
    });
    let (page, incomplete) = match newest.await {
        Ok(page) => (page, false),
        Err(partial) if partial.failed.len() < partial.shards => (partial.done, true),
        Err(partial) => return Err(Error::from(partial).into()),
    };
    let last = page.last().filter(|_| page.len() == limit);
    Ok(Json(Feed {
        photos: page.iter().map(|(_, row)| app.photo(row)).collect(),
        next: last.map(|(_, row)| row.get::<_, i64>("id").to_string()),
        incomplete,
    }))
}

/// Whether this process works. A host that is down is no reason to restart it: the others' shards
/// are served.
async fn health(State(app): Shared) -> Json<serde_json::Value> {
    let hosts: Vec<String> = app.router.hosts().iter().map(ToString::to_string).collect();
    Json(serde_json::json!({ "map_version": app.router.map().version().get(), "hosts": hosts }))
}

/// For Prometheus.
async fn rendered_metrics(State(app): Shared) -> String {
    app.metrics.render()
}

/// Histograms are emptied into their sums now and then, or they would grow if nothing scrapes them.
async fn upkeep(metrics: PrometheusHandle) {
    let mut every = tokio::time::interval(Duration::from_secs(5));
    loop {
        every.tick().await;
        metrics.run_upkeep();
    }
}

/// The response to a client if a request fails.
struct Failure {
    status: StatusCode,
    message: String,
}

impl Failure {
    fn not_found(message: String) -> Failure {
        Failure {
            status: StatusCode::NOT_FOUND,
            message,
        }
    }

    fn bad_request(message: String) -> Failure {
        Failure {
            status: StatusCode::BAD_REQUEST,
            message,
        }
    }
}

impl From<tickets::Error> for Failure {
    fn from(error: tickets::Error) -> Failure {
        eprintln!("{}", with_causes(&error));
        Failure {
            status: StatusCode::SERVICE_UNAVAILABLE,
            message: "try again".to_owned(),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let (status, message) = match &error {
            Error::NoSuchId { .. } => (StatusCode::NOT_FOUND, error.to_string()),
            _ if error.is_not_found() => {
                (StatusCode::NOT_FOUND, "there is no such thing".to_owned())
            }
            // A photo of a user, or a like of a photo, that is not there.
            _ if error.code().is_some_and(|code| code.code() == "23503") => (
                StatusCode::NOT_FOUND,
                "there is no such user or photo".to_owned(),
            ),
            _ if error.is_unique_violation() => {
                (StatusCode::CONFLICT, "it is there already".to_owned())
            }
            // Another constraint: what the client has sent is not what we take.
            _ if error.is_constraint_violation() => {
                let constraint = error.constraint().unwrap_or("a column that must be there");
                (
                    StatusCode::UNPROCESSABLE_ENTITY,
                    format!("refused by {constraint}"),
                )
            }
            // Nothing has happened, and soon it can: clients and proxies know what to do with that.
            _ if error.is_retryable() => (StatusCode::SERVICE_UNAVAILABLE, "try again".to_owned()),
            // It may have happened, so that neither client nor proxy may try again by themselves.
            _ if error.may_have_run() => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "it is not known whether that worked".to_owned(),
            ),
            // The cluster cannot, and will not soon; or this program is wrong.
            _ if error.is_cluster() => (
                StatusCode::BAD_GATEWAY,
                "the database does not answer".to_owned(),
            ),
            _ => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "that did not work".to_owned(),
            ),
        };
        if status.is_server_error() {
            // The error's own words are for us, not for the client.
            eprintln!("{}", with_causes(&error));
        }
        Failure { status, message }
    }
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let body = Json(serde_json::json!({ "error": self.message }));
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            return (self.status, [(header::RETRY_AFTER, "1")], body).into_response();
        }
        (self.status, body).into_response()
    }
}

/// They call the handlers as axum does, on a cluster of their own: docs/rust.md, "Tests".
#[cfg(test)]
mod tests {
    use pgshard::dev;
    use pgshard::schema::{self, UnshardedHost, bootstrap};
    use pgshard::testing::{self, TestCluster};

    use super::*;

    /// Two hosts with the app's tables and its tickets.
    async fn start() -> (TestCluster, Arc<App>) {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/photo_app/migrations");
        let cluster = testing::cluster().migrations(folder).await.unwrap();
        let app = on(cluster.config(), cluster.router().clone()).await;
        (cluster, app)
    }

    /// The app with its tickets.
    async fn on(config: &Config, router: Router) -> Arc<App> {
        let hosts = hosts(config);
        let series = tickets::Create {
            name: TicketName::new("users").unwrap(),
            hosts: hosts.iter().map(|host| host.name.clone()).collect(),
            stride: None,
            run: None,
            start: None,
            max: None,
            replace: None,
            lost: Default::default(),
        };
        let id = uuid::Uuid::new_v4();
        tickets::create(&hosts, &series, id).await.unwrap();
        Arc::new(App {
            router,
            users: users(config).unwrap(),
            epoch: config.cluster.epoch,
            metrics: PrometheusBuilder::new().build_recorder().handle(),
        })
    }

    /// The same tables in one database, as before there were shards. It makes IDs with the shard in
    /// them, so that they are found by the ID alone later too.
    const ONE_DATABASE: &str = "CREATE SCHEMA app; CREATE SEQUENCE app.numbers;
        CREATE FUNCTION app.wide() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            NEW.id := (extract(epoch FROM now() - '2026-01-01T00:00:00Z'::timestamptz)
                * 1000)::bigint << 23;
            NEW.id := NEW.id | (NEW.user_id % 16 << 10) | nextval('app.numbers') % 1024;
            RETURN NEW; END $$;";

    /// One database with the app's tables, as an unsharded host.
    async fn start_on_one_database() -> (dev::Cluster, Arc<App>) {
        let binaries = dev::Binaries::first().unwrap();
        let servers = dev::Cluster::start(&dev::ClusterOptions::new(1, binaries)).unwrap();
        let text = servers.config_text(pgshard::ShardCount::new(16).unwrap(), None);
        let url = servers.servers()[0].url();
        let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls)
            .await
            .unwrap();
        tokio::spawn(connection);
        let tables = include_str!("photo_app/migrations/0001_photos.sql");
        let tables = tables
            .replace("DEFAULT {shard}.next_id()", "")
            .replace("{shard}", "app");
        client.batch_execute(ONE_DATABASE).await.unwrap();
        client.batch_execute(&tables).await.unwrap();
        let wide = "CREATE TRIGGER wide BEFORE INSERT ON app.photos FOR EACH ROW
            EXECUTE FUNCTION app.wide()";
        client.batch_execute(wide).await.unwrap();

        let path = servers.directory().join("pgshard.toml");
        let layout = "layout = \"unsharded\"\nschema = \"app\"\n";
        std::fs::write(
            &path,
            text.replace("\nurl = ", &format!("\n{layout}url = ")),
        )
        .unwrap();
        let config = Config::load(&path).unwrap();
        let (host, schema) = config.unsharded().unwrap();
        let cluster = schema::Cluster {
            shards: config.cluster.shards,
            epoch: config.cluster.epoch,
            schema_prefix: config.cluster.prefix.clone(),
            key: config.cluster.key,
            legacy_below: 0,
            unsharded: Some(UnshardedHost {
                host: host.name.clone(),
                schema: schema.clone(),
            }),
        };
        let all = config.map.as_ref().unwrap().iter();
        let hosts = vec![bootstrap::Host {
            name: host.name.clone(),
            connect: host.connect.clone(),
            shards: all.map(|(shard, _, epoch)| (shard, epoch)).collect(),
        }];
        let request = bootstrap::Request::new(cluster, hosts, schema::Migrations::none());
        let report = bootstrap::bootstrap(&request, &|_| ()).await;
        assert!(report.is_complete(), "{report:?}");
        let app = on(&config, pgshard::connect(&path).await.unwrap()).await;
        (servers, app)
    }

    /// Creates a user with photos of these titles: the user's number, and the photos' IDs.
    async fn user_with(app: &Arc<App>, titles: &[&str]) -> (i64, Vec<i64>) {
        let name = "Ada".to_owned();
        let posted = post_user(State(app.clone()), Json(NewUser { name })).await;
        let (_, Json(user)) = posted.map_err(|failure| failure.message).unwrap();
        let user = user.id.parse().unwrap();
        let mut ids = Vec::new();
        for title in titles {
            let new = NewPhoto {
                title: (*title).to_owned(),
            };
            let posted = post_photo(State(app.clone()), Path(user), Json(new)).await;
            let (status, Json(photo)) = posted.map_err(|failure| failure.message).unwrap();
            assert_eq!(
                (status, photo.title.as_str()),
                (StatusCode::CREATED, *title)
            );
            ids.push(photo.id.parse().unwrap());
        }
        (user, ids)
    }

    #[tokio::test]
    async fn a_photo_is_found_by_its_id_and_liked_once_by_a_user() {
        let (_cluster, app) = start().await;
        photos_are_found_and_liked(app).await;
    }

    /// The application is the same before there are shards.
    #[tokio::test(flavor = "multi_thread")]
    async fn the_application_runs_on_its_one_database_before_the_shards() {
        let (_servers, app) = start_on_one_database().await;
        photos_are_found_and_liked(app.clone()).await;
        feeds_have_the_newest_photos(app.clone()).await;
        nothing_else_is_found(app).await;
    }

    async fn photos_are_found_and_liked(app: Arc<App>) {
        let (user, ids) = user_with(&app, &["Prague"]).await;
        for _ in 0..2 {
            let liked = like(State(app.clone()), Path((ids[0], user))).await;
            assert!(liked.is_ok_and(|status| status == StatusCode::NO_CONTENT));
        }
        let found = photo(State(app), Path(ids[0])).await;
        let Json(found) = found.map_err(|failure| failure.message).unwrap();
        assert_eq!((found.title.as_str(), found.likes), ("Prague", 1));
    }

    #[tokio::test]
    async fn a_feed_has_the_newest_photos_of_users_on_all_shards() {
        let (_cluster, app) = start().await;
        feeds_have_the_newest_photos(app).await;
    }

    async fn feeds_have_the_newest_photos(app: Arc<App>) {
        let (mut users, mut newest) = (Vec::new(), Vec::new());
        for _ in 0..8 {
            let (user, ids) = user_with(&app, &["one", "two"]).await;
            users.push(user.to_string());
            newest.extend(ids);
        }
        newest.sort_unstable_by(|a, b| b.cmp(a));
        let mut before = None;
        for page in newest.chunks(5) {
            let users = users.join(",");
            let limit = Some(5);
            let feed = feed(
                State(app.clone()),
                Query(FeedOf {
                    users,
                    before,
                    limit,
                }),
            )
            .await;
            let Json(feed) = feed.map_err(|failure| failure.message).unwrap();
            let ids: Vec<i64> = feed
                .photos
                .iter()
                .map(|photo| photo.id.parse().unwrap())
                .collect();
            assert_eq!((ids.as_slice(), feed.incomplete), (page, false));
            before = feed.next.map(|next| next.parse().unwrap());
        }
    }

    #[tokio::test]
    async fn what_is_not_there_is_not_found() {
        let (_cluster, app) = start().await;
        nothing_else_is_found(app).await;
    }

    async fn nothing_else_is_found(app: Arc<App>) {
        let renamed = NewUser {
            name: "Eve".to_owned(),
        };
        let failures = [
            photo(State(app.clone()), Path(1 << 23)).await.err(),
            put_user(State(app.clone()), Path(7), Json(renamed))
                .await
                .err(),
            like(State(app), Path((1 << 23, 7))).await.err(),
        ];
        for failure in failures {
            assert_eq!(
                failure.map(|failure| failure.status),
                Some(StatusCode::NOT_FOUND)
            );
        }
    }
}
