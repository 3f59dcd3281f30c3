-- The definitions of those shards of the list $1 that are served here, as (object, property) and
-- value. A shard's own schema is written {shard}, so that all shards with the same definition have
-- the same text. The query that uses this follows in another file. Before it comes lent (shard_id,
-- table_name, former): the replica identities that moves have lent, which are no difference.
-- COMPRESSION stands for how a column is compressed: PostgreSQL 13 has no such column in
-- pg_attribute, and to look for it in to_jsonb(a) takes half of the time of the whole query where
-- tables have 26 columns.
, shard AS MATERIALIZED (
    SELECT s.shard_id, n.oid, n.nspname, n.nspowner, n.nspacl
    FROM pgshard.shard s JOIN pg_catalog.pg_namespace n ON n.nspname = s.schema_name
    WHERE s.state = 'serving' AND s.shard_id = ANY ($1)
), rel AS MATERIALIZED (
    SELECT s.shard_id, c.oid, c.relkind, c.relname, c.relowner, c.relacl, c.relpersistence,
        c.reloptions, c.relreplident,
        c.relrowsecurity, c.relforcerowsecurity, c.relpartbound,
        CASE c.relkind WHEN 'v' THEN 'view ' WHEN 'm' THEN 'materialized view '
            WHEN 'f' THEN 'foreign table '
            WHEN 'S' THEN 'sequence ' WHEN 'i' THEN 'index ' WHEN 'I' THEN 'index '
            WHEN 'c' THEN 'type ' ELSE 'table ' END
            || c.relname AS object
    FROM shard s JOIN pg_catalog.pg_class c ON c.relnamespace = s.oid
    WHERE c.relkind <> 't'
        -- It is made when a shard's first backfill begins, not by a migration.
        AND c.relname NOT IN ('pgshard_backfill', 'pgshard_backfill_pkey')
), proc AS MATERIALIZED (
    SELECT s.shard_id, p.oid, p.prokind, p.proowner, p.proacl,
        'function ' || p.proname || '(' || pg_catalog.pg_get_function_identity_arguments(p.oid)
            || ')' AS object
    FROM shard s JOIN pg_catalog.pg_proc p ON p.pronamespace = s.oid
), other (shard_id, class, oid, object, owner, acl, definition) AS MATERIALIZED (
    SELECT s.shard_id, 'pg_catalog.pg_statistic_ext'::pg_catalog.regclass, x.oid,
        'statistics ' || x.stxname, x.stxowner,
        NULL::pg_catalog.aclitem[],
        pg_catalog.concat_ws(' ', pg_catalog.pg_get_statisticsobjdef(x.oid),
            nullif(x.stxstattarget, -1))
    FROM shard s JOIN pg_catalog.pg_statistic_ext x ON x.stxnamespace = s.oid
    UNION ALL
    SELECT s.shard_id, 'pg_catalog.pg_type'::pg_catalog.regclass, t.oid, 'type ' || t.typname,
        t.typowner, coalesce(t.typacl, pg_catalog.acldefault('T', t.typowner)),
        pg_catalog.concat_ws(' ', t.typtype::pg_catalog.text,
            (SELECT pg_catalog.string_agg(e.enumlabel, ', ' ORDER BY e.enumsortorder)
                FROM pg_catalog.pg_enum e WHERE e.enumtypid = t.oid),
            CASE t.typtype WHEN 'd' THEN pg_catalog.format_type(t.typbasetype, t.typtypmod) END,
            CASE WHEN t.typtype = 'd' THEN nullif(t.typcollation, 0)::pg_catalog.regcollation END,
            CASE WHEN t.typnotnull THEN 'NOT NULL' END, t.typdefault,
            (SELECT pg_catalog.string_agg(pg_catalog.pg_get_constraintdef(k.oid),
                ' ' ORDER BY k.conname)
             FROM pg_catalog.pg_constraint k WHERE k.contypid = t.oid AND k.contype = 'c'),
            (SELECT pg_catalog.concat_ws(' ', pg_catalog.format_type(g.rngsubtype, NULL),
                nullif(g.rngcollation, 0)::pg_catalog.regcollation,
                nullif(g.rngsubdiff, 0)::pg_catalog.regproc,
                nullif(g.rngcanonical, 0)::pg_catalog.regproc)
             FROM pg_catalog.pg_range g WHERE g.rngtypid = t.oid))
    FROM shard s JOIN pg_catalog.pg_type t ON t.typnamespace = s.oid
    WHERE t.typtype IN ('e', 'd', 'r')
    UNION ALL
    SELECT s.shard_id, 'pg_catalog.pg_collation'::pg_catalog.regclass, c.oid,
        'collation ' || c.collname, c.collowner, NULL,
        -- The version is left out, since it belongs to the server. Some columns have other names in
        -- other versions of PostgreSQL, so only their values are compared.
        pg_catalog.concat_ws(' ', c.collprovider::pg_catalog.text, c.collcollate, c.collctype,
            CASE WHEN NOT c.collisdeterministic THEN 'not deterministic' END,
            coalesce(pg_catalog.to_jsonb(c) ->> 'colllocale',
                pg_catalog.to_jsonb(c) ->> 'colliculocale'),
            pg_catalog.to_jsonb(c) ->> 'collicurules')
    FROM shard s JOIN pg_catalog.pg_collation c ON c.collnamespace = s.oid
    UNION ALL
    SELECT s.shard_id, 'pg_catalog.pg_ts_dict'::pg_catalog.regclass, d.oid,
        'text search dictionary ' || d.dictname, d.dictowner, NULL,
        pg_catalog.concat_ws(' ', (SELECT t.tmplname FROM pg_catalog.pg_ts_template t
            WHERE t.oid = d.dicttemplate), d.dictinitoption)
    FROM shard s JOIN pg_catalog.pg_ts_dict d ON d.dictnamespace = s.oid
    UNION ALL
    SELECT s.shard_id, 'pg_catalog.pg_ts_config'::pg_catalog.regclass, c.oid,
        'text search configuration ' || c.cfgname, c.cfgowner, NULL,
        pg_catalog.concat_ws(' ', (SELECT p.prsname FROM pg_catalog.pg_ts_parser p
            WHERE p.oid = c.cfgparser),
            (SELECT pg_catalog.string_agg(g.maptokentype || ' '
                || g.mapdict::pg_catalog.regdictionary, ', ' ORDER BY g.maptokentype, g.mapseqno)
             FROM pg_catalog.pg_ts_config_map g WHERE g.mapcfg = c.oid))
    FROM shard s JOIN pg_catalog.pg_ts_config c ON c.cfgnamespace = s.oid
    UNION ALL
    SELECT s.shard_id, 'pg_catalog.pg_operator'::pg_catalog.regclass, o.oid,
        pg_catalog.format('operator %s (%s, %s)', o.oprname,
            CASE WHEN o.oprleft = 0 THEN 'NONE' ELSE pg_catalog.format_type(o.oprleft, NULL) END,
            pg_catalog.format_type(o.oprright, NULL)),
        o.oprowner, NULL,
        pg_catalog.concat_ws(' ', o.oprcode::pg_catalog.regprocedure,
            'restrict ' || nullif(o.oprrest, 0)::pg_catalog.regproc,
            'join ' || nullif(o.oprjoin, 0)::pg_catalog.regproc,
            CASE WHEN o.oprcanhash THEN 'hashes' END, CASE WHEN o.oprcanmerge THEN 'merges' END,
            'commutator ' || nullif(o.oprcom, 0)::pg_catalog.regoperator,
            'negator ' || nullif(o.oprnegate, 0)::pg_catalog.regoperator)
    FROM shard s JOIN pg_catalog.pg_operator o ON o.oprnamespace = s.oid
    UNION ALL
    SELECT s.shard_id, 'pg_catalog.pg_conversion'::pg_catalog.regclass, c.oid,
        'conversion ' || c.conname, c.conowner, NULL,
        pg_catalog.concat_ws(' ', c.conforencoding, c.contoencoding, c.conproc,
            CASE WHEN c.condefault THEN 'default' END)
    FROM shard s JOIN pg_catalog.pg_conversion c ON c.connamespace = s.oid
    UNION ALL
    SELECT s.shard_id, 'pg_catalog.pg_cast'::pg_catalog.regclass, c.oid,
        pg_catalog.format('cast (%s AS %s)', pg_catalog.format_type(c.castsource, NULL),
            pg_catalog.format_type(c.casttarget, NULL)), NULL, NULL,
        pg_catalog.concat_ws(' ', c.castmethod::pg_catalog.text, c.castcontext::pg_catalog.text,
            nullif(c.castfunc, 0)::pg_catalog.regprocedure)
    FROM pg_catalog.pg_cast c JOIN LATERAL (
        SELECT t.typnamespace FROM pg_catalog.pg_type t WHERE t.oid IN (c.castsource, c.casttarget)
            AND t.typnamespace IN (SELECT oid FROM shard)
        ORDER BY t.oid <> c.castsource LIMIT 1) t ON true
    JOIN shard s ON s.oid = t.typnamespace
), granted (shard_id, object, kind, owner, acl) AS (
    SELECT shard_id, 'the schema', 'n'::pg_catalog."char", nspowner, nspacl FROM shard
    WHERE nspacl IS NOT NULL
    UNION ALL
    SELECT shard_id, object, CASE relkind WHEN 'S' THEN 's' ELSE 'r' END::pg_catalog."char",
        relowner, relacl FROM rel WHERE relacl IS NOT NULL
    UNION ALL
    SELECT r.shard_id, r.object || ', column ' || a.attname, 'c', r.relowner, a.attacl
    FROM rel r JOIN pg_catalog.pg_attribute a ON a.attrelid = r.oid AND a.attacl IS NOT NULL
        AND NOT a.attisdropped
    UNION ALL
    SELECT shard_id, object, 'f', proowner, coalesce(proacl, pg_catalog.acldefault('f', proowner))
    FROM proc
    UNION ALL
    SELECT shard_id, object, 'T', owner, acl FROM other WHERE acl IS NOT NULL
), property (shard_id, object, property, value) AS (
    SELECT shard_id, object, '',
        pg_catalog.concat_ws(' ', CASE relpersistence WHEN 'u' THEN 'unlogged' END,
        CASE WHEN relrowsecurity THEN 'row security' END,
        CASE WHEN relforcerowsecurity THEN 'forced' END,
        CASE coalesce((SELECT l.former FROM lent l
            WHERE l.shard_id = rel.shard_id AND l.table_name = rel.relname),
            relreplident::pg_catalog.text)
            WHEN 'f' THEN 'replica identity full' WHEN 'i' THEN 'replica identity index' END,
        pg_catalog.array_to_string(reloptions, ', '),
        (SELECT 'partition of ' || o.relname FROM pg_catalog.pg_inherits h
            JOIN pg_catalog.pg_class o ON o.oid = h.inhparent
         WHERE h.inhrelid = rel.oid AND relpartbound IS NOT NULL),
        pg_catalog.pg_get_expr(relpartbound, oid),
        CASE relkind WHEN 'p' THEN pg_catalog.pg_get_partkeydef(oid)
            WHEN 'v' THEN pg_catalog.pg_get_viewdef(oid)
            WHEN 'm' THEN pg_catalog.pg_get_viewdef(oid) END)
    FROM rel WHERE relkind IN ('r', 'p', 'v', 'm', 'f')
    UNION ALL
    SELECT r.shard_id, r.object, 'order of columns',
        pg_catalog.string_agg(a.attname, ', ' ORDER BY a.attnum)
    FROM rel r JOIN pg_catalog.pg_attribute a ON a.attrelid = r.oid AND a.attnum > 0
        AND NOT a.attisdropped
    WHERE r.relkind IN ('r', 'p', 'f', 'c') GROUP BY r.shard_id, r.object
    UNION ALL
    SELECT r.shard_id, r.object, 'column ' || a.attname, pg_catalog.concat_ws(' ',
        pg_catalog.format_type(a.atttypid, a.atttypmod),
        (SELECT 'COLLATE ' || l.collname FROM pg_catalog.pg_collation l
            JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
         WHERE l.oid = a.attcollation AND a.attcollation <> t.typcollation),
        CASE WHEN a.attnotnull THEN 'NOT NULL' END,
        CASE a.attidentity WHEN 'a' THEN 'GENERATED ALWAYS AS IDENTITY'
            WHEN 'd' THEN 'GENERATED BY DEFAULT AS IDENTITY' END,
        CASE WHEN a.attgenerated <> '' THEN 'GENERATED ' || a.attgenerated::pg_catalog.text
            WHEN d.oid IS NOT NULL THEN 'DEFAULT' END,
        pg_catalog.pg_get_expr(d.adbin, d.adrelid),
        CASE WHEN a.attstorage <> t.typstorage THEN 'storage ' || a.attstorage::pg_catalog.text END,
        'compression ' || nullif(COMPRESSION, ''), 'statistics ' || nullif(a.attstattarget, -1),
        pg_catalog.array_to_string(a.attoptions, ', '))
    FROM rel r JOIN pg_catalog.pg_attribute a ON a.attrelid = r.oid AND a.attnum > 0
        AND NOT a.attisdropped
    JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
    LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    WHERE r.relkind IN ('r', 'p', 'f', 'c', 'm')
    UNION ALL
    SELECT r.shard_id, r.object, '', pg_catalog.pg_get_indexdef(r.oid)
        || CASE WHEN i.indisvalid THEN '' ELSE ', not valid' END
        || coalesce((SELECT ', attached to ' || o.relname FROM pg_catalog.pg_inherits h
            JOIN pg_catalog.pg_class o ON o.oid = h.inhparent
            WHERE h.inhrelid = r.oid), '')
    FROM rel r JOIN pg_catalog.pg_index i ON i.indexrelid = r.oid
    UNION ALL
    SELECT r.shard_id, r.object, 'what CLUSTER goes by', ''
    FROM rel r JOIN pg_catalog.pg_index i ON i.indexrelid = r.oid WHERE i.indisclustered
    UNION ALL
    SELECT r.shard_id, 'constraint ' || k.conname || ' of ' || r.relname, '',
        pg_catalog.pg_get_constraintdef(k.oid)
    FROM rel r JOIN pg_catalog.pg_constraint k ON k.conrelid = r.oid
    WHERE k.contype <> 'n' AND k.contype <> 't'
        -- A partition's constraints follow from its parent's, and have names that PostgreSQL chose.
        AND NOT (k.contype = 'f' AND k.conparentid <> 0)
    UNION ALL
    SELECT r.shard_id, r.object, '',
        pg_catalog.format('%s %s..%s by %s from %s, cache %s%s',
            pg_catalog.format_type(q.seqtypid, NULL),
            q.seqmin, q.seqmax, q.seqincrement, q.seqstart, q.seqcache,
            CASE WHEN q.seqcycle THEN ', cycle' END)
    FROM rel r JOIN pg_catalog.pg_sequence q ON q.seqrelid = r.oid
    UNION ALL
    SELECT p.shard_id, p.object, '', CASE p.prokind WHEN 'a' THEN (
            SELECT pg_catalog.concat_ws(' ', 'aggregate',
                pg_catalog.to_jsonb(g)
                    - '{aggfnoid,aggtranstype,aggmtranstype,aggsortop}'::pg_catalog.text[],
                pg_catalog.format_type(g.aggtranstype, NULL),
                pg_catalog.format_type(g.aggmtranstype, NULL), g.aggsortop::pg_catalog.regoperator)
            FROM pg_catalog.pg_aggregate g WHERE g.aggfnoid = p.oid)
        ELSE pg_catalog.pg_get_functiondef(p.oid) END FROM proc p
    UNION ALL
    SELECT r.shard_id, 'trigger ' || g.tgname || ' on ' || r.relname, '',
        pg_catalog.pg_get_triggerdef(g.oid) || CASE g.tgenabled WHEN 'O' THEN '' ELSE ', enabled '
            || g.tgenabled::pg_catalog.text END
    FROM rel r JOIN pg_catalog.pg_trigger g ON g.tgrelid = r.oid
    -- Before 15 a partition's trigger of its parent's is called internal, as those of foreign keys
    -- are.
    WHERE NOT g.tgisinternal OR g.tgparentid <> 0 AND NOT EXISTS (
        SELECT FROM pg_catalog.pg_constraint k WHERE k.oid = g.tgconstraint AND k.contype <> 't')
    UNION ALL
    -- Triggers of both tables enforce a foreign key, and a superuser can disable them.
    SELECT r.shard_id, r.object, 'triggers of constraint ' || k.conname,
        'enabled ' || pg_catalog.string_agg(DISTINCT g.tgenabled::pg_catalog.text, ', ')
    FROM rel r JOIN pg_catalog.pg_trigger g ON g.tgrelid = r.oid AND g.tgisinternal
        AND g.tgenabled <> 'O'
    JOIN pg_catalog.pg_constraint k ON k.oid = g.tgconstraint
    GROUP BY r.shard_id, r.object, k.conname
    UNION ALL
    SELECT r.shard_id, 'policy ' || p.polname || ' on ' || r.relname, '',
        pg_catalog.concat_ws(' ', p.polcmd::pg_catalog.text,
            CASE WHEN p.polpermissive THEN '' ELSE 'restrictive' END,
            p.polroles::pg_catalog.regrole[]::pg_catalog.text,
            pg_catalog.pg_get_expr(p.polqual, p.polrelid), 'check',
            pg_catalog.pg_get_expr(p.polwithcheck, p.polrelid))
    FROM rel r JOIN pg_catalog.pg_policy p ON p.polrelid = r.oid
    UNION ALL
    SELECT r.shard_id, 'rule ' || w.rulename || ' on ' || r.relname, '',
        pg_catalog.pg_get_ruledef(w.oid)
    FROM rel r JOIN pg_catalog.pg_rewrite w ON w.ev_class = r.oid WHERE w.rulename <> '_RETURN'
    UNION ALL
    SELECT shard_id, object, '', definition FROM other
    UNION ALL
    SELECT shard_id, object, 'owner', pg_catalog.pg_get_userbyid(owner) FROM other
    WHERE owner IS NOT NULL
    UNION ALL
    SELECT o.shard_id, o.object, 'comment', d.description
    FROM (SELECT shard_id, class, oid, object FROM other
          UNION ALL SELECT shard_id, 'pg_catalog.pg_proc'::pg_catalog.regclass, oid,
              object FROM proc
          UNION ALL SELECT shard_id, 'pg_catalog.pg_namespace'::pg_catalog.regclass, oid,
              'the schema' FROM shard) o
    JOIN pg_catalog.pg_description d ON d.objoid = o.oid AND d.classoid = o.class AND d.objsubid = 0
    UNION ALL
    SELECT s.shard_id, 'default privileges', pg_catalog.pg_get_userbyid(d.defaclrole) || ' on '
        || d.defaclobjtype::pg_catalog.text,
        (SELECT pg_catalog.string_agg(one::pg_catalog.text, ' ' ORDER BY one::pg_catalog.text)
            FROM pg_catalog.unnest(d.defaclacl) AS one)
    FROM shard s JOIN pg_catalog.pg_default_acl d ON d.defaclnamespace = s.oid
    UNION ALL
    SELECT o.shard_id, o.object, a.privilege_type || ' granted to '
        || CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE pg_catalog.pg_get_userbyid(a.grantee) END,
        CASE WHEN a.is_grantable THEN 'with grant option' ELSE '' END
    FROM granted o, LATERAL pg_catalog.aclexplode(o.acl) a WHERE a.grantee <> o.owner
    UNION ALL
    SELECT o.shard_id, o.object, d.privilege_type || ' taken from its owner', ''
    FROM granted o, LATERAL pg_catalog.aclexplode(pg_catalog.acldefault(o.kind, o.owner)) d
    WHERE d.grantee = o.owner AND NOT EXISTS (SELECT FROM pg_catalog.aclexplode(o.acl) a
        WHERE a.grantee = o.owner AND a.privilege_type = d.privilege_type)
    UNION ALL
    SELECT s.shard_id, 'the schema', 'owner', pg_catalog.pg_get_userbyid(s.nspowner) FROM shard s
    UNION ALL
    SELECT r.shard_id, r.object, 'owner', pg_catalog.pg_get_userbyid(r.relowner) FROM rel r
    WHERE r.relkind NOT IN ('i', 'I')
    UNION ALL
    SELECT p.shard_id, p.object, 'owner', pg_catalog.pg_get_userbyid(p.proowner) FROM proc p
    UNION ALL
    SELECT r.shard_id, r.object,
        CASE d.objsubid WHEN 0 THEN 'comment' ELSE 'comment on column ' || a.attname END,
        d.description
    FROM rel r JOIN pg_catalog.pg_description d ON d.objoid = r.oid
        AND d.classoid = 'pg_catalog.pg_class'::pg_catalog.regclass
    LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = r.oid AND a.attnum = d.objsubid
        AND d.objsubid > 0
), said AS (
    SELECT q.shard_id, pg_catalog.replace(q.object, s.nspname, '{shard}') AS object, q.property,
        pg_catalog.replace(pg_catalog.replace(coalesce(q.value, ''), '"' || s.nspname || '"',
            '{shard}'), s.nspname, '{shard}') AS value
    FROM property q JOIN shard s USING (shard_id)
)
