"""Django's PostgreSQL backend for one shard: it puts the shard's schema in the SQL, uses the host's
connections, and hides moves."""
