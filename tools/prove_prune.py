"""Find the model types whose heads `attngeo.prune` can remove, on live models of every type.

    python -m tools.prove_prune            all types (up to an hour on two cores)
    python -m tools.prove_prune bert …     these types; the facts about all others are kept

A small random model runs once and is observed: which linear layer reads the concatenated head outputs of each attention
module, what its result is added to and which module reads that, which config values its forward reads as its number of
heads, and whether it receives a position bias. Then heads are removed, single ones and whole groups. The pruned model,
and the one that `load_pruned` makes of its folder, must give what the full model gives whose heads are gated to zero.
Where all layers can lose equally many heads, `from_pretrained` loads the folder, too.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product, takewhile
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import CONFIG_MAPPING, MODEL_MAPPING, PreTrainedConfig, PreTrainedModel

from attngeo import PrunePlan, load_pruned, prune, prune_plan
from attngeo.applications.prune.removal import prunable_layers
from attngeo.errors import first_line
from attngeo.live.attention_modules import AttentionModule, attention_stacks, recorded_attention
from tools.proof.comparable_model import randomise
from tools.proof.example_inputs import example_inputs
from tools.proof.tiny_config import sub_configs
from tools.proof.tiny_model import config_and_model_class, tiny_configs
from tools.proof.verdict import assume
from tools.prove_all import RECORD, TimeLimit, run_workers, work, write_results

MAX_PARAMETERS = 5e7
TOLERANCE = 5e-5  # of the largest entry


class Observer(TorchFunctionMode):
    """What one run of a model shows about each of its attention modules, by path."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.stacks = attention_stacks(model)
        self.attentions = tuple(one for stack in self.stacks.values() for one in stack.attentions)
        self.heads: dict[str, int] = {}
        self.outputs: dict[str, str] = {}  # path of the linear layer that reads the head outputs
        self.added: dict[str, list[Tensor]] = {}  # what the result of this layer is added to
        self.read: dict[str, list[Tensor]] = {}  # first inputs of any module
        self.config: dict[str, dict[str, Any]] = {}  # what a forward reads in its config
        self.position_bias = False
        self._unread: tuple[str, Tensor] | None = None  # the last head outputs, until a linear layer reads them
        self._depends: dict[int, set[str]] = {}  # id of a tensor → attentions that it depends on
        self._alive: list[Tensor] = []  # so that no id is used twice

    def attend(self, attention: AttentionModule, query: Tensor, *others: Any) -> Any:
        """Keep the head outputs; called by `recorded_attention`."""
        *tensors, options = others
        self.position_bias |= options.get("position_bias") is not None
        self.heads[attention.path] = query.shape[1]
        found = attention.eager(attention.module, query, *tensors, **options)
        self._unread = attention.path, found[0].flatten()
        return found

    def before(self, path: str, _: nn.Module, arguments: Any, named: Any) -> None:
        """Keep the first input of the module at `path`, as a forward pre-hook."""
        first = arguments[0] if arguments else named.get("hidden_states")
        if isinstance(first, Tensor):
            self.read.setdefault(path, []).append(first.clone())

    def after(self, path: str, module: nn.Module, arguments: Any, output: Any) -> None:
        """Follow what a linear layer makes of the head outputs, as a forward hook."""
        if self._unread is None or not (isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"):
            return
        attention, heads = self._unread
        if torch.equal(arguments[0].flatten(), heads):
            self._unread, self.outputs[attention] = None, path
            self._keep(output, self._depends.get(id(output), set()) | {attention})

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **kwargs or {})
        given = [one for one in (*args, *(kwargs or {}).values()) if isinstance(one, Tensor)]
        sources = [self._depends.get(id(one), set()) for one in given]
        if "add" in getattr(func, "__name__", "") and len(given) == 2 and given[0].shape == given[1].shape:
            for other, attentions in ((given[0], sources[1] - sources[0]), (given[1], sources[0] - sources[1])):
                for attention in attentions:
                    self.added.setdefault(attention, []).append(other.clone())
        if isinstance(result, Tensor) and any(sources):
            self._keep(result, set().union(*sources))
        return result

    def _keep(self, tensor: Tensor, attentions: set[str]) -> None:
        self._depends[id(tensor)] = attentions
        self._alive.append(tensor)

    def streams(self, attention: str) -> list[str]:
        """Return the modules that read what the attention's output is added to: itself, those beside it, the block."""
        around, _, name = attention.rpartition(".")
        beside = [path for path in self.read if path.rpartition(".")[0] == around and path != attention]
        found = []
        for path in (attention, *beside, around):
            pairs = product(self.read.get(path, ()), self.added.get(attention, ()))
            if any(torch.equal(read, stream) for read, stream in pairs):
                pattern = relative(attention, path)
                found += [pattern, pattern.replace(name, "{name}")]
        return found


