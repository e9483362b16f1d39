"""Find the model types whose hidden dimensions are told apart before training, on live models of every type.

    python -m tools.prove_positions            all types, and how they differ from the facts that the package ships
    python -m tools.prove_positions bert …     these types; the facts about all others are kept

A small model is built twice, from two seeds. Weights that differ between the two are random and are set to zero; so are
the inputs. What is left are constants, which treat all hidden dimensions alike, and fixed values such as sinusoids. If
queries or keys still read vectors whose entries differ, the type has fixed positions: models of it that were trained
from independent initial values share a basis. Sinusoids that are multiplied by learned scales are not seen this way.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import warnings
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, MODEL_MAPPING, PreTrainedConfig, PreTrainedModel

from attngeo.applications.compare.relation import has_fixed_positions
from attngeo.weights.layout.find import find_layers
from tools.proof.example_inputs import example_inputs
from tools.proof.tiny_model import config_and_model_class, tiny_config, tiny_configs
from tools.prove_all import RECORD, write_results

SECONDS = 60  # time limit of one type
BATCH = 10  # types per process
MAX_PARAMETERS = 1e8
VARIES = 1e-4  # spread of the entries of a vector, above which they differ


class TimeLimit(BaseException):
    """A type has used up its time."""


def is_pinned(model_class: Any, config: PreTrainedConfig) -> bool | None:
    """Return whether queries of a model without random weights read vectors whose entries differ; None: none ran."""
    models = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        models.append(model_class._from_config(config, attn_implementation="eager", dtype=torch.float32).eval())
    remove_random_weights_(*models)
    return queries_read_fixed_values(models[0])


def remove_random_weights_(model: nn.Module, other: nn.Module) -> None:
    """Set the parameters and buffers of `model` to zero that are different in `other`, built from another seed.

    Positions that are not trained hold what the first checkpoint brought (ViT-MAE, Qwen2-Audio); a ramp stands in.
    """
    stored, others = (dict(one.named_parameters()) | dict(one.named_buffers()) for one in (model, other))
    with torch.no_grad():
        for name, value in stored.items():
            if isinstance(value, nn.Parameter) and not value.requires_grad and value.dim() > 1 and "pos" in name:
                value.copy_(torch.linspace(0, 1, value.shape[-1]).expand_as(value))
            elif value.is_floating_point() and not torch.equal(value, others[name]):
                value.zero_()


def queries_read_fixed_values(model: PreTrainedModel) -> bool | None:
    """Run the model and the models inside it on zeros; return whether queries or keys read unequal entries."""
    spreads: list[float] = []

    def record(_: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        read = next((value for value in (*arguments, *named.values()) if _is_states(value)), None)
        if read is not None and bool(read.isfinite().all()):
            spreads.append(float((read.max(-1).values - read.min(-1).values).max()))

    config = json.loads(model.config.to_json_string(use_diff=False))
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    names = dict.fromkeys(name for layer in find_layers(shapes, config) for name in layer.tensors)
    for path in dict.fromkeys(name.removesuffix(".weight") for name in names):
        _module(model, path).register_forward_pre_hook(record, with_kwargs=True)
    for part in [one for one in model.modules() if isinstance(one, PreTrainedModel)]:
        for inputs in example_inputs(part, part.config):
            try:
                with torch.no_grad():
                    part(**{name: _zeros(value) for name, value in inputs.items()})
            except Exception:  # the vectors that were recorded before count
                continue
            break
    return max(spreads) > VARIES if spreads else None


def _module(model: nn.Module, path: str) -> nn.Module:
    """Return the projection at `path`, or the attention module around a bare parameter."""
    try:
        return model.get_submodule(path)
    except AttributeError:
        return model.get_submodule(path.rpartition(".")[0])


def _is_states(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.dim() >= 2 and value.shape[-1] > 1


def _zeros(value: Any) -> Any:
    return torch.zeros_like(value) if isinstance(value, Tensor) and value.is_floating_point() else value


def verdict(model_type: str) -> bool | None:
    """Return whether a small model of the type has fixed positions; None: no model of it could be built and run."""
    model_class = config_and_model_class(model_type)[1]
    for config in tiny_configs(model_type, MAX_PARAMETERS):
        try:
            found = is_pinned(model_class, config)
        except Exception:
            continue
        if found is not None:
            return found
    return None


def work(model_types: list[str]) -> None:
    """Run as a worker process: print one JSON line per type."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()

    def stop(*_: object) -> None:
        raise TimeLimit

    signal.signal(signal.SIGALRM, stop)
    for model_type in model_types:
        signal.alarm(SECONDS)
        try:
            found = verdict(model_type)
            declared = has_fixed_positions(tiny_config(model_type, 2, 8).to_dict())
        except (Exception, TimeLimit):
            found, declared = None, has_fixed_positions({"model_type": model_type})
        signal.alarm(0)
        print(json.dumps({"type": model_type, "fixed": found, "listed": declared}), flush=True)


def main(chosen: list[str]) -> int:
    """Print the verdict on each type and write what was found; return 1 if it differs from the facts so far."""
    record = json.loads(RECORD.read_text("utf-8"))
    known = [name for name, config in CONFIG_MAPPING.items() if config in MODEL_MAPPING]
    types = chosen or known
    wrong = 0
    for start in range(0, len(types), BATCH):
        command = [sys.executable, "-m", "tools.prove_positions", "--work", *types[start : start + BATCH]]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        for line in done.stdout.splitlines():
            if line.startswith("{"):
                found = json.loads(line)
                differs = found["fixed"] is not None and found["fixed"] != found["listed"]
                wrong += differs
                print(line, "DIFFERS" if differs else "", flush=True)
                if differs and found["type"] in record:
                    record[found["type"]]["fixed_positions"] = found["fixed"]
    if wrong:
        write_results(record)
    return 1 if wrong else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(sys.argv[2:])
    else:
        sys.exit(main(sys.argv[1:]))
