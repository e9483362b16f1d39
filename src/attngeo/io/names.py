"""Names for people: short names of models, all or the first of many names, the name that was meant."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

_CUT = "…"  # stands for the parts that are left out at the front of a path


def short_name(model: str | os.PathLike[str]) -> str:
    """Return the last two parts of a model's path or hub id, for labels and to match the results of one model.

    A name that `distinct_names` made is short already and stays as it is.

    >>> short_name("/home/me/models/bert/model/"), short_name("org/name"), short_name("/model")
    ('bert/model', 'org/name', 'model')
    """
    parts = _parts(model)
    return "/".join(parts if parts[:1] == [_CUT] else parts[-2:])


def distinct_names(models: Sequence[str | os.PathLike[str]]) -> list[str]:
    """Return a name for each model that no other has: its short name, or as much more of its path as is needed.

    Models of the same path are numbered.

    >>> distinct_names(["/x/run/checkpoint", "/y/run/checkpoint", "org/name"])
    ['…/x/run/checkpoint', '…/y/run/checkpoint', 'org/name']
    >>> distinct_names(["BertModel", "BertModel"])
    ['BertModel (1)', 'BertModel (2)']
    """
    paths = [_parts(model) for model in models]
    names = [_distinct_end(path, [other for other in paths if other != path]) for path in paths]
    numbers = [names[: index + 1].count(name) for index, name in enumerate(names)]
    return [
        f"{name} ({number})" if names.count(name) > 1 else name for name, number in zip(names, numbers, strict=True)
    ]


def _parts(model: str | os.PathLike[str]) -> list[str]:
    text = os.path.normpath(os.fspath(model)) if model else ""
    return [part for part in text.replace(os.sep, "/").split("/") if part]


def _distinct_end(path: list[str], others: Sequence[list[str]]) -> str:
    """Return the shortest end of a path, of two parts or more, in which no other path ends; else the whole path."""
    for count in range(2, len(path)):
        end = path[-count:]
        if all(other[-count:] != end for other in others):
            return "/".join(end if count == 2 else [_CUT, *end])
    return "/".join(path if len(path) < 3 else [_CUT, *path])


def joined_names(names: Iterable[str]) -> str:
    """Return all names as a phrase; empty if there are none.

    >>> joined_names(["a"]), joined_names(["a", "b"]), joined_names(["a", "b", "c"])
    ('a', 'a and b', 'a, b and c')
    """
    *others, last = [*names] or [""]
    return f"{', '.join(others)} and {last}" if others else last


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
