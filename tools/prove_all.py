"""Prove every model type transformers knows against live models; write docs/coverage.md and the package's facts.

python -m tools.prove_all                 all of them (some twenty minutes on two cores)
python -m tools.prove_all bert llama      only these; the rest is kept as it was
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
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FACTS = ROOT / "src/attngeo/weights/data/families.json"
RECORD = ROOT / "docs/coverage.json"
PAGE = ROOT / "docs/coverage.md"
SECONDS = 45  # for one type
BATCH = 30  # types a worker takes before a fresh one starts: importing transformers is half the work
_BETTER = ("right", "refused", "unproven", "none", "unbuilt")


class TooLate(BaseException):
    """A type used up its time; nothing that catches a model's own errors may catch it."""


def prove_type(model_type: str) -> dict[str, Any]:
    """Climb the ladder of tiny configurations until the type is proved, or take the best that came of it."""
    from attngeo.errors import LayoutError
    from tools.proof.build import CannotBuild, candidates, classes
    from tools.proof.facts import defaults
    from tools.proof.prove import Verdict, prove_model, tell

    best: Verdict | None = None
    try:
        if model_type.startswith("gguf:"):
            from tools.proof.gguf_proof import prove_arch

            return vars(prove_arch(model_type))
        tell(model_type, defaults=defaults(classes(model_type)[0]()))
        for model in candidates(model_type):
            try:
                verdict = prove_model(model, model_type)
            except LayoutError as error:
                verdict = Verdict(model_type, "none" if "no self-attention" in str(error) else "refused", str(error))
            except Exception as error:
                verdict = Verdict(model_type, "unbuilt", f"{type(error).__name__}: {error}")
            verdict.reason = re.sub(r"/\S*tmp\S*: ", "", " ".join(verdict.reason.split()))[:400]
            again = best is not None and bool(verdict.sites) and verdict.reason == best.reason
            if best is None or _BETTER.index(verdict.status) < _BETTER.index(best.status):
                best = verdict
            if best.status == "right" or again:  # a second size with the same complaint: a third would say it too
                break
    except CannotBuild as error:
        best = best or Verdict(model_type, "unbuilt", str(error))
    except TooLate:
        best = best or Verdict(model_type, "unproven", f"no verdict within {SECONDS} s")
    except Exception as error:  # the type's own config or class cannot even be made
        best = best or Verdict(model_type, "unbuilt", f"{type(error).__name__}: {error}")
    assert best is not None
    best.reason = best.reason.partition(" neither in ")[0]  # what follows are folders of one machine
    return vars(best)


def work(model_types: list[str]) -> None:
    """A worker: one JSON line for each type on standard output."""
    import torch
    import transformers

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()

    def late(*_: object) -> None:
        raise TooLate

    signal.signal(signal.SIGALRM, late)
    for model_type in model_types:
        start = time.time()
        signal.alarm(SECONDS)
        verdict = prove_type(model_type)
        signal.alarm(0)
        print(json.dumps({**verdict, "seconds": round(time.time() - start, 1)}), flush=True)


def launch(batch: list[str]) -> list[dict[str, Any]]:
    """Run one worker; a type that kills it is recorded and the rest goes to the next."""
    results: list[dict[str, Any]] = []
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "tools")}
    while batch:
        done = subprocess.run(
            [sys.executable, "-m", "tools.prove_all", "--work", *batch],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        results += lines
        batch = batch[len(lines) :]
        if batch:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            results.append({"model_type": batch[0], "status": "unbuilt", "reason": f"worker died: {last[:200]}"})
            batch = batch[1:]
        counts = Counter(line["status"] for line in lines)
        print(f"{lines[0]['model_type'] if lines else '?'} …: {dict(counts)}", file=sys.stderr, flush=True)
    return results


@cache
def all_defaults() -> dict[str, dict[str, Any]]:
    """Default head counts of every config class, those of inner models included."""
    from transformers import CONFIG_MAPPING

    from tools.proof.facts import defaults

    found = {}
    for model_type in CONFIG_MAPPING:
        try:
            found[model_type] = defaults(CONFIG_MAPPING[model_type]())
        except Exception:
            continue  # a class without defaults leaves nothing out
    return found


def assumed_causal(model_type: str) -> bool | None:
    """Where a live model could not be asked: transformers' lists of language models; a text tower is one."""
    from transformers.models.auto import modeling_auto

    causal = model_type in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or model_type.endswith("_text")
    return True if causal and model_type not in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES else None


def write(record: dict[str, dict[str, Any]]) -> None:
    import transformers

    facts: dict[str, dict[str, Any]] = {kind: {"defaults": value} for kind, value in all_defaults().items() if value}
    for kind, verdict in record.items():
        entry = facts.setdefault(kind, {})
        entry["status"] = verdict["status"]
        if verdict["status"] != "right" and verdict.get("reason"):
            entry["reason"] = verdict["reason"]
        causal = verdict.get("causal")
        causal = assumed_causal(kind) if causal is None else causal
        if causal is not None:
            entry["causal"] = causal
        entry.update({key: verdict[key] for key in ("qk_norm", "width", "offset", "norms", "skip") if verdict.get(key)})
    lines = [f"{json.dumps(kind)}: {json.dumps(facts[kind], sort_keys=True)}" for kind in sorted(facts)]
    FACTS.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")
    RECORD.write_text(
        "{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(record[k])}" for k in sorted(record)) + "\n}\n", "utf-8"
    )
    from tools.proof.page import page

    PAGE.write_text(page(record, transformers.__version__), "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("types", nargs="*")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    sys.path.insert(0, str(ROOT / "tools"))
    if arguments.work:
        return work(arguments.types)
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    transformers.logging.set_verbosity_error()
    record = json.loads(RECORD.read_text("utf-8")) if RECORD.exists() else {}
    from tools.proof.gguf_archs import KINDS

    wanted = arguments.types or [*sorted(MODEL_MAPPING_NAMES), *KINDS]
    batches = [wanted[i : i + BATCH] for i in range(0, len(wanted), BATCH)]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for done in as_completed([pool.submit(launch, batch) for batch in batches]):
            record.update({result["model_type"]: result for result in done.result()})
            write(record)
    print(dict(Counter(verdict["status"] for verdict in record.values())))


if __name__ == "__main__":
    main()
