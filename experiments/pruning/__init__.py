"""The pruning experiment behind docs/pruning.md: all criteria on five models, with and without the refit.

    python -m experiments.pruning run SUBJECT --corpus DIR --out FILE.jsonl
    python -m experiments.pruning default --corpus DIR --out FILE.jsonl
    python -m experiments.pruning table FILE.jsonl…

It needs torch and transformers, but neither polars nor typer, so that it also runs on a bare machine with a GPU.
"""

__all__: list[str] = []
