"""mmdata: raw images, video, audio and text in, verified and reproducible shards out."""

__version__ = "0.1.0"
