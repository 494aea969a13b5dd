"""Image, video and audio: probe, decode, encode, and the sandbox in which decoders run. Knows no recipe and no shard."""
