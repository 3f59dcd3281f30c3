//! Whether anything was done to a schema's definition or border since it was looked at, for where there is no time to
//! look again: behind the fence. Border and stamp find out what belongs to the schema before they look at that, which
//! is most of what they cost, and after a swap all of it is planned anew. Here it is known.
//!
//! Invariant: equal digests mean that nothing was done. An object that comes anew depends on one that is known, so
//! `pg_depend` says so, as it does of whatever crosses the border; a row that is written has another `xmin`. Unequal
//! ones mean nothing: the full look decides.

use tokio_postgres::GenericClient;
use tokio_postgres::types::Type;

use crate::schema::catalog::objects_sql;

const LIST: &str = concat!(
    objects_sql!(),
    "SELECT DISTINCT class::pg_catalog.oid, oid FROM part \
     WHERE class <> 'pg_catalog.pg_publication_rel'::pg_catalog.regclass"
);

const DIGEST: &str = include_str!("sql/digest.sql");

/// A digest of a schema's rows in the catalogs, with what belonged to it then. It means something on the same server
/// only.
#[derive(Clone, Debug)]
pub(crate) struct CatalogDigest {
    schema: u32,
    classes: Vec<u32>,
    oids: Vec<u32>,
    digest: String,
}

impl CatalogDigest {
    /// The digest of a schema by its OID. The client is in a `REPEATABLE READ` transaction, in which both statements
    /// see the same.
    ///
    /// What is looked at after that and found right is right for as long as the digest [is the
    /// same](CatalogDigest::is_same).
    ///
    /// Locks: none but ACCESS SHARE on catalogs.
    ///
    /// # Errors
    /// When the server refuses. A schema that does not exist has a digest too, that of nothing.
    ///
    /// # Cancel safety
    /// Only reads.
    pub(crate) async fn take<C: GenericClient + Sync>(
        client: &C,
        schema: u32,
    ) -> Result<CatalogDigest, tokio_postgres::Error> {
        let rows = client.query_typed(LIST, &[(&schema, Type::OID)]).await?;
        let (mut classes, mut oids) = (Vec::with_capacity(rows.len()), Vec::with_capacity(rows.len()));
        for row in rows {
            classes.push(row.try_get(0)?);
            oids.push(row.try_get(1)?);
        }
        let mut taken = CatalogDigest { schema, classes, oids, digest: String::new() };
        taken.digest = taken.read(client).await?;
        Ok(taken)
    }

    /// Whether nothing was done to the schema since, whatever it is called now.
    ///
    /// Locks: none but ACCESS SHARE on catalogs.
    ///
    /// # Errors
    /// When the server refuses.
    ///
    /// # Cancel safety
    /// Only reads.
    pub(crate) async fn is_same<C: GenericClient + Sync>(&self, client: &C) -> Result<bool, tokio_postgres::Error> {
        Ok(self.read(client).await? == self.digest)
    }

    async fn read<C: GenericClient + Sync>(&self, client: &C) -> Result<String, tokio_postgres::Error> {
        let CatalogDigest { schema, classes, oids, .. } = self;
        let params: &[(&(dyn tokio_postgres::types::ToSql + Sync), Type)] =
            &[(schema, Type::OID), (classes, Type::OID_ARRAY), (oids, Type::OID_ARRAY)];
        let rows = client.query_typed(DIGEST, params).await?;
        rows.first().map_or(Ok(String::new()), |row| row.try_get(0))
    }
}
