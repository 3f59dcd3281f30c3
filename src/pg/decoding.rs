//! Conditions in SQL about logical decoding, which online moves read their changes with: whether a
//! server can decode its WAL, and whether a role may use that.

/// Whether the server can decode its WAL. From version 19 on `wal_level = replica` is enough: the
/// first logical slot raises the effective level.
pub(crate) const CAN_DECODE: &str = "(pg_catalog.current_setting('wal_level') = 'logical'
    OR pg_catalog.current_setting('server_version_num')::pg_catalog.int4 >= 190000
        AND pg_catalog.current_setting('wal_level') <> 'minimal')";

/// The role with members that may use replication slots on Amazon RDS and Aurora, where no role of
/// a customer has the attribute REPLICATION.
pub(crate) const RDS_REPLICATION: &str = "rds_replication";

/// Whether a role, given by an expression for its OID, may create replication slots, as far as the
/// catalogs show: it is a superuser, has REPLICATION, or is a member of [`RDS_REPLICATION`].
pub(crate) fn may_replicate(role: &str) -> String {
    format!(
        "(EXISTS (SELECT FROM pg_catalog.pg_roles r
            WHERE r.oid = {role} AND (r.rolsuper OR r.rolreplication))
        OR EXISTS (SELECT FROM pg_catalog.pg_roles g WHERE g.rolname = '{RDS_REPLICATION}'
            AND pg_catalog.pg_has_role({role}, g.oid, 'USAGE')))"
    )
}
