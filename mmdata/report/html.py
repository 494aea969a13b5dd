"""The bricks of a report page: escaping, tables, key figures, and its style. Knows nothing of datasets."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from mmdata.report.text import number, plain

STYLE = """
:root{--ink:#1e293b;--soft:#64748b;--line:#e2e8f0;--blue:#5b8def;--paper:#fff;--tint:#f8fafc}
*{box-sizing:border-box}
body{font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif;color:var(--ink);background:var(--paper);
max-width:1120px;margin:2rem auto;padding:0 1.25rem}
h1{font-size:1.6rem;margin:0 0 .2rem}h2{font-size:1.15rem;margin:2.4rem 0 .6rem;padding-bottom:.25rem;
border-bottom:1px solid var(--line)}h3{font-size:.98rem;margin:1.3rem 0 .35rem}
h3 span,p.note{color:var(--soft);font-weight:400;font-size:.85rem}
code{font:.86em ui-monospace,monospace;background:var(--tint);padding:.05em .3em;border-radius:3px}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:.7rem;margin:1rem 0}
.figures div{background:var(--tint);border:1px solid var(--line);border-radius:8px;padding:.55rem .8rem}
.figures b{display:block;font-size:1.25rem;font-variant-numeric:tabular-nums}
.figures span{color:var(--soft);font-size:.8rem}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:.88rem}
td,th{padding:.22rem 1.1rem .22rem 0;text-align:left;vertical-align:top;overflow-wrap:anywhere}
th{color:var(--soft);font-weight:600}tr+tr td{border-top:1px solid #f1f5f9}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
td.bar{min-width:140px}td.bar i{display:block;height:.7rem;margin-top:.35rem;background:var(--blue);border-radius:2px}
.sheet{display:flex;flex-wrap:wrap;gap:.7rem;margin:.3rem 0 .8rem}
figure{margin:0;width:168px}figure img{max-width:160px;max-height:160px;border-radius:4px;display:block}
figure svg{width:160px;height:48px;background:var(--tint);border-radius:4px;display:block}
figure blockquote{margin:0;padding:.4rem .5rem;width:160px;height:5.4rem;overflow:hidden;font-size:.75rem;
line-height:1.35;background:var(--tint);border-radius:4px}
figcaption{font-size:.72rem;line-height:1.35;color:var(--soft);overflow-wrap:anywhere;margin-top:.2rem}
figcaption q{display:block;color:var(--ink)}
.plots{display:flex;flex-wrap:wrap;gap:1rem}.plots svg{width:520px;max-width:100%;height:auto}
"""


class Bar(float):
    """A share, 0 to 1, shown as a bar."""


def escape(value: object) -> str:
    """Any text as HTML text or attribute: control characters as escapes, markup as text."""
    return html.escape(plain(value))


def page(title: str, parts: Sequence[str]) -> str:
    """A whole page without outside parts."""
    head = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>"
    )
    return f"{head}\n<body>\n" + "\n".join(parts) + "\n</body></html>\n"


def figures(pairs: Sequence[tuple[str, str]]) -> str:
    """Key figures: (large text, what it is)."""
    cards = "".join(f"<div><b>{escape(large)}</b><span>{escape(small)}</span></div>" for large, small in pairs)
    return f'<div class="figures">{cards}</div>'


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table; columns without any value are left out. Numbers are right-aligned, a `Bar` is drawn."""
    kept = [i for i in range(len(head)) if any(row[i] not in (None, "") for row in rows)]
    numeric = {i for i in kept if all(isinstance(row[i], (int, float)) or row[i] is None for row in rows)}
    numeric -= {i for i in kept if any(isinstance(row[i], Bar) for row in rows)}
    top = "".join(f"<th{' class=n' if i in numeric else ''}>{escape(head[i])}</th>" for i in kept)
    body = "".join(f"<tr>{''.join(_cell(row[i], i in numeric) for i in kept)}</tr>" for row in rows)
    return f'<div class="scroll"><table><tr>{top}</tr>{body}</table></div>'


def _cell(value: Any, right: bool) -> str:
    if isinstance(value, Bar):
        return f'<td class="bar"><i style="width:{max(1, round(100 * value))}%"></i></td>'
    if right:
        return f"<td class=n>{'' if value is None else number(value)}</td>"
    return f"<td>{'' if value is None else escape(value)}</td>"
