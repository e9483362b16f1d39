"""Compare the model classes of diffusers with live models; write docs/coverage_diffusers.json and the facts we ship.

python -m tools.prove_diffusers                          all classes that have an example (about a minute)
python -m tools.prove_diffusers FluxTransformer2DModel   these classes; the results of all others are kept
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from pathlib import Path
from typing import Any

from attngeo.io.files import write_file
from attngeo.weights.sources.checkpoint import PREFIX
from tools.proof.diffusers.head_rules import head_rules
from tools.proof.diffusers.page import RECORD
from tools.proof.shipped import write_shipped
from tools.proof.verdict import write_lines

ROOT = Path(__file__).resolve().parent.parent
FACTS = ROOT / "src/attngeo/weights/data/diffusers.json"
_SHIPPED = ("cross", "qk_norm", "gainless", "rotary", "skip")


def all_classes() -> list[str]:
    """Return the names of all model classes of diffusers."""
    import diffusers

    names = []
    for name in dir(diffusers):
        try:
            value = getattr(diffusers, name)
        except (ImportError, RuntimeError):  # needs a package that is not installed
            continue
        if isinstance(value, type) and issubclass(value, diffusers.ModelMixin) and value is not diffusers.ModelMixin:
            names.append(name)
    return names


def package_facts(classes: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the facts that the package ships, by model type."""
    import diffusers

    from tools.proof.diffusers.prove import class_defaults

    facts = {}
    for name, verdict in sorted(classes.items()):
        entry: dict[str, Any] = {"status": verdict["status"]}
        if verdict["status"] != "right":
            entry["reason"] = verdict["reason"]
        entry |= {
            key: verdict[key] for key in _SHIPPED if verdict.get(key) or (key == "cross" and verdict[key] is not None)
        }
        if defaults := class_defaults(getattr(diffusers, name)):
            entry["defaults"] = defaults
        facts[verdict["model_type"]] = entry
    for name in {*classes, *all_classes()}:  # those that were not examined are scored on request
        if rules := head_rules(name):
            facts.setdefault(PREFIX + name, {})["heads"] = rules
    return dict(sorted(facts.items()))


def write_results(classes: dict[str, dict[str, Any]]) -> None:
    """Write the facts, the record, and what `attngeo coverage` prints."""
    import diffusers

    others = sorted(set(all_classes()) - set(classes))
    facts = package_facts(classes)
    write_lines(FACTS, {kind: json.dumps(entry, sort_keys=True) for kind, entry in facts.items()})
    record = {"version": diffusers.__version__, "classes": classes, "others": others}
    write_file(RECORD, (json.dumps(record, indent=1) + "\n").encode())
    write_shipped()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("classes", nargs="*", help="class names; none: all that have an example")
    arguments = parser.parse_args()
    import torch
    from diffusers.utils import logging

    from tools.proof.diffusers.prove import EXAMPLES, REFUSED, prove_class

    warnings.simplefilter("ignore")  # diffusers and torch warn about tiny models of many kinds
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    record = json.loads(RECORD.read_text("utf-8"))["classes"] if arguments.classes and RECORD.exists() else {}
    for name in arguments.classes or [*EXAMPLES, *REFUSED]:
        verdict = prove_class(name)
        print(f"{verdict.status:9} {name} {verdict.reason}", file=sys.stderr, flush=True)
        record[name] = vars(verdict)
    write_results(dict(sorted(record.items())))


if __name__ == "__main__":
    main()
