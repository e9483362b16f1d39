"""Which heads of a network are asked about: drawn anew for each text, the same for the same text and seed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from attngeo.atlas.organizing import questions
from attngeo.atlas.organizing.questions import Invariance
from attngeo.atlas.organizing.texts import Text
from attngeo.organization import NetworkTensor


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The heads that are organised on their own, one list per answer."""
    found: list[list[int]] = []

    def note(_: NetworkTensor, *, heads: list[int], **__: Any) -> dict[str, Any]:
        found.append(heads)
        return dict.fromkeys(questions.CONTRASTS.values(), SimpleNamespace(value=0.5, broken=0.25))

    tensor = NetworkTensor(np.ones((2, 2, 40)), heads=[f"L0H{head}" for head in range(40)])
    monkeypatch.setattr(questions, "softmax_invariance", note)
    monkeypatch.setattr(Invariance, "_capture", lambda *_: tensor)
    return found


def test_each_text_has_heads_of_its_own(chosen: list[list[int]]) -> None:
    texts = [Text("one text"), Text("another text"), Text("one text")]
    for text in texts:
        row, _ = Invariance(heads=5).answer(None, text)  # type: ignore[arg-type]
        assert (row["heads"], row["chosen"], row["keys_information"], row["keys_information_control"]) == (
            40,
            5,
            0.5,
            0.25,
        )
    Invariance(heads=5, seed=1).answer(None, texts[0])  # type: ignore[arg-type]
    Invariance(heads=0).answer(None, texts[0])  # type: ignore[arg-type]
    first, other, again, seeded, every = chosen
    assert first == again and first != other and first != seeded and every == list(range(40))
    assert all(len(set(heads)) == 5 for heads in (first, other, seeded))
