"""The modules that worker and sandbox processes of scan and build start with: imported once, by the server that forks
them. Names only: importing this costs nothing."""

from __future__ import annotations

MODULES = (
    "mmdata.build",
    "mmdata.engines.worker",
    "mmdata.media.audio",
    "mmdata.media.image",
    "mmdata.media.sandboxed",
    "mmdata.media.video",
    "mmdata.operators.audio",
    "mmdata.operators.image",
    "mmdata.operators.measure",
    "mmdata.operators.process",
    "mmdata.operators.text",
    "mmdata.operators.video",
    "mmdata.report.sheets",
    "mmdata.scan",
    "PIL.JpegImagePlugin",
    "PIL.PngImagePlugin",
    "PIL.WebPImagePlugin",
)
"""One list for both, so that a build that scans first needs one server."""
