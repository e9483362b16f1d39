"""Names for people: short names of models, the first of many names, the name that was meant."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence


def short_name(model: str | os.PathLike[str]) -> str:
    """Return the last two parts of a model's path or hub id, for labels and to match the results of one model.

    >>> short_name("/home/me/models/bert/model/"), short_name("org/name"), short_name("/model")
    ('bert/model', 'org/name', 'model')
    """
    text = os.path.normpath(os.fspath(model)) if model else ""
    return "/".join(part for part in text.replace(os.sep, "/").split("/")[-2:] if part)


def first_names(names: Sequence[str], most: int) -> str:
    """Return at most `most` names with commas between them, and how many there are besides.

    >>> first_names(["L0H1", "L0H2", "L3H0"], 2)
    'L0H1, L0H2 and 1 more'
    """
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def nearest_name(name: str, names: Iterable[str]) -> str:
    """Return the end of a message about a name that does not exist: the nearest one that does, or all of them.

    >>> nearest_name("scor", ["score", "prune"]), nearest_name("xyz", ["score", "prune"])
    (", did you mean 'score'?", '; there are score, prune')
    """
    from difflib import get_close_matches

    near = get_close_matches(name, known := list(names), 1)
    return f", did you mean {near[0]!r}?" if near else f"; there are {', '.join(known)}"
