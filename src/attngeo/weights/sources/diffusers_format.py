"""Models in the format of diffusers: a config names the class of the model, and a pipeline is a folder of models.

The config of a diffusers model has no model type, but a `_class_name`. attngeo gives it the model type
`diffusers:CLASS`, so that facts about the class are looked up as those about a transformers model type are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attngeo.errors import SourceError

PREFIX = "diffusers:"  # of the model types of diffusers models
PIPELINE = "model_index.json"  # the file that makes a folder a pipeline


def with_model_type(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the config of a diffusers model with its model type; any other config as it is.

    >>> with_model_type({"_class_name": "UNet2DModel"})["model_type"]
    'diffusers:UNet2DModel'
    """
    name = config.get("_class_name")
    if not isinstance(name, str) or "model_type" in config:
        return config
    return {**config, "model_type": PREFIX + name}


def diffusers_config(module: Any) -> Mapping[str, Any] | None:
    """Return the config of a diffusers model in memory, with its model type; None for any other module."""
    config = getattr(module, "config", None)
    known = any(kind.__module__.partition(".")[0] == "diffusers" for kind in type(module).__mro__)
    if not known or not isinstance(config, Mapping):
        return None
    # A class derived from a diffusers model is saved under its own name; so is this one.
    return with_model_type({**config, "_class_name": type(module).__name__})


def pipeline_error(where: str, folders: Sequence[str]) -> SourceError:
    """Return the error for a pipeline.

    where:   the pipeline, as the user typed it
    folders: its sub-folders that hold weights
    """
    base, at, revision = where.partition("@")
    example = f"{base.rstrip('/')}/{folders[0]}{at}{revision}" if folders else ""
    found = f"name the one to score: {', '.join(folders)} (for example {example})" if folders else "none has weights"
    return SourceError(f"{where}: is a diffusers pipeline, a folder of several models; {found}")
