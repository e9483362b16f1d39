"""Names for people: short names of models, and the first of many names."""

from __future__ import annotations

import os
from collections.abc import Sequence


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
