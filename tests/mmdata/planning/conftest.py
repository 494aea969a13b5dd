"""Reference length distributions, where they lie beside the checkout."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

REFERENCE = Path(__file__).resolve().parents[4] / "shared" / "tools" / "reference_lengths.py"


@pytest.fixture(scope="session")
def reference_lengths() -> Callable[[str], np.ndarray]:
    """`lengths(name)` of the four reference distributions, 20,000 values each, seed 0."""
    if not REFERENCE.exists():
        pytest.skip(f"the reference lengths are not at {REFERENCE}")
    spec = importlib.util.spec_from_file_location("reference_lengths", REFERENCE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.lengths
