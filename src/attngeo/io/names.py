"""Short names of models."""

from __future__ import annotations

import os


def short_name(model: str | os.PathLike[str]) -> str:
    """Return the last two parts of a model's path or hub id, for labels and to match the results of one model.

    >>> short_name("/home/me/models/bert/model/"), short_name("org/name"), short_name("/model")
    ('bert/model', 'org/name', 'model')
    """
    text = os.path.normpath(os.fspath(model)) if model else ""
    return "/".join(part for part in text.replace(os.sep, "/").split("/")[-2:] if part)
