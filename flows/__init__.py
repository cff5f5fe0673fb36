"""Orchestration: configuration, run directories, Prefect flows over Dask shards, and the `ninefold` command line.

Prefect and Dask appear here and nowhere below.
"""
