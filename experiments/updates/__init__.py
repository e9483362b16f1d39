"""What training does to the forms, step by step: the experiment behind docs/gradients.md.

    python -m experiments.updates run --tokens TOKENS --results FILE.jsonl
    python -m experiments.updates page

An encoder and a decoder of one shape are trained. At a few steps the update of each form is averaged over many masks,
for the decoder over many batches, and compared with what the optimiser then makes of it. The experiment needs torch and
transformers, but neither polars nor typer.
"""

__all__: list[str] = []
