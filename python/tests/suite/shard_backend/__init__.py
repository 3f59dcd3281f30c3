"""The backend under Django's own tests, which use two databases: `default` is shard 0, and `other`
is shard 1."""
