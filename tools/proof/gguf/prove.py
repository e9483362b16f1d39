"""Compare a GGUF architecture with a live model: convert a tiny random model to GGUF, load it from that file, run it.

Where transformers can load the architecture, every tensor must be restored exactly, and the products recorded are those
of the loaded model. Otherwise (`Arch.loads` is False) they are those of the model that was converted.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import gguf
from attngeo.errors import LayoutError
from tools.proof.causality import is_causal
from tools.proof.comparable_model import randomise, reduce_norms
from tools.proof.gguf.archs import ARCHS, LOCAL_BASE, OMITTED, UNPROVED, Arch, heads
from tools.proof.hypotheses import best_verdict
from tools.proof.product_recorder import NAME, recorded_products
from tools.proof.prove import centred_by_switch, extract_layers, judge_layers
from tools.proof.rotary.rotating_twins import RotatingTwins
from tools.proof.rotary.rotation import vary
from tools.proof.tiny_model import plain_experts
from tools.proof.verdict import Verdict, assume

BASE = 1500.0  # of rotary embedding: not the default


def prove_arch(kind: str) -> Verdict:
    """Return the verdict on `gguf:<architecture>`, which is right only if every variant of it is."""
    name = kind.removeprefix("gguf:")
    if name in UNPROVED:
        return Verdict(kind, *UNPROVED[name])
    assume(kind, defaults=OMITTED.get(name, {}))
    verdicts = [best_verdict(kind, (), partial(_prove, kind, name, arch)) for arch in ARCHS[name]]
    rules = [rule for verdict in verdicts for rule in verdict.norms]
    whole = next((verdict for verdict in verdicts if verdict.status != "right"), verdicts[-1])
    whole.qk_norm = all(verdict.qk_norm for verdict in verdicts)  # where only some have it, their tensors show it
    whole.centred = any(verdict.centred for verdict in verdicts)
    whole.worst = max(verdict.worst for verdict in verdicts)
    whole.rotary_unproved = {key: why for verdict in verdicts for key, why in verdict.rotary_unproved.items()}
    whole.rotary_worst = max(verdict.rotary_worst for verdict in verdicts)
    whole.rotary = _joined([rule for verdict in verdicts for rule in verdict.rotary])
    sites = [(rule["site"], rule.get("kind")) for rule in whole.rotary]
    for site, kind_of_layer in sites:
        if sites.count((site, kind_of_layer)) > 1:
            whole.rotary_unproved[site] = "variants of the architecture rotate differently"
    whole.rotary = [rule for rule in whole.rotary if rule["site"] not in whole.rotary_unproved]
    whole.norms = [rule for i, rule in enumerate(rules) if rule not in rules[:i]]
    notes = [verdict.note for verdict in verdicts if verdict.note]
    whole.note = "" if not notes else notes[0] if len(notes) == len(verdicts) else f"one of its forms: {notes[0]}"
    return whole


def _joined(rules: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the different rules; of those that differ only in the settings that were shown to be read, one."""
    joined: list[dict[str, Any]] = []
    for rule in rules:
        same = [other for other in joined if {**other, "reads": ()} == {**rule, "reads": ()}]
        if not same:
            joined.append(rule)
        elif "reads" in rule:
            same[0]["reads"] = sorted({*same[0]["reads"], *rule["reads"]})
    return joined


def _prove(kind: str, name: str, arch: Arch) -> Verdict:
    model = build(arch)
    config = model.config
    centred = centred_by_switch(model)
    assume(kind, status="right", offset=False, centred=centred, skip=[], causal=is_causal(model, model.config))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.gguf"
        written = write_gguf(file, name, arch, model)
        try:
            extracted = extract_layers(file)
        except LayoutError as error:
            return Verdict(kind, "refused", " ".join(str(error).split()))
        if arch.loads:
            loaded = load(arch, file)
            if lost := not_restored(model, loaded, written):
                return Verdict(kind, "unproven", f"transformers' GGUF loader does not restore {', '.join(lost[:3])}")
            model = loaded
    twins = RotatingTwins(model, config)  # transformers' loader leaves out some rotary settings of a file
    qk_norm = reduce_norms(model) > 0
    note = "" if arch.loads else "transformers cannot load it: compared with the model converted"
    verdict = judge_layers(model, extracted, Verdict(kind, "right", qk_norm=qk_norm, centred=centred, note=note), twins)
    for rule in verdict.rotary:
        if rule["pairs"] != "none":
            scaling = {"llama3": "divided"}.get(found := _parameters(config).get("rope_type", "default"), found)
            rule["reads"] = ["base"] if scaling == "default" else ["base", scaling]
    return verdict


def build(arch: Arch) -> PreTrainedModel:
    """Return a tiny random model of the architecture, with no two heads alike and no bias."""
    model_class = getattr(transformers, arch.model)
    config = model_class.config_class(**arch.config)
    vary(config, {"rope_theta": BASE})
    parameters = getattr(config, "rope_parameters", None) or {}
    if "sliding_attention" in parameters:
        parameters["sliding_attention"]["rope_theta"] = arch.metadata.get("rope.freq_base_swa", LOCAL_BASE)
    plain_experts(config)
    torch.manual_seed(0)
    with recorded_products():  # positions are zero in tables that the constructor makes, too
        model = model_class._from_config(config, attn_implementation=_attention(arch), dtype=torch.float32).eval()
    randomise(model)
    return model


