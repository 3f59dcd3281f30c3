"""Django's PostgreSQL backend for one shard: the shard's schema in the SQL, the host's connections, and moves unnoticed."""
