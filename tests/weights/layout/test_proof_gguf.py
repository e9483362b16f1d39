"""GGUF against live models: every proved architecture stays right, and files converted wrongly are noticed."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from attngeo.weights.layout.facts import family
from tools.proof.gguf import archs as gguf_archs
from tools.proof.gguf import prove as gguf_proof

pytestmark = pytest.mark.usefixtures("restored_facts", "ignored_warnings")


# What the converter reorders, fuses or leaves out; the other architectures are proved by `make test-all`.
QUICK = "llama qwen35 gemma3 falcon bloom gptneox t5 starcoder"


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK.split() else pytest.param(name, marks=pytest.mark.slow) for name in gguf_archs.ARCHS],
)
def test_extracted_heads_reproduce_the_live_products(name: str) -> None:
    shipped = family(f"gguf:{name}")
    verdict = gguf_proof.prove_arch(f"gguf:{name}")
    assert verdict.status == "right", verdict.reason
    assert set(verdict.sites.values()) == {"right"}, verdict.sites
    assert verdict.worst <= 1e-4
    assert verdict.unplaced == 0  # every product of the live model is reproduced
    assert verdict.causal is (name not in ("bert", "modern-bert", "t5", "t5encoder"))
    # The package ships these facts.
    assert (shipped.status, shipped.causal, shipped.qk_norm) == ("right", verdict.causal, verdict.qk_norm)
    assert (list(shipped.norms), shipped.skip, shipped.offset) == (verdict.norms, (), False)
    assert [rule for rule in shipped.rotary if rule["pairs"] != "unknown"] == verdict.rotary
    assert not verdict.rotary_unproved


@pytest.mark.parametrize(
    "name",
    [name if name == "cohere2" else pytest.param(name, marks=pytest.mark.slow) for name in gguf_archs.OMITTED],
)
def test_no_rule_agrees_without_the_constants_that_files_leave_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are the kinds of layers, the base of layers with a window, a ramp whose ends are not rounded."""
    monkeypatch.setitem(gguf_proof.OMITTED, name, {})
    assert gguf_proof.prove_arch(f"gguf:{name}").rotary_unproved


@pytest.mark.parametrize(
    "name", ["falcon", "gemma", "llama", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("gptneox", "bloom"))]
)
def test_a_file_without_the_reordering_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the converter's reordering the products differ, or transformers restores another model."""
    plain = tuple(dataclasses.replace(arch, convert=None) for arch in gguf_archs.ARCHS[name])
    monkeypatch.setitem(gguf_proof.ARCHS, name, plain)
    verdict = gguf_proof.prove_arch(f"gguf:{name}")
    if name == "gemma":  # it has no QK-norms: only the norm before the attention would be misread
        assert verdict.status == "right" and [rule["offset"] for rule in verdict.norms] == [True]
    else:
        assert verdict.status in ("refused", "unproven")


def test_the_permutation_of_llama_files_shows_in_the_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The converter turns halves into neighbours. Of a file without the permutation, the rotation is another."""
    assert [rule["pairs"] for rule in family("gguf:llama").rotary] == ["neighbours"]
    assert [rule["pairs"] for rule in family("gguf:qwen2").rotary] == ["halves"]  # its files are not permuted
    plain = tuple(dataclasses.replace(arch, convert=None, loads=False) for arch in gguf_archs.ARCHS["llama"])
    monkeypatch.setitem(gguf_proof.ARCHS, "llama", plain)
    verdict = gguf_proof.prove_arch("gguf:llama")
    assert verdict.status == "right"  # plain products do not change when queries and keys are permuted alike
    assert [rule["pairs"] for rule in verdict.rotary] == ["halves"]


def test_linear_attention_is_not_scored(tmp_path: Path) -> None:
    """Qwen 3.5 stores the projections of its delta nets under the name of fused attention."""
    (arch,) = gguf_archs.ARCHS["qwen35"]
    gguf_proof.write_gguf(tmp_path / "m.gguf", "qwen35", arch, gguf_proof.build(arch))
    from attngeo import attention_layers

    layers = list(attention_layers(tmp_path / "m.gguf", unproven=True))
    assert [layer.layer for layer in layers] == [1, 3]
    assert all(layer.query.shape == (6, 48, 32) and layer.key.shape == (2, 48, 32) for layer in layers)
    assert all(layer.qk_norm for layer in layers)  # the shapes show that the gates beside the queries are left out
