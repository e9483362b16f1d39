"""Score a checkpoint shaped like an 8B LLaMA-3: time compared with dense forms and with a lower bound, and memory.

The lower bound ("floor") is the time that every method needs that scores from the factors: the bytes are read once, and
(4H + G)·d·r² + 5·d·(G·r)² multiply-adds per layer are computed at the rate of a 4096³ float32 product.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

LAYERS, WIDTH, HEADS, GROUPS, SIZE = 32, 4096, 32, 8, 128
RUNS = 3
SIDE = 4096  # of the product that measures the speed of the machine
DENSE_HEADS = 3  # number of heads that are timed; the time of all heads is extrapolated

MULTIPLY_ADDS = LAYERS * ((4 * HEADS + GROUPS) * WIDTH * SIZE**2 + 5 * WIDTH * (GROUPS * SIZE) ** 2)
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


def print_cost(folder: str, extras: bool) -> None:
    """Score and print time and peak memory as JSON; runs in a process of its own, so that the peak is its own."""
    import attngeo

    rows = 0

    def score() -> None:
        nonlocal rows
        rows = attngeo.score(folder, nulls=extras, folded=extras).frame.height

    seconds = seconds_of(score)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    print(json.dumps({"seconds": seconds, "peak": peak, "rows": rows}))


def cost_of_scoring(folder: Path, *, extras: bool) -> dict[str, float]:
    """Return seconds, peak memory in bytes and number of rows of one scoring; extras: also nulls and folded norm."""
    command = [sys.executable, "-m", "bench.scoring", "extras" if extras else "plain", str(folder)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    cost: dict[str, float] = json.loads(done.stdout)
    assert cost["rows"] == LAYERS * (HEADS + 1)
    return cost


def multiply_add_rate() -> float:
    """Return the multiply-adds per second of a large float32 product."""
    a, b = random_weights(np.random.default_rng(1), 2, SIDE, SIDE)
    out = np.empty_like(a)
    return SIDE**3 / min(seconds_of(lambda: np.matmul(a, b, out=out)) for _ in range(3))


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
    from attngeo.weights.scoring.directionality import directionality
    from attngeo.weights.scoring.symmetry import symmetry_ratio, trace_of_square

    rows, columns = (np.linalg.norm(form, axis=axis) for axis in (1, 0))
    return float(symmetry_ratio(trace_of_square(form), (form * form).sum())), float(directionality(rows, columns))


def main() -> int:
    runs, floors, speedups = [], [], []
    with tempfile.TemporaryDirectory(prefix="attngeo-bench-") as name:
        folder = Path(name)
        path = write_checkpoint(folder)
        size = path.stat().st_size
        read = min(seconds_to_read(path) for _ in range(3))
        rates = [multiply_add_rate()]
        for _ in range(RUNS):  # measured in turn, so that a busy moment affects both sides of a comparison
            runs.append(cost_of_scoring(folder, extras=False))
            rates.append(multiply_add_rate())
            floors.append(read + MULTIPLY_ADDS / statistics.mean(rates[-2:]))
            speedups.append(seconds_with_dense_forms() / runs[-1]["seconds"])
        extras = cost_of_scoring(folder, extras=True)
    took = [run["seconds"] for run in runs]
    speedup = statistics.median(speedups)
    over = statistics.median(seconds / floor for seconds, floor in zip(took, floors, strict=True))
    peak = max(run["peak"] for run in runs)
    print(f"{LAYERS} layers, {LAYERS * HEADS} heads, {size / 1e9:.2f} GB of bfloat16:", end=" ")
    print(f"{statistics.median(took):.1f} s ({', '.join(f'{seconds:.1f}' for seconds in took)})")
    print(f"float32 product at {2 * statistics.median(rates) / 1e9:.0f} GFLOP/s, {read:.2f} s to read the bytes")
    targets = [
        (f"{speedup:.1f} × faster than dense forms", "at least 15 ×", speedup >= 15),
        (f"{over:.2f} × the floor ({statistics.median(floors):.1f} s)", "at most 1.5 ×", over <= 1.5),
        (f"{peak / 1e9:.2f} GB peak memory", "under 1.5 GB", peak < 1.5e9),
    ]
    for figure, target, met in targets:
        print(f"{figure}; {target}; {'met' if met else 'MISSED'}")
    print(f"with both nulls and the folded norm: {extras['seconds']:.1f} s, {extras['peak'] / 1e9:.2f} GB")
    return 0 if all(met for *_, met in targets) else 1


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print_cost(sys.argv[2], sys.argv[1] == "extras")
    else:
        sys.exit(main())
