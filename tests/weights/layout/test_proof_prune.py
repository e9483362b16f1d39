"""Every type of which the package says that heads can be removed: the proof on a live model finds the same facts."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from attngeo.weights.layout.facts import families, family
from tools.prove_prune import prove

# Post-norm, tensors in-out, heads one after the other, grouped and fused keys, a position bias, cross-attention; what
# else changes which rows belong to a head. The others are proved by `make test-all`.
QUICK = "bert gpt2 gpt_neox llama qwen3 phi3 t5 whisper"
PRUNABLE = [kind for kind, facts in families().items() if "prune" in facts]

pytestmark = pytest.mark.usefixtures("restored_facts", "ignored_warnings")


@pytest.mark.parametrize(
    "kind", [kind if kind in QUICK.split() else pytest.param(kind, marks=pytest.mark.slow) for kind in PRUNABLE]
)
def test_a_pruned_model_and_its_folder_equal_the_model_whose_heads_are_gated(kind: str) -> None:
    shipped = family(kind).prune
    verdict = prove(kind)
    assert verdict.get("prune") == shipped, verdict


def test_the_types_that_users_prune_are_there() -> None:
    often = "bert roberta distilbert albert modernbert vit gpt2 gpt_neox opt llama mistral qwen2 qwen3 gemma2 phi3 t5"
    assert {*often.split(), "bart", "whisper"} <= set(PRUNABLE)
