"""Floor 1: pure functions on arrays that decide order, buckets, packs and shards. No I/O, no media, no torch."""
