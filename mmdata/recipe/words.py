"""Near misses: the nearest right word to a wrong one, for messages. Knows no recipe."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """The choice that `word` most likely meant, or None when nothing is near (case and `-`/`_` do not count)."""
    table = {_plain(choice): choice for choice in sorted(choices)}
    found = difflib.get_close_matches(_plain(word), table, n=1, cutoff=0.5 if len(word) <= 2 else 0.6)
    if found:
        return table[found[0]]
    plain = _plain(word)
    inside = [choice for key, choice in table.items() if len(plain) >= 3 and key.startswith(plain)]
    return inside[0] if len(inside) == 1 else None


def suggest(word: str, choices: Iterable[str]) -> str:
    """The end of a message about a wrong word: `; did you mean 'x'?`, or the list of all when nothing is near."""
    known = sorted(choices)
    near = nearest(word, known)
    if near is not None:
        return f"; did you mean '{near}'?"
    if not known:
        return ""
    shown = ", ".join(known[:24]) + (", …" if len(known) > 24 else "")
    return f"; known: {shown}"


def _plain(word: str) -> str:
    return word.lower().replace("-", "_").strip()
