//! The obstacles to an import, each kind with a name that does not change.

use schemars::JsonSchema;
use serde::Serialize;

/// How much an obstacle matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// No import is possible as it is, and no change of the schema or the application helps.
    Impossible,
    /// It has to be changed before an import.
    Change,
    /// It may be harmless: find out before an import.
    Check,
}

macro_rules! kinds {
    ($($variant:ident $id:literal $level:ident $title:literal $remedy:literal;)+) => {
        /// A kind of obstacle.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[allow(missing_docs, reason = "the titles say what they are")]
        pub(crate) enum Kind {
            $($variant,)+
        }

        impl Kind {
            /// Every kind, in the order in which they are reported.
            pub(crate) const ALL: &'static [Kind] = &[$(Kind::$variant,)+];

            /// The name for programs. It does not change.
            pub(crate) const fn id(self) -> &'static str {
                match self { $(Kind::$variant => $id,)+ }
            }

            pub(crate) const fn level(self) -> Level {
                match self { $(Kind::$variant => Level::$level,)+ }
            }

            /// What it is, as a sentence without its objects.
            pub(crate) const fn title(self) -> &'static str {
                match self { $(Kind::$variant => $title,)+ }
            }

            /// What to do about it: an imperative.
            pub(crate) const fn remedy(self) -> &'static str {
                match self { $(Kind::$variant => $remedy,)+ }
            }
        }
    };
}

