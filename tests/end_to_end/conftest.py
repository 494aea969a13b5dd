"""Media that the end-to-end tests share."""

from __future__ import annotations

from pathlib import Path

import job_kit
import pytest


@pytest.fixture(scope="session")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with pictures, clips, recordings, captions and two broken files; nobody may change it."""
    folder = tmp_path_factory.mktemp("media")
    job_kit.make_media(folder)
    return folder
