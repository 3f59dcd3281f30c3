-- Which server each host of the cluster is, as far as this host has been told: so that a former primary, or a server of another
-- cluster, under a host's name is known for what it is.
--
-- Locks: none on a table that was there.
--
-- `generation`: 1 since bootstrap, one more each time that an operator has accepted another server for the host. Of a host the
-- last one holds. `timeline`: the highest at which it was seen. A row only grows, in its timeline.
CREATE TABLE pgshard.identity (
    host_name         text    NOT NULL,
    generation        integer NOT NULL CHECK (generation >= 1),
    system_identifier bigint  NOT NULL,
    timeline          bigint  NOT NULL,
    seen_at           timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (host_name, generation)
);
GRANT SELECT ON pgshard.identity TO PUBLIC;
