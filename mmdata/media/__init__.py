"""Image, video and audio: probe, decode, encode, and the sandbox that decoders run in. Knows no recipe and no shard."""
