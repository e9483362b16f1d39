"""Files of training: corpora, token files, configs, records, checkpoints of a run, logs of the experiments."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import tempfile
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.containers import mutate_zip
from tests.fuzz.kinds import Files, Kind
from tests.fuzz.mutations import STRANGE_VALUES, RawText, mutate_bytes, mutate_json
from tests.fuzz.weight_kinds import layouts, pickle_bytes

TEXT = "one two three four five\n\nsix seven eight nine ten\n\neleven twelve\n"
SETTINGS: dict[str, Any] = {
    "out": "run", "train": ["corpus.txt"], "size": "2x32", "heads": 2, "vocab": 300, "length": 16, "batch": 4,
    "steps": 2, "evaluations": 2, "checkpoints": 1, "warmup": 1, "lr": 1e-3, "start": "symmetric", "seed": 3,
    "objective": "masked", "betas": [0.9, 0.98], "masked": 0.3, "keep_model": False, "precision": "fp32",
}  # fmt: skip


def _corpus_files() -> Files:
    lines = "".join(json.dumps({"text": text}) + "\n" for text in TEXT.split("\n\n"))
    return {"corpus.txt": TEXT.encode(), "corpus.jsonl": lines.encode(), "corpus.txt.gz": gzip.compress(TEXT.encode()),
            "corpus.txt.xz": lzma.compress(TEXT.encode()), "corpus.parquet": _parquet()}  # fmt: skip


def _parquet() -> bytes:
    import polars as pl

    content = io.BytesIO()
    pl.DataFrame({"text": TEXT.split("\n\n")}).write_parquet(content)
    return content.getvalue()


def _mutate_corpus(rng: Random, files: Files) -> Files:
    name = rng.choice(list(files))
    if name == "corpus.jsonl" and rng.random() < 0.7:
        lines = files[name].splitlines()
        at = rng.randrange(len(lines))
        lines[at] = mutate_json(rng, json.loads(lines[at]))
        return {name: b"\n".join(lines)}
    return {name: mutate_bytes(rng, files[name])}


def _read_corpus(rng: Random, folder: Path, out: Path) -> None:
    from attngeo.training.data.corpus import documents

    for path in sorted(folder.iterdir()):
        assert list(documents([str(path)]))


@cache
def token_files() -> Files:
    """Token files prepared from a small text."""
    from attngeo.training.data.prepare import prepare_tokens

    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "corpus.txt"
        source.write_text("\n\n".join([TEXT.replace("\n\n", " ") * 10] * 220))
        prepare_tokens(Path(folder) / "tokens", [str(source)], vocabulary=80)
        paths = (Path(folder) / "tokens").iterdir()
        return {path.name: path.read_bytes() for path in paths if not path.name.startswith(".")}


def _mutate_tokens(rng: Random, files: Files) -> Files:
    name = rng.choice(
        ("tokens.json", "tokens.json", "train.bin", "valid.bin", "tokenizer.json", "tokenizer_config.json")
    )
    if name.endswith(".json") and rng.random() < 0.8:
        return {**files, name: mutate_json(rng, json.loads(files[name]))}
    if name.endswith(".bin") and rng.random() < 0.5:  # ids no tokenizer has, in a file of the right size
        data = bytearray(files[name])
        for _ in range(rng.choice((1, len(data) // 2))):
            data[rng.randrange(len(data))] = 255
        return {**files, name: bytes(data)}
    return {**files, name: mutate_bytes(rng, files[name])}


def _read_tokens(rng: Random, folder: Path, out: Path) -> None:
    import attngeo
    from attngeo.training.data.tokens import open_tokens
    from attngeo.training.data.wordpiece import load_tokenizer

    tokens = open_tokens(folder)
    assert tokens.array("train").shape == (tokens.train,)
    load_tokenizer(folder)
    if rng.random() < 0.5:
        settings = {key: value for key, value in SETTINGS.items() if key != "train"}
        attngeo.pretrain({**settings, "out": str(out / "run"), "tokens": str(folder), "steps": 1, "evaluations": 1,
                          "keep_model": rng.random() < 0.3})  # fmt: skip


def _mutate_config(rng: Random, files: Files) -> Files:
    """Damage the bytes of a TOML config, or give some of its settings strange values."""
    if rng.random() < 0.4:
        return {"run.toml": mutate_bytes(rng, files["run.toml"])}
    values = (*STRANGE_VALUES, RawText("1979-05-27"), RawText("[[a]]"), RawText("inf"), RawText("nan"), "2x", "0x0",
              "9" * 30, f"{10**9}x{10**9}", "2x33", "²x³", "mimetic-", "mimetic-nan", "unit", "bf16",
              "1x" + "9" * 5000)  # fmt: skip
    settings = {key: value for key, value in SETTINGS.items() if rng.random() < 0.95}
    for _ in range(rng.choice((1, 1, 2))):
        settings[rng.choice([*SETTINGS, "scale", "tokens", "tokenizer", "clip", "intermediate", "compile", "new"])] = (
            rng.choice(values)
        )
    return {"run.toml": _toml(settings)}


def _toml(settings: dict[str, Any]) -> bytes:
    return "".join(f"{key} = {_toml_value(value)}\n" for key, value in settings.items()).encode(
        "utf-8", "surrogateescape"
    )


def _toml_value(value: Any) -> str:
    if isinstance(value, RawText):
        return value
    if isinstance(value, str):
        return json.dumps(value.encode("utf-8", "replace").decode())
    if isinstance(value, list):
        return f"[{', '.join(map(_toml_value, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml_value(inner)}" for key, inner in value.items()) + "}"
    return "nul" if value is None else str(value).lower()


def _read_config(rng: Random, folder: Path, out: Path) -> None:
    from attngeo.training.pretraining.config import load_config

    config = load_config(folder / "run.toml")
    assert config.shape and config.fingerprint


def _records() -> list[dict[str, Any]]:
    layers = {"stack": ["decoder", "decoder"], "layer": [0, 1]}
    figures = ("symmetry", "directionality", "norm", "row_spread", "column_spread")
    return [
        {"step": step, **layers, **{name: [0.1, 0.2] for name in figures}, "max_logit": [1.0, None],
         **{f"head_{name}": [[0.1, 0.2]] * 2 for name in figures}}
        for step in (0, 10, 20)
    ]  # fmt: skip


def _record_files() -> Files:
    return {"attngeo.jsonl": "".join(json.dumps(row) + "\n" for row in _records()).encode()}


def _mutate_records(rng: Random, files: Files) -> Files:
    if rng.random() < 0.3:
        return {"attngeo.jsonl": mutate_bytes(rng, files["attngeo.jsonl"])}
    lines = files["attngeo.jsonl"].splitlines()
    for _ in range(rng.choice((1, 1, 3))):
        at = rng.randrange(len(lines))
        lines[at] = mutate_json(rng, _records()[at % 3])
    return {"attngeo.jsonl": b"".join(line + b"\n" for line in lines)}


def _read_records(rng: Random, folder: Path, out: Path) -> None:
    """Read records, continue them with a scored checkpoint, and (sometimes) draw them."""
    import attngeo
    from attngeo.show.training import training_figure
    from attngeo.training.monitoring.records import read_records

    path = folder / "attngeo.jsonl"
    records = read_records(path)
    copied = out / "attngeo.jsonl"
    copied.write_bytes(path.read_bytes())
    for step in (10, 30):
        (out / f"step-{step}").mkdir()
        for name, data in layouts()["llama"].items():
            (out / f"step-{step}" / name).write_bytes(data)
    if rng.random() < 0.15:
        training_figure(records)
    try:
        attngeo.track(out)
    except attngeo.AttngeoError as error:  # right: the valid records are not of this run
        if "another run" not in str(error):
            raise


@cache
def run_files() -> Files:
    """A short pre-training run that can be continued: its checkpoint and records, and the token files."""
    import attngeo

    with tempfile.TemporaryDirectory() as folder:
        for name, data in token_files().items():
            (Path(folder) / name).write_bytes(data)
        settings = {key: value for key, value in SETTINGS.items() if key != "train"}
        attngeo.pretrain({**settings, "out": f"{folder}/run", "tokens": folder}, stop=lambda: True)
        names = ("checkpoint.pt", "metrics.jsonl")
        return {name: (Path(folder) / "run" / name).read_bytes() for name in names}


def _mutate_run(rng: Random, files: Files) -> Files:
    import torch

    if rng.random() < 0.15:
        rows = [json.loads(line) for line in files["metrics.jsonl"].splitlines()]
        return {**files, "metrics.jsonl": b"".join(mutate_json(rng, row) + b"\n" for row in rows)}
    if rng.random() < 0.6:
        mutate = partial(mutate_zip, mutate_entry=lambda rng, _, content: mutate_bytes(rng, content, header=500))
        return {**files, "checkpoint.pt": mutate(rng, files["checkpoint.pt"])}
    state = torch.load(io.BytesIO(files["checkpoint.pt"]), weights_only=True)
    key = rng.choice(list(state))
    odd = rng.choice((None, 3, -1, "x", {}, [], torch.zeros(2), 1e300, {"a": 1}, "delete"))
    node, name = state, key
    while isinstance(node[name], dict) and node[name] and rng.random() < 0.7:
        node, name = node[name], rng.choice(list(node[name]))
    if odd == "delete":
        del node[name]
    else:
        node[name] = odd
    return {**files, "checkpoint.pt": pickle_bytes(state)}


def _read_run(rng: Random, folder: Path, out: Path) -> None:
    """Continue the run from its checkpoint."""
    import attngeo

    (out / "run").mkdir()
    (out / "tokens").mkdir()
    for path in folder.iterdir():
        (out / "run" / path.name).write_bytes(path.read_bytes())
    for name, data in token_files().items():
        (out / "tokens" / name).write_bytes(data)
    settings = {key: value for key, value in SETTINGS.items() if key != "train"}
    attngeo.pretrain({**settings, "out": str(out / "run"), "tokens": str(out / "tokens")})


def _run_log_rows() -> list[dict[str, Any]]:
    rows = []
    for start in ("baseline", "symmetric"):
        for seed in range(2):
            cell = {"start": start, "lr": 1e-3, "seed": seed, "steps": 20, "size": "2x32", "objective": "masked"}
            records = [{"step": step, "eval_loss": 5.0 - step / 10, "train_loss": 5.0, "symmetry": [0.1, 0.2],
                        "directionality": [0.0, 0.1]} for step in (0, 10, 20)]  # fmt: skip
            rows.append({"cell": cell, "facts": {"seconds": 1.0}, "records": records})
    return rows


def _log_files() -> Files:
    return {"runs.jsonl.xz": b"".join(lzma.compress(json.dumps(row).encode() + b"\n") for row in _run_log_rows())}


def _mutate_log(rng: Random, files: Files) -> Files:
    if rng.random() < 0.3:
        return {"runs.jsonl.xz": mutate_bytes(rng, files["runs.jsonl.xz"])}
    rows = [json.dumps(row).encode() for row in _run_log_rows()]
    at = rng.randrange(len(rows))
    rows[at] = mutate_json(rng, _run_log_rows()[at])
    return {"runs.jsonl.xz": lzma.compress(b"\n".join(rows) + b"\n")}


def _read_log(rng: Random, folder: Path, out: Path) -> None:
    from experiments.initialisation.runs import read_runs
    from experiments.initialisation.statistics import compare
    from experiments.initialisation.table import as_text

    as_text(compare(read_runs([folder])))


KINDS = (
    Kind("corpus", cache(_corpus_files), _mutate_corpus, _read_corpus),
    Kind("token files", token_files, _mutate_tokens, _read_tokens),
    Kind("pre-training config", lambda: {"run.toml": _toml(SETTINGS)}, _mutate_config, _read_config),
    Kind("records", cache(_record_files), _mutate_records, _read_records),
    Kind("training checkpoint", run_files, _mutate_run, _read_run),
    Kind("run log", cache(_log_files), _mutate_log, _read_log),
)
