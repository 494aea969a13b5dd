"""Where samples come from: each source lists partitions and yields `SourceSample`s. No media byte is decoded here."""
