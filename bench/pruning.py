"""Size and speed of pruned models, as ratios to the full model: random weights in the shape of SmolLM2-135M.

The heads are drawn at random, because which heads go changes neither size nor speed. Full and pruned models run in
turn on one thread; each ratio is that of the processor times of their fastest turns.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

LAYERS, HEADS, GROUPS, SIZE, WIDTH = 30, 9, 3, 64, 576
PROMPT, NEW = 256, 8  # tokens that are read at once, and that are generated one by one after them
TURNS = 6


def full_model() -> Any:
    """Return a LLaMA in the shape of SmolLM2-135M with random weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=WIDTH,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=GROUPS,
            intermediate_size=1536,
            vocab_size=49152,
            tie_word_embeddings=True,
        )
    ).eval()


def removals() -> dict[str, list[str]]:
    """Return the labels of the heads that each way of pruning removes; all groups keep equally many query heads."""
    rng, size = np.random.default_rng(0), HEADS // GROUPS
    groups = [(layer, group) for layer in range(LAYERS) for group in range(GROUPS)]
    kept = [(layer, int(rng.integers(GROUPS))) for layer in range(LAYERS)]  # each layer keeps one
    free = [one for one in groups if one not in kept]
    drawn = [free[number] for number in rng.permutation(len(free))]

    def labels(some: list[tuple[int, int]], heads: range) -> list[str]:
        return [f"L{layer}H{group * size + head}" for layer, group in some for head in heads]

    return {
        "30% of the groups": labels(drawn[: round(0.3 * len(groups))], range(size)),
        "50% of the groups": labels(drawn[: round(0.5 * len(groups))], range(size)),
        "one group of each layer (33%)": labels([(layer, (group + 1) % GROUPS) for layer, group in kept], range(size)),
        "one query head of each group (33%)": labels(groups, range(1)),
    }


def attention_parameters(model: Any) -> int:
    return sum(value.numel() for name, value in model.named_parameters() if ".self_attn." in name)


def cache_bytes(model: Any) -> int:
    """Return the size of the keys and values that the model keeps of a prompt."""
    cache = prefill(model)
    return sum(part.numel() * part.element_size() for layer in cache.layers for part in (layer.keys, layer.values))


def prefill(model: Any) -> Any:
    """Read the prompt and return the cache."""
    import torch

    with torch.no_grad():
        return model.model(input_ids=torch.arange(PROMPT)[None], use_cache=True).past_key_values


def seconds(model: Any) -> tuple[float, float]:
    """Return the processor seconds that the prompt takes, and those that NEW tokens after it take."""
    import torch

    begin = time.process_time()
    cache = prefill(model)
    between = time.process_time()
    with torch.no_grad():
        for _ in range(NEW):
            model(input_ids=torch.tensor([[7]]), past_key_values=cache, use_cache=True)
    return between - begin, time.process_time() - between


def ratios(full: Any, small: Any) -> list[float]:
    """Return how long the small model takes relative to the full one, for the prompt and for the tokens after it."""
    turns = [(seconds(small), seconds(full)) for _ in range(TURNS)]
    return [min(of_small[i] for of_small, _ in turns) / min(of_full[i] for _, of_full in turns) for i in range(2)]


def main() -> int:
    import torch

    import attngeo

    torch.set_num_threads(1)
    full = full_model()
    of_full = full.num_parameters(), attention_parameters(full), cache_bytes(full)
    counts = f"{LAYERS} layers, {LAYERS * HEADS} query and {LAYERS * GROUPS} key heads"
    print(f"{counts}, {of_full[0] / 1e6:.0f} M parameters")
    print(f"pruned / full: parameters, those of the attention, cache, {PROMPT} tokens at once, {NEW} one by one")
    failed = False
    for name, labels in removals().items():
        small = attngeo.prune(full, attngeo.PrunePlan.from_heads(full, labels), refit=False)
        sizes = small.num_parameters(), attention_parameters(small), cache_bytes(small)
        found = [after / before for after, before in zip(sizes, of_full, strict=True)]
        found += ratios(full, small)
        # Queries and outputs shrink with the query heads; keys and values only with whole groups.
        share = len(labels) / (LAYERS * HEADS)
        failed |= found[1] > 1 - share * 2 * HEADS / (2 * HEADS + 2 * GROUPS) + 1e-9
        print(f"{name}: {', '.join(f'{ratio:.2f}' for ratio in found)}", flush=True)
    print(f"attention shrinks at least with the query heads; {'MISSED' if failed else 'met'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
