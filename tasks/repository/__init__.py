"""Single-fix repository tasks: from distribution patches, from consecutive releases, from any git repository."""
