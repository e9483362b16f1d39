"""`load_pruned`: load a pruned model from the folder that its `save_pretrained` wrote."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from attngeo.arguments import file_path
from attngeo.errors import AttngeoError, InputError, SourceError, first_line

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def load_pruned(folder: str | os.PathLike[str], **options: Any) -> PreTrainedModel:
    """Return the pruned model in `folder`, in evaluation mode.

    options: those of `from_pretrained`, such as dtype, device_map and attn_implementation

    >>> from transformers import AutoModelForMaskedLM
    >>> model = AutoModelForMaskedLM.from_pretrained(attngeo.bundled("encoder"))
    >>> plan = attngeo.PrunePlan.from_heads(model, ["L0H1", "L3H2"])
    >>> attngeo.prune(model, plan, refit=False).save_pretrained("pruned")
    >>> small = attngeo.load_pruned("pruned")
    >>> [layer.attention.self.num_attention_heads for layer in small.bert.encoder.layer]
    [3, 4, 4, 3]
    """
    from attngeo.live.load import check_torch, named_architecture, quiet_transformers

    check_torch()
    from transformers import AutoConfig

    from attngeo.applications.prune.removal.record import read_record

    path = file_path(folder)
    if not (path / "config.json").is_file():
        raise SourceError(f"{path}: no config.json; expected a folder that a pruned model was saved to")
    try:
        with quiet_transformers():
            config = AutoConfig.from_pretrained(path)
    except Exception as error:
        raise SourceError(f"{path}: its config.json cannot be read ({first_line(error)})") from error
    record = read_record(config, str(path))
    architecture = named_architecture(config)
    if architecture is None:
        name = next(iter(config.architectures or ()), "")
        raise InputError(f"{path}: config.json names the architecture {name!r}, expected a class of transformers")
    loaded_class = architecture if record.get("uniform") else _cutting_class(architecture, record)
    try:
        with quiet_transformers():
            model, info = loaded_class.from_pretrained(path, output_loading_info=True, **options)
    except AttngeoError:
        raise
    except Exception as error:
        raise SourceError(f"{path}: transformers cannot load it ({first_line(error)})") from error
    if info["missing_keys"]:
        raise SourceError(f"{path}: the tensor {min(info['missing_keys'])} is not in the folder")
    model.__class__ = architecture
    return model.eval()


def _cutting_class(architecture: Any, record: dict[str, Any]) -> Any:
    """Return a class like `architecture` whose new models have only the heads of `record`, before they are loaded."""
    from attngeo.applications.prune.removal.cut import keep_heads_
    from attngeo.applications.prune.removal.layers import prunable_layers
    from attngeo.applications.prune.removal.record import recorded_heads
    from attngeo.weights.layout.heads import CONFIG_KEY

    kept = recorded_heads(record)

    def build(self: Any, config: Any, *arguments: Any, **options: Any) -> None:
        delattr(config, CONFIG_KEY)  # the model that is built first has all heads
        architecture.__init__(self, config, *arguments, **options)
        layers = prunable_layers(self)
        full = {(layer.stack, layer.layer): {head.head for head in layer.labels} for layer in layers}
        wrong = full.keys() ^ kept.keys()
        wrong |= {key for key in full.keys() & kept.keys() if not kept[key] or not full[key].issuperset(kept[key])}
        if wrong:
            stack, number = min(wrong)
            raise InputError(f"config.json: {CONFIG_KEY} and the model disagree about {stack} layer {number}")
        keep_heads_(layers, kept)
        setattr(self.config, CONFIG_KEY, record)

    return type(architecture.__name__, (architecture,), {"__init__": build, "__module__": architecture.__module__})
