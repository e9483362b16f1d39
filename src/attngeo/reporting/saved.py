"""`load_given`: a saved result from its file, so that the command line can show results as well as models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from attngeo.applications.compare.comparison import ABOUT, ModelComparison
from attngeo.applications.compare.model_map import ModelMap
from attngeo.applications.prune.loss_curve import LossCurve
from attngeo.applications.prune.plan import PrunePlan
from attngeo.errors import SourceError
from attngeo.io.archive import saved_kind
from attngeo.io.tables import read_parquet
from attngeo.organization.expansion import Expansion, SparsityControls
from attngeo.organization.invariance import InvarianceReport
from attngeo.organization.organize import Organization
from attngeo.organization.tensor import NetworkTensor
from attngeo.training.monitoring.records import read_records
from attngeo.weights.scoring.score_table import ScoreTable
from attngeo.weights.sources import SUFFIXES

_LOADERS: dict[str, Callable[[Path], Any]] = {
    "network tensor": NetworkTensor.load,
    "organization": Organization.load,
    "expansion": Expansion.load,
    "comparison": SparsityControls.load,
    "invariance report": InvarianceReport.load,
    "prune plan": PrunePlan.load,
    "pruning losses": LossCurve.load,
    "model map": ModelMap.load,
}


def load_given(ref: str) -> Any:
    """Return the result in the file `ref`, or `ref` itself where it names a model.

    Results are recognised by their content: .npz, .json and .parquet files that attngeo wrote, and .jsonl files of
    training records.
    """
    path = Path(ref)
    if not path.is_file():
        return ref
    if path.suffix == ".jsonl":
        if not (records := read_records(path)):
            raise SourceError(f"{path}: holds no records, expected those of a training run")
        return records
    if path.suffix == ".parquet":
        return _load_table(path)
    if path.suffix in (".npz", ".json"):
        kind = saved_kind(path)
        if kind in _LOADERS:
            return _LOADERS[kind](path)
        if path.suffix == ".npz":  # which is never a model
            found = "is incomplete, damaged or not a file of attngeo" if kind is None else f"holds a saved {kind}"
            raise SourceError(f"{path}: {found}, expected a result that a report shows")
    if not path.name.endswith((*SUFFIXES, *(f"{suffix}.index.json" for suffix in SUFFIXES))):
        weights, results = ", ".join(SUFFIXES), ".npz, .json, .jsonl, .parquet"
        raise SourceError(
            f"{path}: neither weights nor a saved result; expected a model folder, a file of weights ({weights}) or "
            f"a result that attngeo saved ({results})"
        )
    return ref


def _load_table(path: Path) -> ScoreTable | ModelComparison:
    try:
        _, metadata = read_parquet(path)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror or error})") from None
    except ValueError:
        raise SourceError(f"{path}: is damaged, expected a score table or a comparison saved by attngeo") from None
    return ModelComparison.load(path) if ABOUT in metadata else ScoreTable.load(path)
