"""What the flows are made of: cache keys, shards over Dask, the supervised training process, artifacts, and one module a stage."""
