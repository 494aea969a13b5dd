"""Plots as SVG text, ready to be put into an HTML page. Equal data gives equal bytes: no clock, no random ids."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

INK, BAR, EDGE = "#334155", "#5b8def", "#d9480f"


def histogram(
    values: npt.NDArray[Any], title: str, unit: str, *, edges: Sequence[float] = (), log: bool = False
) -> str:
    """Histogram of `values` [N] as SVG, with vertical lines at `edges`; `log` spaces the bins by ratio (aspect,
    lengths)."""
    figure, axes = _figure(title)
    positive = values[values > 0] if log else values
    if len(positive):
        low, high = float(positive.min()), float(positive.max())
        if low == high:
            low, high = (low / 1.1, high * 1.1) if log else (low - 0.5, high + 0.5)
        bins = np.geomspace(low, high, 41) if log else np.linspace(low, high, 41)
        axes.hist(positive, bins=bins, color=BAR)
        if log:
            _plain_log_axis(axes, (1.0, 2.0, 5.0) if high < 10_000 * low else (1.0,))
    for edge in edges:
        axes.axvline(edge, color=EDGE, linewidth=0.8)
    axes.set_xlabel(unit)
    axes.set_ylabel("samples")
    return _svg(figure)


def _plain_log_axis(axes: Any, steps: tuple[float, ...]) -> None:
    """Plain numbers at these steps of each decade. matplotlib's own powers of ten are typeset: a second a plot."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=steps))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def bars(names: Sequence[str], counts: Sequence[int], title: str) -> str:
    """Horizontal bars, the first name on top, as SVG."""
    figure, axes = _figure(title, height=0.8 + 0.26 * len(names))
    axes.barh(range(len(names)), counts, color=BAR)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel("samples")
    for row, count in enumerate(counts):
        axes.annotate(f" {count:,}", (count, row), va="center", fontsize=8, color=INK)
    axes.margins(x=0.12)
    return _svg(figure)


def _figure(title: str, height: float = 2.6) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, height), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, fontsize=10, loc="left", color=INK)
    axes.tick_params(labelsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def _svg(figure: Any) -> str:
    import matplotlib

    out = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "tessera", "svg.fonttype": "none", "font.size": 9}):
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    return re.sub(r"^.*?(?=<svg)", "", text, count=1, flags=re.DOTALL)