class WatchedConfig:
    """The config of one module, which notes what is read."""

    def __init__(self, config: Any, found: dict[str, Any]) -> None:
        self.__dict__.update(of_model=config, found=found)

    def __getattr__(self, name: str) -> Any:
        self.found[name] = getattr(self.of_model, name)
        return self.found[name]


def relative(base: str, path: str) -> str:
    """Return `path` as seen from `base`: "../output.dense" for "attention.output.dense" and "attention.self"."""
    words, target = base.split("."), path.split(".")
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(words, target, strict=False)))
    return "../" * (len(words) - shared) + ".".join(target[shared:])


def observed(model: PreTrainedModel, inputs: dict[str, Any]) -> dict[str, Any]:
    """Return the facts that one run shows; ValueError where an attention module differs from the others."""
    seen = Observer(model)
    with recorded_attention(model, seen.stacks, seen) as cleanup:
        for path, module in model.named_modules():
            cleanup.callback(module.register_forward_pre_hook(partial(seen.before, path), with_kwargs=True).remove)
            cleanup.callback(module.register_forward_hook(partial(seen.after, path)).remove)
        for one in seen.attentions:
            if hasattr(one.module, "config"):
                cleanup.callback(setattr, one.module, "config", one.module.config)
                one.module.config = WatchedConfig(one.module.config, seen.config.setdefault(one.path, {}))
        with seen:
            model(**inputs)
    paths = [one.path for one in seen.attentions]
    if unseen := [path for path in paths if path not in seen.outputs]:
        raise ValueError(f"no linear layer reads the head outputs of {unseen[0]}")
    outputs = {relative(path, seen.outputs[path]) for path in paths}
    streams = [one for one in seen.streams(paths[0]) if all(one in seen.streams(path) for path in paths)]
    if len(outputs) > 1 or not streams:
        raise ValueError(f"output projections {sorted(outputs)}, residual streams {streams}")
    counts = [
        {name for name, value in seen.config.get(path, {}).items() if "head" in name and value == seen.heads[path]}
        for path in paths
    ]
    facts: dict[str, Any] = {"output": outputs.pop(), "stream": streams[0]}
    if own := set.intersection(*counts):
        facts["own_config"] = sorted(own)
    return facts | ({"position_bias": True} if seen.position_bias else {})


@contextmanager
def gated(model: PreTrainedModel, plan: PrunePlan) -> Iterator[None]:
    """Multiply the outputs of the heads of `plan` by zero, inside the context."""
    hooks = []
    for layer in prunable_layers(model):
        gate = torch.tensor([float(head not in plan.heads) for head in layer.labels])  # [H]
        gate = gate.repeat_interleave(layer.heads.size)  # [H·r]
        hooks.append(layer.output.register_forward_pre_hook(lambda _, read, gate=gate: (read[0] * gate, *read[1:])))
    yield
    for hook in hooks:
        hook.remove()


def compare(model: PreTrainedModel, inputs: dict[str, Any], unit: str, *, uniform: bool = False) -> None:
    """Raise ValueError unless a pruned model and its folder agree with the model whose heads are gated."""
    rows = 8 + max(len(layer.output_weight) for layer in prunable_layers(model)) // 20  # of at least 8 tokens each
    plan = prune_plan(model, [inputs] * rows, share=0.4, unit=unit, method="random", uniform=uniform)
    small = prune(model, plan, refit=False)
    with gated(model, plan):
        expected = results(model, inputs)
    if error(results(model, inputs), expected) < 0.01:
        raise ValueError("the heads have no effect")
    with tempfile.TemporaryDirectory() as folder:
        small.save_pretrained(folder)
        again = (type(model).from_pretrained if uniform else load_pruned)(folder)
    for name, one in (("the pruned model", small), ("its folder", again)):
        if (worst := error(results(one.eval(), inputs), expected)) > TOLERANCE:
            raise ValueError(f"{name} differs from the gated model by {worst:.1g}")


