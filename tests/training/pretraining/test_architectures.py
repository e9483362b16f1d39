"""Every architecture computes what transformers computes, trains and resumes; its loss is torch's cross-entropy."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from attngeo.training.monitoring.monitor import Monitor
from attngeo.training.pretraining.architectures import Bert, Llama, Model, ModernBert, PreNormBert, Shape
from attngeo.training.pretraining.measure import largest_logits, mean_self_logits
from attngeo.training.pretraining.model import OutputLoss, loss_and_gradients, mean_loss
from attngeo.training.pretraining.pretrain import pretrain
from attngeo.weights.scoring.score import score
from tests.training.small_runs import run_settings, without_speed

pytestmark = [
    pytest.mark.filterwarnings("ignore:builtin type Swig:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*a model with rotary embedding and a norm before its attention:UserWarning"),
]

CASES: dict[str, tuple[type[Model], bool, str, dict[str, Any]]] = {
    # kind, causal, class of transformers, settings of a run
    "bert": (Bert, False, "BertForMaskedLM", {}),
    "bert decoder": (Bert, True, "BertLMHeadModel", {"objective": "causal"}),
    "pre-norm bert": (PreNormBert, False, "RobertaPreLayerNormForMaskedLM", {"norm": "pre"}),
    "pre-norm bert decoder": (
        PreNormBert,
        True,
        "RobertaPreLayerNormForCausalLM",
        {"norm": "pre", "objective": "causal"},
    ),
    "modernbert": (ModernBert, False, "ModernBertForMaskedLM", {"architecture": "modernbert"}),
    "llama": (Llama, True, "LlamaForCausalLM", {"architecture": "llama", "objective": "causal"}),
}
ROTARY = ("modernbert", "llama")


def made(name: str, seed: int = 0, hidden: int = 64, **settings: Any) -> Model:
    """Return an initialised model whose gains and biases are not 1 and 0."""
    kind, causal, _, _ = CASES[name]
    model = kind(Shape(3, hidden, 4, 96, 320, 24, causal), **settings)
    model.initialise(seed)
    draw = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 1:
                weight.add_(torch.randn(weight.shape, generator=draw) * 0.2)
            else:
                weight.mul_(4.0)  # so that a wrong rotation or norm shows
    return model


def token_ids(seed: int = 1) -> torch.Tensor:
    return torch.randint(1, 320, (3, 24), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    import transformers
    from safetensors.torch import save_file

    model = made(name).eval()
    save_file({key: value.contiguous() for key, value in model.state_dict().items()}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(model.config.to_dict()))
    theirs, info = getattr(transformers, CASES[name][2]).from_pretrained(tmp_path, output_loading_info=True)
    assert not info["unexpected_keys"] and not info["missing_keys"]
    with torch.no_grad():
        expected = theirs.eval()(input_ids=token_ids()).logits
        assert float(expected.abs().max()) > 1
        assert torch.allclose(model(token_ids()), expected, atol=1e-4)
    record = Monitor()(0, theirs, {"input_ids": token_ids()})  # of the keys that each query may attend to
    assert record is not None and largest_logits(model, token_ids()) == pytest.approx(record["max_logit"], rel=1e-3)


@pytest.mark.parametrize("name", CASES)
def test_a_run_is_saved_scored_and_resumed(name: str, tmp_path: Path) -> None:
    """In one process, the run continues from a checkpoint at every evaluation and ends with the same bits."""
    settings = {**CASES[name][3], "start": "symmetric", "scale": "half-unit", "evaluations": 2, "steps": 8}
    whole = pretrain(run_settings(tmp_path, **settings, out=str(tmp_path / "whole")))
    table = run_settings(tmp_path, **settings, checkpoints=0) | {"checkpoints": 0}
    for _ in range(4):
        run = pretrain(table, stop=lambda: True)
        if run.finished:
            break
    assert without_speed(run.records) == without_speed(whole.records)
    models = [(tmp_path / folder / "model" / "model.safetensors").read_bytes() for folder in ("run", "whole")]
    assert models[0] == models[1]
    first, last = run.records[0], run.records[-1]
    assert last["eval_loss"] < first["eval_loss"]
    assert first["symmetry"] == pytest.approx([1, 1], abs=1e-5)
    assert first["std_key"] == pytest.approx([0.5 / math.sqrt(32)] * 2, rel=1e-4)
    frame = score(str(run.folder / "model"), nulls=False, folded=False).frame.sort("layer", "head", nulls_last=False)
    layers, heads = (frame.filter(frame["head"].is_null() == whole) for whole in (True, False))
    rotary = ("symmetry_rope", "directionality_rope") if name in ROTARY else ()
    for figure in ("symmetry", "directionality", "dominance", "self_attending", *rotary):
        assert last[figure] == pytest.approx(layers[figure].to_list(), abs=2e-5), figure
        of_heads = [value for layer in last[f"head_{figure}"] for value in layer]
        assert of_heads == pytest.approx(heads[figure].to_list(), abs=2e-5), figure
    assert ("symmetry_rope" in last) == (name in ROTARY)


@pytest.mark.parametrize("name", CASES)
def test_a_self_bias_is_added_to_the_logits_of_tokens_with_themselves(name: str) -> None:
    """With a large bias every token reads itself alone, so that the other tokens of the row do not matter."""
    plain, biased, zero = made(name), made(name, self_bias=[1e4] * 3), made(name, self_bias=[0.0] * 3)
    one, other = token_ids(1), token_ids(2)
    other[:, 5] = one[:, 5]
    with torch.no_grad():
        assert torch.allclose(zero(one), plain(one), atol=1e-4)
        assert torch.allclose(biased(one)[:, 5], biased(other)[:, 5], atol=1e-4)
        assert not torch.allclose(plain(one)[:, 5], plain(other)[:, 5], atol=1e-2)
    raised = mean_self_logits(made(name, self_bias=[1.0, 0.0, 0.0]), token_ids())
    assert raised[0] == pytest.approx(mean_self_logits(plain, token_ids())[0] + 1.0, rel=1e-3)


def test_the_self_bias_of_a_run_is_that_of_the_unit_symmetric_initialisation(tmp_path: Path) -> None:
    small = {"steps": 2, "warmup": 1, "evaluations": 1, "keep_model": False}
    bias = {"start": "independent", "scale": "unit", "self_bias": True, "out": str(tmp_path / "biased")}
    first = pretrain(run_settings(tmp_path, **small, **bias)).records[0]
    assert first["self_bias"] == pytest.approx([math.sqrt(16)] * 2, rel=0.5)  # about √r
    assert min(first["self_bias"]) > 2 and max(map(abs, first["self_attending"])) < 0.2
    with warnings.catch_warnings():  # of an initialisation that is measured and not trained
        warnings.simplefilter("error", UserWarning)
        assert pretrain(run_settings(tmp_path, **small, self_bias=True, architecture="modernbert")).finished


@pytest.mark.parametrize(
    "name", ["modernbert", *(pytest.param(name, marks=pytest.mark.slow) for name in ("bert", "pre-norm bert", "llama"))]
)
def test_a_layer_compiles_as_one_graph(name: str) -> None:
    """A layer and its gradients are traced without a break, for every layer of the model."""
    model = made(name, self_bias=None if name == "llama" else [0.5] * 3)
    torch._dynamo.reset()
    compiled = torch.compile(model.layer, backend="aot_eager", fullgraph=True, dynamic=False)
    x = torch.randn(3, 24, 64, generator=torch.Generator().manual_seed(2))
    for number, weights in enumerate(model.layer_weights):
        arguments = x, weights, model.setting, model.layer_bias(number)
        held = [weight for weight in weights if weight is not None]
        gradients = []
        for function in (model.layer, compiled):
            gradients.append(torch.autograd.grad(function(*arguments).square().mean(), held))
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(*gradients, strict=True))


# ---- the loss of the output layer


def features_and_targets(bias: bool, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """Return features [50, 16], weight [90, 16], bias [90] and targets [50]; logits are of order ten."""
    draw = torch.Generator().manual_seed(3)
    h, weight, b = (torch.randn(*shape, generator=draw) for shape in ((50, 16), (90, 16), (90,)))
    targets = torch.randint(90, (50,), generator=draw)
    return (3 * h).to(dtype), weight, b if bias else None, targets


@pytest.mark.parametrize("bias", [True, False])
def test_gradients_are_those_of_cross_entropy(bias: bool) -> None:
    h, weight, b, targets = features_and_targets(bias, torch.float32)
    held = [part.double().requires_grad_() for part in (h, weight, b) if part is not None]
    expected = F.cross_entropy(F.linear(*held), targets)
    (2.5 * expected).backward()
    mine = [part.detach().float().requires_grad_() for part in held]
    loss = OutputLoss.apply(*(mine if bias else [*mine, None]), targets, loss_and_gradients)
    (2.5 * loss).backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    assert expected.item() > 1
    for wanted, got in zip(held, mine, strict=True):
        assert got.grad.dtype == got.dtype
        assert float((got.grad - wanted.grad).norm() / wanted.grad.norm()) < 1e-6  # computed in float32


def test_features_in_bfloat16_give_gradients_of_weights_in_float32() -> None:
    h, weight, bias, targets = features_and_targets(True, torch.bfloat16)
    loss, of_h, of_weight, of_bias = loss_and_gradients(h, weight, bias, targets)
    _, *exact = loss_and_gradients(h.float(), weight.bfloat16().float(), bias, targets)
    assert float(loss) == pytest.approx(float(mean_loss(h, weight, bias, targets)), rel=1e-6)
    assert of_bias is not None
    assert (of_h.dtype, of_weight.dtype, of_bias.dtype) == (torch.bfloat16, torch.float32, torch.float32)
    for got, wanted in zip((of_h, of_weight, of_bias), exact, strict=True):
        assert wanted is not None
        assert float((got.float() - wanted).norm() / wanted.norm()) < 0.02
