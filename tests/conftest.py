"""Fixtures shared by all tests: the real media corpus, where it lies beside the checkout, and an S3 server."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

CORPORA = Path(__file__).resolve().parents[2] / "shared" / "corpora"


sys.path.insert(0, str(Path(__file__).parent / "support"))  # what several tests share
from s3_server import s3  # noqa: E402, F401 (a fixture)


@pytest.fixture(scope="session")
def corpora() -> Path:
    """Folder of real media files with expected values; tests that need it are skipped where it is absent."""
    if not (CORPORA / "truth.jsonl").exists():
        pytest.skip(f"the media corpus is not at {CORPORA}")
    return CORPORA


@pytest.fixture(scope="session")
def truth(corpora: Path) -> dict[str, dict[str, Any]]:
    """What the reference tools say of each corpus file, by path relative to the corpus."""
    with open(corpora / "truth.jsonl", encoding="utf-8") as lines:
        return {row["file"]: row for row in map(json.loads, lines)}
