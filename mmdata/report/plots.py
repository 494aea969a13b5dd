"""Histograms as SVG text, ready to be put into an HTML page. Equal data gives equal bytes: no clock, no random ids."""

from __future__ import annotations

import importlib
import io
import re
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mmdata.report.text import number

INK, SOFT, BAR, EDGE = "#1e293b", "#64748b", "#5b8def", "#d9480f"

BINS = 40

ASPECTS = {
    1 / 4: "1:4",
    1 / 3: "1:3",
    1 / 2: "1:2",
    2 / 3: "2:3",
    1.0: "1:1",
    3 / 2: "3:2",
    2.0: "2:1",
    3.0: "3:1",
    4.0: "4:1",
}
"""Ticks of an axis of aspect ratios (width : height)."""


def expect() -> None:
    """Plots will be drawn later: matplotlib, whose import takes most of a second, is imported meanwhile."""
    threading.Thread(target=importlib.import_module, args=("matplotlib.figure",), daemon=True).start()


def histogram(
    values: npt.NDArray[Any],
    title: str,
    unit: str,
    *,
    edges: Sequence[float] = (),
    edge_name: str = "bucket",
    log: bool = False,
    ticks: dict[float, str] | None = None,
) -> str:
    """Histogram of `values` [N], all finite, as SVG, with dashed lines at `edges`. `log` spaces the bins by ratio and
    leaves out what is not positive; `ticks` names places on the axis."""
    figure, axes = _figure(title)
    shown = values[values > 0] if log else values
    marks = [edge for edge in edges if edge > 0 or not log]
    if len(shown):
        low, high = float(min(shown.min(), *marks, shown.max())), float(max(shown.max(), *marks, shown.min()))
        if low == high:
            low, high = (low / 1.1, high * 1.1) if log else (low - 0.5, high + 0.5)
        if log:
            axes.set_xscale("log")
            bins = np.geomspace(low, high, BINS + 1)
            bins[0], bins[-1] = low, high
        else:
            bins = np.linspace(low, high, BINS + 1)
        counts, _ = np.histogram(shown, bins=bins)
        axes.bar(bins[:-1], counts, width=np.diff(bins), align="edge", color=BAR, linewidth=0)
        margin = (high / low) ** 0.03 if log else (high - low) * 0.03
        axes.set_xlim(*((low / margin, high * margin) if log else (low - margin, high + margin)))
    for position, edge in enumerate(marks):
        label = f"{edge_name}{'s' if len(marks) > 1 else ''}" if position == 0 else None
        axes.axvline(edge, color=EDGE, linewidth=0.9, linestyle=(0, (4, 2)), label=label)
    if marks:
        axes.legend(frameon=False, fontsize=8, loc="best")
    _label_axes(axes, unit, ticks if log else None, log)
    if not log and len(shown) and np.all(shown == np.floor(shown)):
        axes.xaxis.get_major_locator().set_params(integer=True)
    return _svg(figure)


def _label_axes(axes: Any, unit: str, ticks: dict[float, str] | None, log: bool) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

    axes.set_xlabel(unit, color=SOFT)
    axes.set_ylabel("samples", color=SOFT)
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    if ticks is not None:
        low, high = axes.get_xlim()
        inside = [place for place in ticks if low <= place <= high]
        axes.xaxis.set_major_locator(FixedLocator(inside))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: ticks[min(ticks, key=lambda t: abs(t - value))]))
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: number(round(value, 10))))
        if log:
            axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axes.xaxis.set_minor_locator(NullLocator())


def _figure(title: str) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 2.6), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, fontsize=10, loc="left", color=INK)
    axes.tick_params(labelsize=8, colors=SOFT)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#cbd5e1")
    return figure, axes


def _svg(figure: Any) -> str:
    import matplotlib

    out = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "tessera", "svg.fonttype": "none", "font.size": 9}):
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    text = re.sub(r"^.*?(?=<svg)", "", text, count=1, flags=re.DOTALL)
    return re.sub(r"\n\s*", "\n", text)
