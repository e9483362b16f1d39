"""Where the configs of diffusers classes declare heads; the proof confirms it, and the facts ship it.

Most transformers of diffusers have one count, `num_attention_heads`, and need no rule. UNets have one value per block,
and it may count heads or give the size of a head; their `attention_head_dim` counts heads in some classes.
"""

from __future__ import annotations

import re
from typing import Any

_UNET = r"UNet2DCondition|^ControlNet|SparseControlNet|UNetMotion|UNetSpatioTemporal|MotionAdapter|UNetControlNetXS"
# Pattern of class names, parts of layer paths (none: all), and the rule as in `attngeo.weights.layout.diffusers`.
_RULES: tuple[tuple[str, tuple[str, ...], dict[str, Any]], ...] = (
    (r"UNet3DCondition|I2VGenXL", ("transformer_in.",), {"fixed": 8}),
    (r"I2VGenXL", ("image_latents_temporal_encoder.",), {"fixed": 2}),
    (r"UNet3DCondition|I2VGenXL", (), {"size": "attention_head_dim"}),
    (r"UNetControlNetXS", ("ctrl_",), {"counts": ["ctrl_num_attention_heads"]}),
    (_UNET, ("motion_modules.",), {"counts": ["motion_num_attention_heads"]}),
    (_UNET, ("transformer_blocks.",), {"counts": ["num_attention_heads", "attention_head_dim"]}),
    (r"StableCascadeUNet", (), {"counts": ["num_attention_heads"]}),
    (r"UVit2D", ("attention_blocks.",), {"counts": ["block_num_heads"]}),
    (r"Kandinsky[56]", (), {"size": "axes_dims"}),
    (r"Kandinsky3UNet", (), {"size": "attention_head_dim"}),
    (r"^UNet2D|UNet2DCondition|^ControlNet", ("attentions.",), {"size": "attention_head_dim"}),
    (r"Autoencoder|VQModel|ConsistencyDecoder", ("mid_block.", "attentions."), {"fixed": 1}),
)


def head_rules(name: str) -> list[dict[str, Any]]:
    """Return the rules for the class `name`, the first that names a part of a layer's path holds.

    >>> head_rules("StableCascadeUNet")
    [{'in': [], 'counts': ['num_attention_heads']}]
    """
    return [{"in": list(parts), **rule} for classes, parts, rule in _RULES if re.search(classes, name)]
