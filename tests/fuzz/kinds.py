"""What a kind of file is to the fuzzer: valid files, how they are damaged, and which functions read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

Files = Mapping[str, bytes]


@dataclass(frozen=True)
class Kind:
    """One kind of file that attngeo reads.

    files:  valid files by name; `read` must accept them as they are
    mutate: returns them with at least one of them damaged
    read:   calls the public functions that read the files, in the folder that holds them; the second folder is for
            output that the functions are asked to write
    """

    name: str
    files: Callable[[], Files]
    mutate: Callable[[Random, Files], Files]
    read: Callable[[Random, Path, Path], None]


def mutate_one(mutate: Callable[[Random, bytes], bytes], *names: str) -> Callable[[Random, Files], Files]:
    """Return a function that damages one of the named files (or one of all) with `mutate`."""

    def mutated(rng: Random, files: Files) -> Files:
        name = rng.choice(names or tuple(files))
        return {**files, name: mutate(rng, files[name])}

    return mutated


def all_kinds() -> dict[str, Kind]:
    """Return every kind by name."""
    from tests.fuzz import (
        atlas_kinds,
        comparison_kinds,
        other_kinds,
        pruning_kinds,
        result_kinds,
        training_kinds,
        weight_kinds,
    )

    kinds = (
        *weight_kinds.KINDS,
        *result_kinds.KINDS,
        *training_kinds.KINDS,
        *other_kinds.KINDS,
        *comparison_kinds.KINDS,
        *atlas_kinds.KINDS,
        *pruning_kinds.KINDS,
    )
    return {kind.name: kind for kind in kinds}
