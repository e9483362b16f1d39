"""`BlockStructure`: whether a live attention layer reads a norm of its own block, and whether it rotates.

What was proved about the model type decides. Where nothing was, the names of the modules do: they are enough for a
warning, but not for a score.
"""

from __future__ import annotations

import re

from attngeo.live.checkpoint import LiveCheckpoint
from attngeo.weights.layout.layer_plan import LayerPlan

# Names of the norm before the attention in its block: LLaMA's "input_layernorm", Falcon's "ln_attn", "layer_norm1",
# "norm1", "ln_1", "layernorm_before", "attn_norm", "pre_sa_norm", and ESM's "LayerNorm" beside the attention. A norm
# behind the attention is called "post_attention_layernorm", or is a part of the module "output".
_NORM_BEFORE = re.compile(
    r"input_layer_?norm|(?:rms_|layer_?)?norm_?1|ln_?1|layer_?norm_before(?:_attention)?|ln_attn|LayerNorm|"
    r"(?:pre_)?(?:sa|self_attn|attn|attention)_(?:layer_?)?norm"
)
_ROTARY = re.compile(r"rotary|rope", re.IGNORECASE)  # in the name of a class


class BlockStructure:
    """The modules of a live model around its attention layers."""

    def __init__(self, checkpoint: LiveCheckpoint) -> None:
        self._modules = checkpoint.modules
        # Paths of the modules that have a rotary embedding: the attention itself, or the stack around its layers.
        self._rotary = {
            path.rpartition(".")[0] for path, module in self._modules.items() if _ROTARY.search(type(module).__name__)
        }

    def reads_own_norm(self, plan: LayerPlan) -> bool:
        """Return whether a norm of its own block comes before the attention, as in pre-norm models."""
        if plan.norm is not None:
            return plan.norm.own_block
        for path in _paths_around(plan.site.path):
            around = self._modules.get(path)
            if around is not None and any(_NORM_BEFORE.fullmatch(name) for name, _ in around.named_children()):
                return True
            if path.rpartition(".")[2].isdecimal():  # the block
                return False
        return False

    def rotates(self, plan: LayerPlan) -> bool:
        """Return whether queries and keys are rotated by their positions."""
        if plan.rotary_known:
            return plan.rotary is not None
        return not self._rotary.isdisjoint([plan.site.path, *_paths_around(plan.site.path), ""])


def _paths_around(path: str) -> list[str]:
    """Return the paths of the modules around `path`, the nearest first, without that of the whole model.

    >>> _paths_around("layers.3.self_attn")
    ['layers.3', 'layers']
    """
    words = path.split(".")
    return [".".join(words[:count]) for count in range(len(words) - 1, 0, -1)]
