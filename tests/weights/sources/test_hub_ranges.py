"""The byte ranges that are requested."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from attngeo.weights.sources.hub_files import LARGEST, WASTE, envelope, join

intervals = st.lists(
    st.tuples(st.integers(0, 10_000), st.integers(1, 500)).map(lambda pair: (pair[0], sum(pair))), max_size=30
)


@given(intervals)
def test_joined_ranges_cover_the_wanted_bytes_and_waste_few(wanted: list[tuple[int, int]]) -> None:
    joined = join(wanted)
    useful = len({byte for start, stop in wanted for byte in range(start, stop)})
    asked = sum(stop - start for start, stop in joined)
    assert useful <= asked <= (1 + WASTE) * useful
    assert all(any(a <= start and stop <= b for a, b in joined) for start, stop in wanted)
    assert all(before[1] <= after[0] for before, after in pairwise(joined))
    assert len(joined) <= len(set(wanted))


def test_neighbouring_ranges_are_joined_up_to_a_size() -> None:
    half = LARGEST // 2
    assert join([(0, half), (half, 2 * half), (2 * half, 3 * half)]) == [(0, 2 * half), (2 * half, 3 * half)]
    assert join([(100, 200), (0, 100)]) == [(0, 200)]
    assert join([(0, 1000), (1030, 2000)]) == [(0, 2000)]
    assert join([(0, 1000), (1200, 2000)]) == [(0, 1000), (1200, 2000)]


def test_interleaved_heads_are_one_range() -> None:
    interleaved = [(head * 300, head * 300 + 200) for head in range(8)]  # query and key, then the value
    assert envelope(interleaved) == [(0, 7 * 300 + 200)]
    assert envelope([(0, 100), (200, 300)]) == [(0, 100), (200, 300)]  # two requests are allowed
    assert envelope([(0, 100), (100, 300)]) == [(0, 300)]
