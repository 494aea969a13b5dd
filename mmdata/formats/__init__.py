"""Shard file formats, one file at a time: read, write, index. Knows no dataset folder."""
