//! Fill: fills the materialized views of the target from the rows that are there.
//!
//! Before: the target has the tables' rows, from some moment, and the views may have anything.
//! After: views that have rows at the source have them at the target, computed from that moment's
//! rows, and the others have none. An online move does this while the source serves, since the
//! duration of a query is unknown. If the mover dies in between, some are filled; the next run
//! fills them all again.

use std::time::Instant;

use tokio_postgres::types::Type;

use crate::mover::copy::prove_lease;
use crate::mover::definition::ddl::{Creation, Refresh};
use crate::mover::preflight::facts;
use crate::mover::protocol::error::Error;
use crate::mover::step::ShardMove;
use crate::pg::quote_ident;
use crate::schema::catalog::{CLOSE_PATH, search_path};

impl ShardMove<'_> {
    /// Fills the views of a target that changes are applied to.
    ///
    /// Locks: on the target ACCESS EXCLUSIVE on one view at a time, which is not in use, and ACCESS
    /// SHARE on what it reads, for which only a TRUNCATE of the stream waits; then those of
    /// [`prove_lease`].
    pub(crate) async fn fill_open(&self, creation: &Creation) -> Result<(), Error> {
        if creation.refreshes.is_empty() {
            return Ok(());
        }
        let (what, began) = (FILLING, Instant::now());
        let schema = facts::schema_oid(&self.source, &self.names.schema)
            .await?
            .unwrap_or(0);
        for statements in self.statements(creation, schema).await? {
            self.target.batch(what, "BEGIN").await?;
            for sql in statements {
                self.target.statement(what, &sql).await?;
            }
            self.target.batch(what, CLOSE_PATH).await?;
            prove_lease(&self.target, self.hold).await?;
            self.target.batch(what, "COMMIT").await?;
        }
        self.timings.since("fill", began);
        Ok(())
    }

    /// Fills the views within the transaction that brings the target its rows, behind the fence:
    /// before that there are no rows to fill them from.
    ///
    /// Locks: ACCESS EXCLUSIVE on views that no other session uses, ACCESS SHARE on what they read.
    pub(super) async fn fill_fenced(&self, creation: &Creation, left: u32) -> Result<(), Error> {
        if creation.refreshes.is_empty() {
            return Ok(());
        }
        let began = Instant::now();
        for statements in self.statements(creation, left).await? {
            for sql in statements {
                self.target.statement(FILLING, &sql).await?;
            }
        }
        self.timings.since("fill", began);
        Ok(())
    }

    /// The statements for each view, in order, as the view is in this schema of the source now:
    /// with rows or without.
    ///
    /// They run under the settings that the role has at the target, not the mover's own, since a
    /// query may show dates. They include ANALYZE, because plans are bad without statistics.
    ///
    /// Locks: ACCESS SHARE on catalogs, for one statement.
    async fn statements(
        &self,
        creation: &Creation,
        schema: u32,
    ) -> Result<Vec<Vec<String>>, Error> {
        // By the schema's members in pg_depend: pg_class has no index on the namespace.
        let sql = "SELECT c.relname::text FROM pg_depend d JOIN pg_class c ON c.oid = d.objid
            WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = $1 AND d.classid = \
            'pg_class'::regclass
                AND c.relkind = 'm' AND c.relispopulated";
        let rows = self
            .source
            .typed_rows(FILLING, sql, &[(&schema, Type::OID)])
            .await?;
        let filled = rows
            .iter()
            .map(|row| row.get(0))
            .collect::<Result<Vec<String>, _>>()?;
        let incoming = self.names.incoming();
        let own = SETTINGS.map(|name| format!("SET LOCAL {name} TO DEFAULT"));
        let set: Vec<String> = own
            .into_iter()
            .chain([format!(
                "SET LOCAL search_path = {}",
                search_path(&incoming)
            )])
            .collect();
        let statements = creation.refreshes.iter().map(|Refresh { view, sql }| {
            let name = format!("{}.{}", quote_ident(&incoming), quote_ident(view));
            match filled.contains(view) {
                true => set
                    .iter()
                    .cloned()
                    .chain([sql.clone(), format!("ANALYZE {name}")])
                    .collect(),
                false => vec![format!("{sql} WITH NO DATA")],
            }
        });
        Ok(statements.collect())
    }
}

const FILLING: &str = "filling materialized views";

/// The settings of the mover's sessions that a query could show.
const SETTINGS: [&str; 8] = [
    "datestyle",
    "intervalstyle",
    "timezone",
    "extra_float_digits",
    "bytea_output",
    "xmloption",
    "lc_monetary",
    "array_nulls",
];