def _attention(arch: Arch) -> str:
    """Return the attention implementation with which the model is recorded."""
    return NAME if getattr(transformers, arch.model)._can_set_attn_implementation() else "eager"


def write_gguf(file: Path, name: str, arch: Arch, model: PreTrainedModel) -> list[str]:
    """Write `model` under llama.cpp's tensor names, by the map of the gguf package; return the parameters written."""
    config = model.config
    writer = gguf.GGUFWriter(file, name)
    for key, value in _metadata(config, arch.metadata).items():
        _add(writer, key, value)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"t{i}" for i in range(config.vocab_size)])
    writer.add_pad_token_id(0)
    kinds = {value: key for key, value in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(kinds[name], config.num_hidden_layers)
    written = []
    for key, value in model.state_dict().items():
        new = names.get_name(key, try_suffixes=(".weight", ".bias"))
        if new is None or new.startswith("output.") or ".experts." in key:
            continue  # buffers; the output, which is tied to the embedding; experts, which attention does not use
        converted = value if arch.convert is None else arch.convert(key, value, config)
        writer.add_tensor(new, converted.contiguous().numpy())
        written.append(key)
    if (divisors := _divisors(config)) is not None:
        writer.add_tensor("rope_freqs.weight", divisors.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return written


def _metadata(config: PreTrainedConfig, more: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata that llama.cpp's converter writes, with `more` added to it or in place of it."""
    queries, keys = heads(config)
    found = {
        "context_length": 64,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": _one_of(config, "intermediate_size", "d_ff") or 4 * config.hidden_size,
        "attention.head_count": queries,
        "attention.head_count_kv": keys,
        "attention.layer_norm_epsilon": 1e-6,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": _base(config),
        "vocab_size": config.vocab_size,
    }
    size = _one_of(config, "head_dim", "d_kv")
    if size:
        found |= {"attention.key_length": size, "attention.value_length": size}
    share = _parameters(config).get("partial_rotary_factor", 1.0)
    found["rope.dimension_count"] = int(share * (size or config.hidden_size // queries))
    if (scaling := _parameters(config).get("rope_type")) in ("linear", "yarn"):
        found |= {"rope.scaling.type": scaling, "rope.scaling.factor": _parameters(config)["factor"]}
    if scaling == "yarn":
        found["rope.scaling.original_context_length"] = _parameters(config)["original_max_position_embeddings"]
    if experts := _one_of(config, "num_experts", "num_local_experts"):
        found |= {"expert_count": experts, "expert_used_count": config.num_experts_per_tok}
    return found | more


def _divisors(config: PreTrainedConfig) -> Tensor | None:
    """Return the numbers that llama.cpp stores for the frequencies of LLaMA 3: what they were divided by."""
    parameters = _parameters(config)
    if parameters.get("rope_type") != "llama3":
        return None
    scaled = ROPE_INIT_FUNCTIONS["llama3"](config)[0]
    plain = parameters["rope_theta"] ** -(torch.arange(len(scaled)) / len(scaled))
    return plain / scaled


def _base(config: PreTrainedConfig) -> float:
    """Return the base of rotary embedding."""
    return float(_parameters(config).get("rope_theta", 10000.0))


def _parameters(config: PreTrainedConfig) -> dict[str, Any]:
    """Return the rotary parameters; of layers that attend to everything, where kinds of layers differ."""
    parameters: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    return dict(parameters.get("full_attention", parameters))


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    adders: dict[type, Any] = {
        list: writer.add_array,
        float: writer.add_float32,
        int: writer.add_uint32,
        str: writer.add_string,
    }
    adders[type(value)](f"{writer.arch}.{key}", value)


def _one_of(config: PreTrainedConfig, *names: str) -> Any:
    """Return the first of these attributes that has a value, None if none has."""
    return next((value for name in names if (value := getattr(config, name, None))), None)


def load(arch: Arch, file: Path) -> PreTrainedModel:
    """Return the model that transformers loads from the file."""
    model_class = getattr(transformers, arch.model)
    with recorded_products():
        return model_class.from_pretrained(
            file.parent,
            gguf_file=file.name,
            attn_implementation=_attention(arch),
            experts_implementation="eager",
            dtype=torch.float32,
        ).eval()


def not_restored(model: PreTrainedModel, loaded: PreTrainedModel, names: list[str]) -> list[str]:
    """Return the parameters that differ between the model written and the model loaded."""
    before, after = model.state_dict(), loaded.state_dict()

    def same(name: str) -> bool:
        return before[name].shape == after[name].shape and torch.allclose(before[name], after[name], atol=1e-6)

    return [name for name in names if name not in after or not same(name)]
