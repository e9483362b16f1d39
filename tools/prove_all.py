"""Compare every model type of transformers with live models; write docs/coverage.json and the facts the package ships.

python -m tools.prove_all                 all types (up to an hour on two cores)
python -m tools.prove_all bert llama      these types; the results of all others are kept
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import cache
from pathlib import Path
from typing import Any

from attngeo.errors import LayoutError
from attngeo.io.files import write_file
from attngeo.weights.layout.facts import family
from tools.proof.fixed_positions import READ_FROM_CODE
from tools.proof.page import with_counts
from tools.proof.shipped import write_shipped
from tools.proof.verdict import Verdict, assume, write_lines

ROOT = Path(__file__).resolve().parent.parent
FACTS = ROOT / "src/attngeo/weights/data/families.json"
RECORD = ROOT / "docs/coverage.json"
PAGE = ROOT / "docs/coverage.md"
SECONDS = 90  # of processor time that one type may use, so that a busy machine gives the same verdicts
BATCH = 30  # types per worker process: importing transformers takes half the time of a small batch
# Facts of a verdict that the package ships, where they say something.
_SHIPPED = (
    "qk_norm", "width", "offset", "centred", "gated", "window_keys", "storage", "fixed_positions", "norms",
    "rotary", "skip", "prune",
)  # fmt: skip
_STATUSES = ("right", "refused", "unproven", "none", "unbuilt")  # best first


class TimeLimit(BaseException):
    """A type has used up its time. Not an Exception: code that catches a model's own errors must not catch it."""


def prove_type(model_type: str, *, rotation: bool = True) -> dict[str, Any]:
    """Return the verdict on one model type: of the first tiny model that is right, else the best of all tried.

    rotation: also find out how its heads rotate
    """
    from tools.proof.config_defaults import config_defaults
    from tools.proof.hypotheses import best_verdict
    from tools.proof.prove import prove_model
    from tools.proof.tiny_model import CannotBuild, config_and_model_class, tiny_models

    def prove() -> Verdict:
        """Return the verdict on `model` under the facts that attngeo assumes."""
        try:
            verdict = prove_model(model, model_type, rotation=rotation)
            if verdict.causal not in (None, family(model_type).causal):  # stacks are named by it
                assume(model_type, causal=verdict.causal)
                verdict = prove_model(model, model_type, rotation=rotation)
        except LayoutError as error:
            verdict = Verdict(model_type, "none" if "no self-attention" in str(error) else "refused", str(error))
        except Exception as error:
            verdict = Verdict(model_type, "unbuilt", f"{type(error).__name__}: {error}")
        verdict.reason = re.sub(r"/\S*tmp\S*: ", "", " ".join(verdict.reason.split()))[:400]
        return verdict

    best: Verdict | None = None
    try:
        if model_type.startswith("gguf:"):
            from tools.proof.gguf.prove import prove_arch

            return vars(prove_arch(model_type))
        assume(model_type, defaults=config_defaults(config_and_model_class(model_type)[0]()))
        for model in tiny_models(model_type):
            verdict = best_verdict(model_type, list(model.state_dict()), prove)
            same_reason = best is not None and bool(verdict.sites) and verdict.reason == best.reason
            if best is None or _STATUSES.index(verdict.status) < _STATUSES.index(best.status):
                best = verdict
            if best.status == "right" or same_reason:  # a third size would give the same reason again
                break
    except CannotBuild as error:
        best = best or Verdict(model_type, "unbuilt", str(error))
    except TimeLimit:
        best = best or Verdict(model_type, "unproven", f"no verdict within {SECONDS} s")
    except Exception as error:  # the config or the class of the type cannot be made
        best = best or Verdict(model_type, "unbuilt", f"{type(error).__name__}: {error}")
    assert best is not None
    best.reason = best.reason.partition(" neither in ")[0]  # the rest lists folders of this machine
    return vars(best)


def work(model_types: list[str], prove: Callable[[str], dict[str, Any]] = prove_type) -> None:
    """Run as a worker process: print one JSON line per type on standard output."""
    import torch
    import transformers

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()

    def stop(*_: object) -> None:
        raise TimeLimit

    signal.signal(signal.SIGPROF, stop)
    for model_type in model_types:
        begin = time.time()
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        verdict = prove(model_type)
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps({**verdict, "seconds": round(time.time() - begin, 1)}), flush=True)


