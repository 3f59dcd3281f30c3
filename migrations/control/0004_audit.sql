-- The audit of a shard's move: what the source had behind the fence, compared with what the target had before its first foreign
-- write. `audit_found`: what differs (table, keys, up to ten rows), and what was left out, and why.
--
-- Locks: ACCESS EXCLUSIVE on pgshard.move, for a moment.
ALTER TABLE pgshard.move
    -- Null: the shard is not kept, or was kept before there were audits.
    ADD COLUMN audit text CHECK (audit IN ('under way', 'audited', 'differs', 'not audited')),
    ADD COLUMN audited_at timestamptz,
    ADD COLUMN audit_found jsonb NOT NULL DEFAULT '{}';

-- Whatever was moved blocking was compared behind its fence.
UPDATE pgshard.move SET audit = 'audited', audited_at = updated_at WHERE mode = 'blocking' AND phase = 'kept';
