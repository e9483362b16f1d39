"""What is asked of a network: heads drawn anew for each text, and how many heads joined first share a key head."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from attngeo.applications.prune.plan import PrunePlan  # noqa: E402
from attngeo.applications.prune.prune import prune  # noqa: E402
from attngeo.atlas.organizing import questions  # noqa: E402
from attngeo.atlas.organizing.questions import Invariance, Trees, _shared_keys  # noqa: E402
from attngeo.atlas.organizing.texts import Text  # noqa: E402
from attngeo.live.load import load_model  # noqa: E402
from attngeo.organization import NetworkTensor, Tree  # noqa: E402
from attngeo.organization.capture import capture  # noqa: E402
from tests.applications.prune.prunable_models import tiny_model  # noqa: E402


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The heads that are organised on their own, one list per answer."""
    found: list[list[int]] = []

    def note(_: NetworkTensor, *, heads: list[int], **__: Any) -> dict[str, Any]:
        found.append(heads)
        return dict.fromkeys(questions.CONTRASTS.values(), SimpleNamespace(value=0.5, control=0.25))

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


def test_pairs_that_share_a_key_head_are_compared_with_chance() -> None:
    """Two layers of four heads that share two key heads; heads of different layers never share one."""
    heads = tuple(f"L{layer}H{head}" for layer in range(2) for head in range(4))
    # Joined first: L0H0 with L0H1 (one key head), L0H2 with L1H2, L1H0 with L1H1 (one key head), L0H3 with L1H3.
    tree = Tree([[0] * 8, [0, 0, 1, 2, 3, 3, 1, 2], range(8)])
    found = _shared_keys(tree, heads, {0: 2, 1: 2})
    assert found["shared_key"] == 0.5
    assert found["shared_key_chance"] == pytest.approx(4 / 28)  # of 28 pairs, 4 share a key head
    assert _shared_keys(tree, heads, {0: 1, 1: 1}) == {}
    found = _shared_keys(tree, heads, {0: 2, 1: 1})  # the second layer has a key per head
    assert (found["shared_key"], found["shared_key_chance"]) == (0.25, pytest.approx(2 / 28))


@pytest.mark.parametrize(
    ("removed", "sharing"),
    [
        ([], 2 * 6),  # two layers of two key heads, each read by three heads
        (["L0H2", "L0H5", "L1H2", "L1H5"], 2 * 2),  # each key head has lost one of its heads
        (["L0H0", "L0H3", "L1H0", "L1H1", "L1H2"], (1 + 1) + 3),  # one of every group, and a whole group
    ],
)
def test_heads_of_a_pruned_model_share_the_keys_of_the_full_model(
    monkeypatch: pytest.MonkeyPatch, removed: list[str], sharing: int
) -> None:
    model = tiny_model("llama")
    if removed:
        model = prune(model, PrunePlan.from_heads(model, removed), refit=False)
    tensor = capture(model, {"input_ids": torch.arange(3, 12)[None]}, stage="logits")
    monkeypatch.setattr(Trees, "_capture", lambda *_: tensor)
    row, _ = Trees(permuted=False).answer(load_model(model), Text("a text"))
    heads = 12 - len(removed)
    assert row["shared_key_chance"] == pytest.approx(sharing / (heads * (heads - 1) / 2))
