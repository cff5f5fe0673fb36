"""From graph nodes to a published dataset: synthesis, splits, dataset, catalogue."""