def results(model: PreTrainedModel, inputs: dict[str, Any]) -> list[Tensor]:
    """Return the floating-point tensors that the model returns."""
    torch.manual_seed(0)  # some models draw random numbers in their forward
    with torch.no_grad():
        found = model(**inputs)
    return [one for one in found.values() if isinstance(one, Tensor) and one.is_floating_point()]


def error(found: list[Tensor], expected: list[Tensor]) -> float:
    """Return the largest difference between tensors, relative to the largest entry of each."""
    pairs = zip(found, expected, strict=True)
    return max(float((one - other).abs().max() / other.abs().max().clamp_min(1e-30)) for one, other in pairs)


def models(model_type: str) -> Iterator[PreTrainedModel]:
    """Yield small models of the type, those with grouped keys first."""
    model_class = config_and_model_class(model_type)[1]
    for groups in (2, 1):
        for config in tiny_configs(model_type, MAX_PARAMETERS):
            try:
                share_keys(config, groups)
                torch.manual_seed(0)
                yield model_class._from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
            except Exception:  # no such model can be built
                continue


def share_keys(config: PreTrainedConfig, size: int) -> None:
    """Let `size` query heads share a key head, where the config declares key heads."""
    for part in (config, *sub_configs(config).values()):
        heads = getattr(part, "num_attention_heads", None)
        if isinstance(getattr(part, "num_key_value_heads", None), int) and isinstance(heads, int):
            part.num_key_value_heads = max(1, heads // size)


def prove(model_type: str) -> dict[str, Any]:
    """Return the facts about a type and the status "prunable", or why its heads cannot be removed."""
    reason = "no model of it runs"
    try:
        for model in models(model_type):
            randomise(model)
            with torch.no_grad():
                for name, weight in model.named_parameters():
                    if name.endswith("bias"):
                        weight.normal_(0, 0.3)
            for inputs in example_inputs(model, model.config):
                inputs = {name: value for name, value in inputs.items() if isinstance(value, Tensor)}
                try:
                    results(model, inputs)
                except Exception:
                    continue
                return {"model_type": model_type, "status": "prunable", "prune": proved(model, model_type, inputs)}
    except (Exception, TimeLimit) as problem:
        reason = f"{type(problem).__name__}: {first_line(problem)[:160]}"
    return {"model_type": model_type, "status": "not prunable", "reason": reason}


def proved(model: PreTrainedModel, model_type: str, inputs: dict[str, Any]) -> dict[str, Any]:
    """Return the facts about a type after they were confirmed; an exception where they are wrong."""
    facts = observed(model, inputs)
    assume(model_type, prune=facts)
    grouped = any(layer.heads.group > 1 for layer in prunable_layers(model))
    for unit in ("group", "query") if grouped else ("query",):
        compare(model, inputs, unit)
    try:
        assume(model_type, prune=facts | {"uniform": True})
        compare(model, inputs, "group" if grouped else "query", uniform=True)
    except Exception:  # its config cannot state what is left
        return facts
    return facts | {"uniform": True}


def main(chosen: list[str]) -> None:
    """Write the facts about the chosen types, and print what was found."""
    record = json.loads(RECORD.read_text("utf-8"))
    types = chosen or [name for name, config in CONFIG_MAPPING.items() if config in MODEL_MAPPING and name in record]
    for results in run_workers(types, "tools.prove_prune", jobs=1):
        for found in results:
            print(json.dumps(found), flush=True)
            about = record[found["model_type"]]
            about.pop("prune", None)
            about |= {"prune": found["prune"]} if "prune" in found else {}
    write_results(record)


if __name__ == "__main__":
    work(sys.argv[2:], prove) if sys.argv[1:2] == ["--work"] else main(sys.argv[1:])
