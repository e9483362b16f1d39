"""Draw passages from a corpus: the beginning of one paragraph from each of some documents, one passage per line.

python -m experiments.organization.passages CORPUS.txt.xz [--count 100] [--words 46] [--seed 0] > passages.txt

The corpus has one paragraph per line and an empty line between documents. 46 English words are about 64 tokens.
"""

from __future__ import annotations

import argparse
import lzma
import random
from collections.abc import Iterable
from pathlib import Path

LONGEST = 7.0  # characters per word, with its space; code and tables have more, and many more tokens


def passages(lines: Iterable[str], count: int, words: int, seed: int) -> list[str]:
    """Return the first `words` words of one long enough paragraph from each of `count` documents.

    >>> passages(["one two three", "four five six", "", "too short", "", "seven eight nine"], 2, 2, seed=0)
    ['seven eight', 'four five']
    """
    documents: list[list[str]] = [[]]
    for line in lines:
        if not line.strip():
            documents.append([])
        elif len(line.split()) > words and len(passage := " ".join(line.split()[:words])) <= LONGEST * words:
            documents[-1].append(passage)
    long_enough = [document for document in documents if document]
    rng = random.Random(seed)
    return [rng.choice(document) for document in rng.sample(long_enough, count)]


def main() -> None:
    """Print the passages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--words", type=int, default=46)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with lzma.open(options.corpus, "rt", encoding="utf-8") as lines:
        print("\n".join(passages(lines, options.count, options.words, options.seed)))


if __name__ == "__main__":
    main()
