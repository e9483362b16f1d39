"""The blocks of a UNet, and the config values that differ between them."""

from __future__ import annotations

import re
from typing import Any

_BLOCK = re.compile(r"\b(down|mid|up)_blocks?\b(?:\.(\d{1,9}))?")


def of_block(value: Any, path: str, *, mirrored: bool = True) -> Any:
    """Return the entry of a config value that describes the block of `path`; a value for all blocks as it is.

    mirrored: the list is in the order of the blocks on the way down, and read backwards on the way up

    >>> of_block([5, 10, 20], "up_blocks.0.attentions.1"), of_block(8, "up_blocks.0.attentions.1")
    (20, 8)
    """
    if not isinstance(value, (list, tuple)) or not value:
        return value
    match = _BLOCK.search(path)
    if match is None:
        return value[-1]
    if match[1] == "mid":
        # The middle block has no entry of its own: it is built like the last block on the way down.
        return value[-1] if not isinstance(value[-1], bool) else False
    number = int(match[2] or 0)
    if number >= len(value):
        return None
    return value[-1 - number] if match[1] == "up" and mirrored else value[number]
