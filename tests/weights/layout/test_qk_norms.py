"""QK-norms: up to a positive factor per token, the queries and keys of a layer are those of the live model."""

from __future__ import annotations

from typing import Any

import pytest

import attngeo

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TEXT = {
    "vocab_size": 60,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
}

# Model class, its further settings, and the leaves of its QK-norms; all but the last are LayerNorms.
MODELS = {
    "cohere": ("CohereForCausalLM", {"num_key_value_heads": 2, "use_qk_norm": True}, "{}_norm"),
    "phi": ("PhiForCausalLM", {"num_key_value_heads": 2, "qk_layernorm": True}, "{}_layernorm"),
    "persimmon": ("PersimmonForCausalLM", {"qk_layernorm": True}, "{}_layernorm"),
    "esmc": ("EsmcForMaskedLM", {}, "{}_norm"),
    "qwen3": ("Qwen3ForCausalLM", {"num_key_value_heads": 2, "head_dim": 16}, "{}_norm"),
}


def build(name: str) -> tuple[Any, str]:
    """Return a model whose gains are far from one, without biases, and the leaf of its QK-norms."""
    class_name, settings, leaf = MODELS[name]
    model_class = getattr(transformers, class_name)
    torch.manual_seed(0)
    model = model_class(model_class.config_class(**TEXT, **settings)).eval()
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if path.endswith("bias"):
                parameter.zero_()
            elif parameter.dim() == 1 or "norm" in path:
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.normal_(0, 0.3)
    return model, leaf


@pytest.mark.parametrize("name", MODELS)
def test_factors_and_live_queries_and_keys_have_one_direction(name: str) -> None:
    model, leaf = build(name)
    made: dict[str, Any] = {}
    for path, module in model.named_modules():
        if path.endswith((leaf.format("q"), leaf.format("k"))):
            module.register_forward_hook(lambda _, given, out, path=path: made.update({path: out.detach()}))
        if path.endswith(("q_proj", "query_key_value")):
            module.register_forward_hook(lambda _, given, out, path=path: made.update({path: given[0].detach()}))
    layers = list(attngeo.attention_layers(model))
    with torch.no_grad():
        model(input_ids=torch.arange(5, 17)[None])
    for weights in layers:
        projection = weights.tensors[0].removesuffix(".weight")
        x = made[projection][0]  # [N, d]
        for side, factors in (("q", weights.query), ("k", weights.key)):
            live = made[f"{projection.rpartition('.')[0]}.{leaf.format(side)}"][0]
            heads, _, size = factors.shape
            if live.shape[0] == heads and live.dim() == 3:  # [heads, N, r]
                live = live.transpose(0, 1)
            live = live.reshape(12, heads, size)
            ours = torch.einsum("nd,hdr->nhr", x, torch.from_numpy(factors.copy()))
            axes = (1, 2) if "esmc" in name else (2,)  # over what the norm divides by one number
            scale = (live * ours).sum(axes, keepdim=True) / (ours * ours).sum(axes, keepdim=True)
            assert scale.min() > 0
            assert torch.allclose(live, scale * ours, atol=2e-3)
