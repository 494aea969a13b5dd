"""Engines: run these numbers of a task, with workers that may die. Knows nothing of shards or media."""