kinds! {
    VersionTooOld "version_too_old" Impossible
        "The server is older than PostgreSQL 14"
        "upgrade it first";
    KeyType "key_type" Impossible
        "The key's type is neither an integer, a text nor a UUID"
        "choose another key";
    IdTooLarge "id_too_large" Impossible
        "IDs are as large as those that shards make, as those of another snowflake scheme are"
        "choose an epoch that leaves room (--epoch), or give the rows other IDs";
    KeyNotUnique "key_not_unique" Change
        "The key is not unique in its own table"
        "make it the primary key, or add a unique constraint over that column alone";
    LogicalDecodingOff "logical_decoding_off" Change
        "The server cannot decode its WAL"
        "set wal_level = logical (rds.logical_replication = 1 on RDS) and restart the server";
    ReplicationRefused "replication_refused" Change
        "The server accepts no replication connection of this role"
        "ALTER ROLE … REPLICATION (GRANT rds_replication on RDS), and allow it in pg_hba.conf";
    ReplicationSlots "replication_slots" Change
        "No replication slot or walsender is free"
        "raise max_replication_slots and max_wal_senders, and restart the server";
    PreparedTransactions "prepared_transactions" Change
        "Transactions are prepared for two-phase commit and not ended"
        "end them with COMMIT PREPARED or ROLLBACK PREPARED: a new slot waits for them";
    TwoOwners "two_owners" Change
        "Rows belong to two keys, and a shard has one"
        "choose a column (--by TABLE.COLUMN), or store the row twice, once for each key";
    SeveralPaths "several_paths" Change
        "Several foreign keys lead to the key, and none is better"
        "choose one (--by TABLE.COLUMN), and drop the foreign keys that lead to other keys";
    ForeignKeyAcrossKeys "foreign_key_across_keys" Change
        "Rows refer to rows of another key, which will be in another shard"
        "drop the foreign key, and read the other row by its own key; or choose another key";
    NullableKey "nullable_key" Change
        "Rows may have no key"
        "give each row a key and SET NOT NULL; or let the table stay, or the rows without one \
            (--stays)";
    Polymorphic "polymorphic" Change
        "The table that a row refers to is named in the row: no foreign key leads to the key"
        "add the key as a column, and write it with each row; or let the table stay (--stays)";
    ForeignTable "foreign_table" Change
        "Foreign tables have rows on another server"
        "import their rows into a table first, or let it stay and remove the key's column";
    ForeignPartition "foreign_partition" Change
        "A partition is a foreign table"
        "copy its rows into an ordinary partition, or detach it";
    IdInteger "id_integer" Change
        "IDs, or columns that refer to them, are narrower than the 63 bits of shards' IDs"
        "change them to bigint, with all that refer to them, and the sequences too";
    IdNegative "id_negative" Change
        "IDs are negative"
        "give those rows positive IDs";
    NoPrimaryKey "no_primary_key" Change
        "Tables have no primary key"
        "add one: changes are applied to shards by it";
    UniqueWithoutKey "unique_without_key" Change
        "A shard can only keep values unique within itself"
        "add the key to the constraint, make it a look-up, or drop it";
    ExclusionWithoutKey "exclusion_without_key" Change
        "A shard can only exclude rows within itself"
        "add the key to the constraint with =, or drop it";
    ForeignKeyToStays "foreign_key_to_stays" Change
        "Foreign keys lead to tables that stay"
        "drop them; or make the table a reference table (--reference), or give it the key";
    ForeignKeyFromStays "foreign_key_from_stays" Change
        "Foreign keys of tables that are not imported lead to imported ones"
        "drop them: their rows are not where the imported rows will be";
    ViewAcross "view_across" Change
        "Views read imported tables and tables that stay"
        "drop them, or let the application read both";
    RuleAcross "rule_across" Change
        "Rules are bound to imported tables and to tables that stay"
        "drop them, or write a trigger";
    FunctionBound "function_bound" Change
        "Functions are bound to imported tables by a body in SQL, and could write past the fence"
        "give them a body that is text (AS '…'), or make them STABLE if they only read";
    InheritanceAcross "inheritance_across" Change
        "Imported tables inherit from tables that stay, or those from imported ones"
        "ALTER TABLE … NO INHERIT";
    SharedSequence "shared_sequence" Change
        "Imported tables share a sequence with other tables"
        "give each table a sequence of its own";
    Unlogged "unlogged" Change
        "Unlogged tables are not in the stream of changes"
        "ALTER TABLE … SET LOGGED, or let them stay";
    RowSecurityForced "row_security_forced" Change
        "Row level security is forced, and could hide rows from the copy"
        "ALTER ROLE … BYPASSRLS for the role that imports";
    LargeObjects "large_objects" Change
        "Columns may hold numbers of large objects, which are in no schema"
        "keep their bytes in a bytea column or an object store";
    NameClash "name_clash" Change
        "Imported tables of several schemas have the same name, and a shard has one schema"
        "rename them";
    NotCarried "not_carried" Change
        "Neither an import nor a move carries this (docs/carried.md)"
        "see each";
    StatementsWithoutKey "statements_without_key" Change
        "Statements on imported tables do not name the key"
        "name the key in each, or send it to all shards if it is rare and reads only";
    StatementsAcross "statements_across" Change
        "Statements use imported tables and tables that stay"
        "read both in the application";
    StatementsWithSchema "statements_with_schema" Change
        "Statements name the schema of imported tables, which get another"
        "leave the schema out";
    StatementsById "statements_by_id" Check
        "Statements name an ID, and not the key; IDs from before the import have no shard"
        "name the key as well, or keep a look-up of the IDs";
    StatementsUnreadable "statements_unreadable" Check
        "Statements that pgshard cannot parse"
        "look at them yourself";
    ForeignKeyUnverified "foreign_key_unverified" Check
        "Foreign keys are outside the path to the key, and no rows could be compared"
        "make sure that both rows always have the same key";
    OnlyKeyTable "only_key_table" Check
        "Nothing leads from any other table to the key"
        "add foreign keys, or call the columns after the key's table, as in user_id";
    ReferenceAcrossKeys "reference_across_keys" Check
        "Columns seem to refer to rows of another key, which will be in another shard"
        "read the other row by its own key";
    KeyByName "key_by_name" Check
        "No foreign key says so: the key, or the path to it, was found by names of columns"
        "make sure that it is right";
    ReferenceWritten "reference_written" Check
        "Tables that each host would get are written often, and each write has to reach all hosts"
        "give a table the key as a column if its rows belong to keys; else expect them to lag";
    LargeStays "large_stays" Check
        "Large tables stay, and sharding takes nothing off their server"
        "add the key as a column if their rows belong to keys; else plan a server for them";
    SequenceNumber "sequence_number" Check
        "Columns get numbers from a sequence, and each shard has its own"
        "make sure that the same number in two shards does no harm; else take it from one place";
    IdByApplication "id_by_application" Check
        "The database does not number these primary keys, and a shard keeps them unique within \
            itself"
        "make sure that no two keys get the same, as with UUIDs; else make it a look-up";
    Inheritance "inheritance" Check
        "Tables inherit, so that no constraint keeps their IDs unique together"
        "look for IDs that parent and child share";
    View "view" Check
        "Views read imported tables: in a shard they show the rows of that shard"
        "look for those that count or rank the rows of all keys";
    MaterializedView "materialized_view" Check
        "Materialized views read imported tables: each shard has its own, and refreshes it"
        "look for those that count or rank the rows of all keys";
    Trigger "trigger" Check
        "Triggers run in each shard, after the switch"
        "make sure that their functions write to nothing that stays, and to no other key's rows";
    Publication "publication" Check
        "Publications have imported tables, and end with the switch"
        "let their readers follow the shards (docs/cdc.md)";
    Extension "extension" Check
        "Imported tables use extensions"
        "install them on the new hosts";
    Role "role" Check
        "Roles have rights on imported tables, or are named by their policies"
        "create them on the new hosts";
    SearchIndex "search_index" Check
        "Indexes for search are of one shard: a search over all keys has to ask every shard"
        "search by key; or keep a search engine for the rest";
    Skew "skew" Check
        "One key has a large share of the rows, and all of them stay in one shard"
        "make sure that a host can bear it, or choose a finer key";
}