def run_workers(types: list[str], module: str, jobs: int) -> Iterator[list[dict[str, Any]]]:
    """Yield the verdicts on the types in batches, as workers of `module` find them."""
    batches = [types[start : start + BATCH] for start in range(0, len(types), BATCH)]
    with ThreadPoolExecutor(jobs) as pool:
        for worker in as_completed([pool.submit(run_worker, batch, module) for batch in batches]):
            yield worker.result()


def run_worker(batch: list[str], module: str) -> list[dict[str, Any]]:
    """Return the verdicts on a batch; a type that kills its worker is recorded, and the rest gets another worker."""
    results: list[dict[str, Any]] = []
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    while batch:
        worker = subprocess.run(
            [sys.executable, "-m", module, "--work", *batch],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        verdicts = [json.loads(line) for line in worker.stdout.splitlines() if line.startswith("{")]
        results += verdicts
        batch = batch[len(verdicts) :]
        if batch:
            last = (worker.stderr.strip().splitlines() or ["no message"])[-1]
            results.append({"model_type": batch[0], "status": "unbuilt", "reason": f"worker died: {last[:200]}"})
            batch = batch[1:]
        counts = Counter(verdict["status"] for verdict in verdicts)
        first = verdicts[0]["model_type"] if verdicts else "?"
        print(f"{first} …: {dict(counts)}", file=sys.stderr, flush=True)
    return results


@cache
def all_defaults() -> dict[str, dict[str, Any]]:
    """Return the defaults of every config class, those of inner models included."""
    from transformers import CONFIG_MAPPING

    from tools.proof.config_defaults import config_defaults

    defaults = {}
    for model_type in CONFIG_MAPPING:
        try:
            defaults[model_type] = config_defaults(CONFIG_MAPPING[model_type]())
        except Exception:
            continue  # a class that cannot be made without arguments: its config.json leaves nothing out
    return defaults


def assumed_causal(model_type: str) -> bool | None:
    """Return True for a language model by transformers' own lists, None otherwise; for types that could not be run."""
    from transformers.models.auto import modeling_auto

    causal = model_type in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or model_type.endswith("_text")
    return True if causal and model_type not in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES else None


def package_facts(record: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the facts about every model type that the package ships, from all verdicts."""
    from tools.proof.gguf.archs import OMITTED

    defaults = all_defaults() | {f"gguf:{name}": value for name, value in OMITTED.items()}
    facts: dict[str, dict[str, Any]] = {kind: {"defaults": value} for kind, value in defaults.items() if value}
    for kind, verdict in record.items():
        entry = facts.setdefault(kind, {})
        entry["status"] = verdict["status"]
        if verdict["status"] != "right" and verdict.get("reason"):
            entry["reason"] = verdict["reason"]
        causal = verdict.get("causal")
        causal = assumed_causal(kind) if causal is None else causal
        if causal is not None:
            entry["causal"] = causal
        entry.update({key: verdict[key] for key in _SHIPPED if verdict.get(key)})
    for kind in READ_FROM_CODE:
        facts.setdefault(kind, {})["fixed_positions"] = True
    return facts


def write_results(record: dict[str, dict[str, Any]]) -> None:
    """Write the facts, the record, the counts of the page, and what `attngeo coverage` prints."""
    import transformers

    facts = package_facts(record)
    write_lines(FACTS, {kind: json.dumps(facts[kind], sort_keys=True) for kind in sorted(facts)})
    write_lines(RECORD, {kind: json.dumps(record[kind]) for kind in sorted(record)})
    write_file(PAGE, with_counts(PAGE.read_text("utf-8"), record, transformers.__version__).encode())
    write_shipped()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("types", nargs="*", help="model types; none: all")
    parser.add_argument("--jobs", type=int, default=2, help="worker processes (default: 2)")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        return work(arguments.types)
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    from tools.proof.gguf.archs import KINDS

    transformers.logging.set_verbosity_error()
    record = json.loads(RECORD.read_text("utf-8")) if RECORD.exists() else {}
    wanted = arguments.types or [*sorted(MODEL_MAPPING_NAMES), *KINDS]
    for verdicts in run_workers(wanted, "tools.prove_all", arguments.jobs):
        for verdict in verdicts:
            before = record.get(verdict["model_type"], {})
            others = {key: before[key] for key in ("fixed_positions", "prune") if before.get(key)}  # of other proofs
            record[verdict["model_type"]] = verdict | others
        write_results(record)
    print(dict(Counter(verdict["status"] for verdict in record.values())))


if __name__ == "__main__":
    main()
