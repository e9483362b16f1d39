"""Score a checkpoint shaped like an 8B LLaMA-3: time compared with dense forms and with another checkout, and memory.

    python -m bench.scoring [CHECKOUT]

"Plain" scores are symmetry and directionality alone; everything that a table holds by default adds both nulls, the
folded norm, effective ranks and the scores under rotary position embedding. With the folder of another checkout,
everything is measured with its code too, in turn.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from bench._memory import peak_bytes

ROOT = Path(__file__).resolve().parents[1]
LAYERS, WIDTH, HEADS, GROUPS, SIZE = 32, 4096, 32, 8, 128
RUNS = 3
DENSE_HEADS = 3  # number of heads that are timed; the time of all heads is extrapolated

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": GROUPS,
    "head_dim": SIZE,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "rope_theta": 500000.0,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}


def seconds_of(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def random_weights(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, dtype=np.float32) * np.float32(0.02)


def write_checkpoint(folder: Path) -> Path:
    """Write a safetensors file of bfloat16 queries, keys and input norms, tensor by tensor, and return its path."""
    (folder / "config.json").write_text(json.dumps(CONFIG))
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        shapes[f"{prefix}.self_attn.q_proj.weight"] = (HEADS * SIZE, WIDTH)
        shapes[f"{prefix}.self_attn.k_proj.weight"] = (GROUPS * SIZE, WIDTH)
        shapes[f"{prefix}.input_layernorm.weight"] = (WIDTH,)
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": (begin, end)}
    text = json.dumps(header).encode()
    rng = np.random.default_rng(0)
    path = folder / "model.safetensors"
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for shape in shapes.values():
            values = random_weights(rng, *shape) if len(shape) == 2 else 1 + random_weights(rng, *shape)
            file.write(
                (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
            )  # bfloat16 is the upper half of float32
    return path


def print_cost(folder: str, everything: bool) -> None:
    """Score and print time and peak memory as JSON; runs in a process of its own, so that the peak is its own."""
    from attngeo.weights.scoring.score import score_rows

    rows: list[dict[str, object]] = []

    def score() -> None:
        rows.extend(score_rows(folder, nulls=everything, folded=everything, finer=everything).rows)

    seconds = seconds_of(score)
    assert len(rows) == LAYERS * (HEADS + 1)
    if everything:
        wanted = ("symmetry_rope_repaired", "directionality_folded", "rank_skew", "dominance_z")
        assert all(row[name] is not None for row in rows for name in wanted)
    print(json.dumps({"seconds": seconds, "peak": peak_bytes()}))


def cost_of_scoring(folder: Path, *, everything: bool, checkout: Path = ROOT) -> dict[str, float]:
    """Return seconds and peak memory in bytes of one scoring: all that a table holds by default, or plain scores."""
    command = [sys.executable, "-m", "bench.scoring", "everything" if everything else "plain", str(folder)]
    paths = os.environ | {"PYTHONPATH": f"{checkout / 'src'}:{checkout}"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=checkout, env=paths)
    cost: dict[str, float] = json.loads(done.stdout)
    return cost


def seconds_to_read(path: Path) -> float:
    """Return the seconds to read the bytes of a file once, from disk or from the cache of the system."""
    buffer = bytearray(2**26)

    def read() -> None:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass

    return seconds_of(read)


def seconds_with_dense_forms() -> float:
    """Return the seconds for all layers and heads if the dense form of each head is made, extrapolated from a few."""
    query, key = random_weights(np.random.default_rng(2), 2, WIDTH, SIZE)
    layer = np.zeros((WIDTH, WIDTH), np.float32)

    def head() -> None:
        form = query @ key.T
        dense_scores(form)
        np.add(layer, form, out=layer)

    return LAYERS * (
        HEADS * min(seconds_of(head) for _ in range(DENSE_HEADS)) + seconds_of(lambda: dense_scores(layer))
    )


def dense_scores(form: np.ndarray) -> tuple[float, float]:
    """Return symmetry and directionality of a dense form [d, d], by their definitions."""
    from attngeo.weights.scoring.formulas import bounded_ratio, directionality, inner

    rows, columns = (np.linalg.norm(form, axis=axis) for axis in (1, 0))
    return float(bounded_ratio(inner(form, form.mT), (form * form).sum())), float(directionality(rows, columns))


def print_targets(targets: Sequence[tuple[str, str, bool]]) -> int:
    """Print each figure, its target and whether it is met; return the exit code."""
    for figure, target, met in targets:
        print(f"{figure}; {target}; {'met' if met else 'MISSED'}")
    return 0 if all(met for *_, met in targets) else 1


def main(other: Path | None = None) -> int:
    plain, whole, others, speedups = [], [], [], []
    with tempfile.TemporaryDirectory(prefix="attngeo-bench-") as name:
        folder = Path(name)
        size = write_checkpoint(folder).stat().st_size
        cost_of_scoring(folder, everything=True)  # draws the nulls of these shapes, which are then cached
        for _ in range(RUNS):  # measured in turn, so that a busy moment affects both sides of a comparison
            plain.append(cost_of_scoring(folder, everything=False))
            speedups.append(seconds_with_dense_forms() / plain[-1]["seconds"])
            whole.append(cost_of_scoring(folder, everything=True))
            if other is not None:
                others.append(cost_of_scoring(folder, everything=True, checkout=other))
    print(f"{LAYERS} layers, {LAYERS * HEADS} heads, {size / 1e9:.2f} GB of bfloat16")
    for what, costs in (("symmetry and directionality", plain), ("everything", whole)):
        seconds = [cost["seconds"] for cost in costs]
        print(f"{what}: {statistics.median(seconds):.1f} s ({', '.join(f'{second:.1f}' for second in seconds)})")
    speedup, peak = statistics.median(speedups), max(cost["peak"] for cost in whole)
    targets = [
        (f"plain scores {speedup:.1f} × faster than dense forms", "at least 12 ×", speedup >= 12),
        (f"{peak / 1e9:.2f} GB peak memory", "under 1 GB", peak < 1e9),
    ]
    if others:
        ratio = statistics.median(a["seconds"] / b["seconds"] for a, b in zip(whole, others, strict=True))
        targets.append((f"everything {ratio:.2f} × the time of the other checkout", "at most 1.5 ×", ratio <= 1.5))
    return print_targets(targets)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print_cost(sys.argv[2], sys.argv[1] == "everything")
    else:
        sys.exit(main(Path(sys.argv[1]).resolve() if len(sys.argv) == 2 else None))