/// One object that is in the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BlockingObject {
    pub(crate) kind: Kind,
    /// The object: `photos.user_id`.
    pub(crate) object: String,
    /// What is particular about it; may be empty.
    pub(crate) detail: String,
    /// What to do about this one, where that differs from the kind's remedy.
    pub(crate) remedy: Option<String>,
}

impl BlockingObject {
    pub(crate) fn new(
        kind: Kind,
        object: impl Into<String>,
        detail: impl Into<String>,
    ) -> BlockingObject {
        BlockingObject {
            kind,
            object: object.into(),
            detail: detail.into(),
            remedy: None,
        }
    }
}

/// Something that stands in the way, with each object that it is about.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Obstacle {
    /// Its name for programs. It does not change.
    pub id: &'static str,
    /// How much it matters.
    pub level: Level,
    /// What it is.
    pub title: &'static str,
    /// What to do about it: an imperative.
    pub remedy: &'static str,
    /// What it is about.
    pub objects: Vec<ObstacleObject>,
}

/// An object that an obstacle is about.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ObstacleObject {
    /// Its name: `photos.user_id`.
    pub name: String,
    /// What is particular about it; may be empty.
    pub detail: String,
    /// What to do about this one, where that is not the same for all.
    pub remedy: Option<String>,
}

/// The obstacles, each kind once, in the order of the kinds.
pub(crate) fn grouped(found: Vec<BlockingObject>) -> Vec<Obstacle> {
    let obstacle = |kind: &Kind| {
        let of_kind = found.iter().filter(|one| one.kind == *kind);
        let mut objects: Vec<ObstacleObject> = Vec::new();
        for one in of_kind {
            let is_new = objects
                .iter()
                .all(|known| known.name != one.object || known.detail != one.detail);
            if is_new {
                objects.push(ObstacleObject {
                    name: one.object.clone(),
                    detail: one.detail.clone(),
                    remedy: one.remedy.clone(),
                });
            }
        }
        (!objects.is_empty()).then(|| Obstacle {
            id: kind.id(),
            level: kind.level(),
            title: kind.title(),
            remedy: kind.remedy(),
            objects,
        })
    };
    let mut obstacles: Vec<Obstacle> = Kind::ALL.iter().filter_map(obstacle).collect();
    obstacles.sort_by_key(|obstacle| obstacle.level);
    obstacles
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_kind_has_a_name_of_its_own() {
        let names: BTreeSet<&str> = Kind::ALL.iter().map(|kind| kind.id()).collect();
        assert_eq!(names.len(), Kind::ALL.len());
    }
}
