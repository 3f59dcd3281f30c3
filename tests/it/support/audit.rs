//! The audit: compares what the hosts have with what they report, with the map, and with what was
//! acknowledged to writers.

use std::collections::{BTreeMap, BTreeSet};

use pgshard::id::Id;
use pgshard::map::ShardMap;

use super::world::{World, lines};
use super::writers::Notes;

impl World {
    /// After moves that have all ended: every acknowledged row exists exactly once, on the host
    /// that the map names; every shard has one host; and nothing of a move is left except what a
    /// ledger names.
    pub(crate) async fn audit(&self, notes: &Notes) {
        self.audit_places().await;
        self.audit_rows(notes).await;
    }

    /// Who serves what, and what is left of moves. Ignores rows: writers may continue.
    pub(crate) async fn audit_places(&self) {
        self.audit_places_by(&self.published()).await;
    }

    /// The same, by a map that may be outside the config file.
    pub(crate) async fn audit_places_by(&self, map: &ShardMap) {
        let clients = self.all().await;
        let mut serving: BTreeMap<u16, Vec<(usize, i32)>> = BTreeMap::new();
        for (host, client) in clients.iter().enumerate() {
            // What has the shard's name: its tables where it is served, a signpost where it is not.
            let sql = "SELECT s.shard_id, s.schema_name, s.state, s.epoch, count(*) FILTER (WHERE \
                    c.relkind = 'r') AS tables,
                    count(*) FILTER (WHERE c.relkind = 'v') AS views
                FROM pgshard.shard s LEFT JOIN pg_namespace n ON n.nspname = s.schema_name
                LEFT JOIN pg_class c ON c.relnamespace = n.oid
                GROUP BY s.shard_id";
            let rows = client.query(sql, &[]).await.unwrap();
            let mut schemas: BTreeSet<String> = BTreeSet::new();
            for row in rows {
                let (shard, schema, state): (i32, String, String) =
                    (row.get(0), row.get(1), row.get(2));
                let (tables, views): (i64, i64) = (row.get("tables"), row.get("views"));
                match state.as_str() {
                    "serving" => {
                        assert!(
                            tables > 0,
                            "db{} serves {schema}, which has no tables",
                            host + 1
                        );
                        serving
                            .entry(shard as u16)
                            .or_default()
                            .push((host, row.get("epoch")));
                    }
                    "moved" => assert!(
                        tables == 0 && views > 0,
                        "db{}: {schema} is no signpost",
                        host + 1
                    ),
                    other => panic!(
                        "db{}: shard {shard} is {other}, and no move is open",
                        host + 1
                    ),
                }
                schemas.insert(schema);
            }
            let sql = "SELECT nspname::text FROM pg_namespace WHERE nspname LIKE 'shard\\_%'";
            let there: BTreeSet<String> = client
                .query(sql, &[])
                .await
                .unwrap()
                .iter()
                .map(|row| row.get(0))
                .collect();
            let sql = "SELECT name FROM pgshard.ledger WHERE kind NOT IN ('slot', 'publication')";
            let ledger: BTreeSet<String> = client
                .query(sql, &[])
                .await
                .unwrap()
                .iter()
                .map(|row| row.get(0))
                .collect();
            let known: BTreeSet<String> = schemas.union(&ledger).cloned().collect();
            assert_eq!(
                there,
                known,
                "db{}: schemas, and what rows and ledger say",
                host + 1
            );
            assert!(
                schemas.is_disjoint(&ledger),
                "db{}: a shard's own name is in the ledger",
                host + 1
            );
            let left = |name: &String| name.contains("__left_e") || name.contains("__signpost_e");
            assert!(
                ledger.iter().all(left),
                "db{}: only old copies are kept: {ledger:?}",
                host + 1
            );
            let incoming: i64 = client
                .query_one("SELECT count(*) FROM pgshard.incoming", &[])
                .await
                .unwrap()
                .get(0);
            assert_eq!(incoming, 0, "db{}: nothing is on its way", host + 1);
            let sql = "SELECT shard_id, phase FROM pgshard.move WHERE phase NOT IN ('kept', \
                'completed', 'aborted')";
            let open = client.query(sql, &[]).await.unwrap();
            assert!(open.is_empty(), "db{}: open moves {open:?}", host + 1);
        }
        self.audit_streams(None).await;
        self.audit_ways_back().await;
        let names: Vec<_> = self.config.hosts.keys().collect();
        for (shard, host, epoch) in map.iter() {
            let by = serving.get(&shard.get()).cloned().unwrap_or_default();
            let [(on, at)] = by.as_slice() else {
                panic!("shard {shard} is served by {by:?}")
            };
            assert_eq!(
                (names[*on], *at),
                (host, epoch.as_i32()),
                "shard {shard}: the host, and the map"
            );
        }
        assert_eq!(serving.len(), usize::from(map.shards().get()));
    }

