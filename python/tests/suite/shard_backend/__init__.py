"""The backend under Django's own tests, which know two databases: `default` is shard 0, and `other` is shard 1."""
