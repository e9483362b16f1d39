"""Score a checkpoint shaped like an 8B LLaMA-3: time compared with dense forms and with a lower bound, and memory.

The lower bound ("floor") is the time of the products from which the factors are scored: the bytes are read once, and
(4H + G)·d·r² + 5·d·(G·r)² multiply-adds per layer are computed at the rate of a 4096³ float32 product. That is for
symmetry and directionality alone ("plain"). Everything that a table holds by default adds, per layer,

    3H·d·r² + 3·d·(G·r)²             the re-paired null, which shares the Gram matrices
    (4H + G)·d·r² + 5·d·(G·r)²       scores with the norm folded in
    4H·r³ + 4·(G·r)³                 effective ranks
    4·d·(G·r)·2G + 4H·d·r            scores under rotary position embedding, with their re-paired null

Every product is counted in full. Gram matrices and the quadratic forms of the norms are symmetric, and blocks of them
that follow from others are left out: of the multiply-adds that are counted, 68% are computed for the plain scores and
72% for everything. A floor of those alone would be lower by as much.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from bench._memory import peak_bytes

LAYERS, WIDTH, HEADS, GROUPS, SIZE = 32, 4096, 32, 8, 128
RUNS = 3
SIDE = 4096  # of the product that measures the speed of the machine
DENSE_HEADS = 3  # number of heads that are timed; the time of all heads is extrapolated

RANK = GROUPS * SIZE  # of a layer form
PLAIN = LAYERS * ((4 * HEADS + GROUPS) * WIDTH * SIZE**2 + 5 * WIDTH * RANK**2)  # multiply-adds
EVERYTHING = 2 * PLAIN + LAYERS * (
    3 * HEADS * WIDTH * SIZE**2
    + 3 * WIDTH * RANK**2
    + 4 * (HEADS * SIZE**3 + RANK**3)
    + 8 * GROUPS * WIDTH * RANK
    + 4 * HEADS * WIDTH * SIZE
)
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


def cost_of_scoring(folder: Path, *, everything: bool) -> dict[str, float]:
    """Return seconds and peak memory in bytes of one scoring: all that a table holds by default, or plain scores."""
    command = [sys.executable, "-m", "bench.scoring", "everything" if everything else "plain", str(folder)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    cost: dict[str, float] = json.loads(done.stdout)
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


def print_targets(targets: Sequence[tuple[str, str, bool]]) -> int:
    """Print each figure, its target and whether it is met; return the exit code."""
    for figure, target, met in targets:
        print(f"{figure}; {target}; {'met' if met else 'MISSED'}")
    return 0 if all(met for *_, met in targets) else 1


def main() -> int:
    runs, all_runs, floors, all_floors, speedups = [], [], [], [], []
    with tempfile.TemporaryDirectory(prefix="attngeo-bench-") as name:
        folder = Path(name)
        path = write_checkpoint(folder)
        size = path.stat().st_size
        read = min(seconds_to_read(path) for _ in range(3))
        cost_of_scoring(folder, everything=True)  # draws the nulls of these shapes, which are then cached
        rates = [multiply_add_rate()]
        for _ in range(RUNS):  # measured in turn, so that a busy moment affects both sides of a comparison
            runs.append(cost_of_scoring(folder, everything=False))
            rates.append(multiply_add_rate())
            floors.append(read + PLAIN / statistics.mean(rates[-2:]))
            speedups.append(seconds_with_dense_forms() / runs[-1]["seconds"])
            all_runs.append(cost_of_scoring(folder, everything=True))
            rates.append(multiply_add_rate())
            all_floors.append(read + EVERYTHING / statistics.mean(rates[-2:]))
    took, all_took = ([run["seconds"] for run in some] for some in (runs, all_runs))
    speedup = statistics.median(speedups)
    over, all_over = (
        statistics.median(seconds / floor for seconds, floor in zip(*pair, strict=True))
        for pair in ((took, floors), (all_took, all_floors))
    )
    times = min(all_took) / min(took)
    peak, all_peak = (max(run["peak"] for run in some) for some in (runs, all_runs))
    print(f"{LAYERS} layers, {LAYERS * HEADS} heads, {size / 1e9:.2f} GB of bfloat16")
    print(f"float32 product at {2 * statistics.median(rates) / 1e9:.0f} GFLOP/s, {read:.2f} s to read the bytes")
    for what, seconds in (("symmetry and directionality", took), ("everything", all_took)):
        print(f"{what}: {statistics.median(seconds):.1f} s ({', '.join(f'{second:.1f}' for second in seconds)})")
    targets = [
        (f"plain scores {speedup:.1f} × faster than dense forms", "at least 15 ×", speedup >= 15),
        (f"plain scores {over:.2f} × their floor ({statistics.median(floors):.1f} s)", "at most 1.5 ×", over <= 1.5),
        (f"everything {times:.2f} × the plain scores", "at most 3.2 ×", times <= 3.2),
        (
            f"everything {all_over:.2f} × its floor ({statistics.median(all_floors):.1f} s)",
            "at most 1.15 ×",
            all_over <= 1.15,
        ),
        (f"{all_peak / 1e9:.2f} GB peak memory (plain {peak / 1e9:.2f} GB)", "under 1 GB", all_peak < 1e9),
    ]
    return print_targets(targets)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print_cost(sys.argv[2], sys.argv[1] == "everything")
    else:
        sys.exit(main())