    /// Checks that no host has a slot or a publication without a row in its ledger, and none at all
    /// of this move, which has ended.
    pub(crate) async fn audit_streams(&self, ended: Option<&str>) {
        for (host, client) in self.all().await.iter().enumerate() {
            // One statement, one snapshot: other moves run at the same time, and they write the
            // ledger first.
            let sql = "SELECT 'slot ' || slot_name FROM pg_replication_slots s WHERE database = \
                current_database()
                    AND NOT EXISTS (SELECT FROM pgshard.ledger WHERE kind = 'slot' AND name = \
                    slot_name)
                UNION ALL SELECT 'publication ' || pubname FROM pg_publication
                    WHERE NOT EXISTS (SELECT FROM pgshard.ledger WHERE kind = 'publication' AND \
                    name = pubname)";
            let mut unknown = lines(client, sql).await;
            // A snapshot does not cover slots: one that has just appeared, or disappeared, may
            // contradict the ledger for a moment.
            for _ in 0..20 {
                if unknown.is_empty() {
                    break;
                }
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                unknown = lines(client, sql).await;
            }
            assert_eq!(unknown, "", "db{}: without a row in the ledger", host + 1);
            let name = format!("pgshard_{}", ended.unwrap_or("none").replace('-', ""));
            let sql = format!(
                "SELECT 'slot' FROM pg_replication_slots WHERE slot_name = '{name}'
                 UNION ALL SELECT 'publication' FROM pg_publication WHERE pubname = '{name}'
                 UNION ALL SELECT 'ledger: ' || kind FROM pgshard.ledger WHERE name = '{name}'"
            );
            assert_eq!(
                lines(client, &sql).await,
                "",
                "db{}: left of {name}",
                host + 1
            );
        }
    }

    /// The same as [`World::audit_places`] for one shard that is not being moved: other shards may
    /// be on their way.
    pub(crate) async fn audit_shard(&self, shard: u16) {
        let mut serving = Vec::new();
        for (host, client) in self.all().await.iter().enumerate() {
            let at = format!("shard {shard} on db{}", host + 1);
            let state = self.state(host, shard).await;
            match state.as_str() {
                "serving" => serving.push(host),
                "moved" | "none" => {}
                other => panic!("{at} is {other}, and no move is open"),
            }
            // Where it has moved away from, an old copy may be fed.
            let fed = state == "moved";
            let open = format!(
                "SELECT 'a move in phase ' || phase FROM pgshard.move
                    WHERE shard_id = {shard} AND phase NOT IN ('kept', 'completed', 'aborted')
                 UNION ALL SELECT 'an incoming row' FROM pgshard.incoming WHERE shard_id = {shard}
                 UNION ALL SELECT 'progress' FROM pgshard.progress WHERE shard_id = {shard} AND \
                 NOT {fed}
                 UNION ALL SELECT 'chunks' FROM pgshard.chunk WHERE shard_id = {shard}
                 UNION ALL SELECT kind || ' in the ledger' FROM pgshard.ledger
                    WHERE shard_id = {shard} AND kind IN ('incoming', 'signpost')
                 UNION ALL SELECT 'the schema ' || nspname FROM pg_namespace
                    WHERE nspname LIKE 'shard\\_{shard:04}\\_\\_%' AND nspname NOT IN (SELECT name \
                    FROM pgshard.ledger)"
            );
            assert_eq!(lines(client, &open).await, "", "{at}: left of a move");
        }
        assert_eq!(
            serving,
            [self.host_of(shard)],
            "shard {shard}: the host, and the map"
        );
    }

    /// Checks that there are no slots and no publications except those of usable reverse
    /// replications, and that ledgers name them.
    async fn audit_ways_back(&self) {
        let clients = self.all().await;
        let mut open = BTreeSet::new();
        for client in &clients {
            let sql = "SELECT DISTINCT b.stream FROM pgshard.back b JOIN pgshard.move m USING \
                (move_id, shard_id)
                WHERE b.lost IS NULL AND m.phase = 'kept'";
            open.extend(
                client
                    .query(sql, &[])
                    .await
                    .unwrap()
                    .iter()
                    .map(|row| row.get::<_, String>(0)),
            );
        }
        for (host, client) in clients.iter().enumerate() {
            let sql = "SELECT k.shard_id::text FROM pgshard.marker k JOIN pgshard.move m USING \
                (move_id, shard_id)
                WHERE m.phase = 'completed'";
            assert_eq!(
                lines(client, sql).await,
                "",
                "db{}: markers of shards whose moves are over",
                host + 1
            );
            for (kind, sql) in [
                ("slot", "SELECT slot_name::text FROM pg_replication_slots"),
                ("publication", "SELECT pubname::text FROM pg_publication"),
            ] {
                let names = async |sql: &str| -> BTreeSet<String> {
                    client
                        .query(sql, &[])
                        .await
                        .unwrap()
                        .iter()
                        .map(|row| row.get(0))
                        .collect()
                };
                let there = names(sql).await;
                let known = names(&format!(
                    "SELECT name FROM pgshard.ledger WHERE kind = '{kind}'"
                ))
                .await;
                assert_eq!(
                    there,
                    known,
                    "db{}: every {kind}, and what the ledger says",
                    host + 1
                );
                assert!(
                    there.is_subset(&open),
                    "db{}: a {kind} that nobody needs: {there:?}, needed {open:?}",
                    host + 1
                );
            }
        }
    }

    /// Checks that every row exists once, and where it belongs. The writers have ended.
    pub(crate) async fn audit_rows(&self, notes: &Notes) {
        self.audit_rows_but(notes, "no such payload").await;
    }

    /// The same, ignoring rows with a payload that begins with this.
    pub(crate) async fn audit_rows_but(&self, notes: &Notes, but: &str) {
        let mut found: BTreeMap<String, Vec<(usize, i64)>> = BTreeMap::new();
        let mut ids = BTreeSet::new();
        for (host, client) in self.all().await.iter().enumerate() {
            let sql = "SELECT shard_id, schema_name FROM pgshard.shard WHERE state = 'serving' \
                ORDER BY 1";
            for row in client.query(sql, &[]).await.unwrap() {
                let (shard, schema): (i32, String) = (row.get(0), row.get(1));
                let sql = format!(
                    "SELECT * FROM (SELECT id, name FROM {schema}.users
                     UNION ALL SELECT id, title FROM {schema}.photos) AS rows WHERE NOT \
                     starts_with(name, $1)"
                );
                for row in client.query(&sql, &[&but]).await.unwrap() {
                    let (id, payload): (i64, String) = (row.get(0), row.get(1));
                    assert_eq!(
                        i32::from(Id::decode(id).shard().get()),
                        shard,
                        "{payload} has an ID of another shard"
                    );
                    assert!(ids.insert(id), "the ID {id} is there twice");
                    found.entry(payload).or_default().push((host, id));
                }
            }
        }
        let map = self.published();
        let names: Vec<_> = self.config.hosts.keys().collect();
        let (mut lost, mut doubled, mut misplaced) = (Vec::new(), Vec::new(), Vec::new());
        for row in &notes.acknowledged {
            match found.remove(&row.payload).unwrap_or_default().as_slice() {
                [] => lost.push(row),
                [(host, id)] => {
                    let right = map.host(Id::decode(row.id).shard()) == Some(names[*host]);
                    if !right || *id != row.id {
                        misplaced.push(row);
                    }
                }
                _ => doubled.push(row),
            }
        }
        let total = notes.acknowledged.len();
        assert!(
            lost.is_empty(),
            "{} of {total} rows are lost: {lost:?}",
            lost.len()
        );
        assert!(
            doubled.is_empty(),
            "{} of {total} rows are doubled: {doubled:?}",
            doubled.len()
        );
        assert!(
            misplaced.is_empty(),
            "{} of {total} rows are misplaced: {misplaced:?}",
            misplaced.len()
        );
        for (payload, places) in found.iter().filter(|(payload, _)| payload.starts_with('w')) {
            assert!(
                notes.in_doubt.contains(payload),
                "nobody was told of {payload} at {places:?}"
            );
            assert_eq!(places.len(), 1, "{payload} is doubled");
        }
    }
}
