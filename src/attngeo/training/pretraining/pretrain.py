"""`pretrain`: from a config to a trained model, text to tokens included."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from attngeo.errors import InputError
from attngeo.io.progress import Progress, accepts_progress_bar
from attngeo.training.data.prepare import prepare_tokens
from attngeo.training.data.tokens import Tokens, open_tokens
from attngeo.training.pretraining.config import PretrainConfig, load_config
from attngeo.training.pretraining.loop import Run, train
from attngeo.training.pretraining.processes import process_group


@accepts_progress_bar
def pretrain(
    config: PretrainConfig | Mapping[str, Any] | str | Path,
    *,
    progress: Progress | bool | None = None,
    stop: Callable[[], bool] | None = None,
) -> Run:
    """Pre-train a BERT, ModernBERT or LLaMA and return the run with its records.

    A run that was killed continues from its last checkpoint and gives the same losses (bitwise on a CPU).

    config: a PretrainConfig, a mapping of its fields, or the path of a TOML file
    progress: called with (documents done, None) while tokens are prepared, then with (steps done, steps in all);
        True draws a progress bar
    stop: called at every evaluation; when it returns true, the run is checkpointed and returned unfinished

    >>> settings = {"out": "runs/a", "train": ["corpus.txt"], "size": "4x256", "start": "symmetric"}
    >>> run = attngeo.pretrain(settings)                                # doctest: +SKIP
    >>> model = AutoModelForMaskedLM.from_pretrained("runs/a/model")    # doctest: +SKIP
    """
    config = load_config(config)
    call = progress if callable(progress) else None
    processes = process_group()
    if processes.rank == 0:  # the first process prepares the tokens, then the others open them
        tokens = tokens_for(config, call)
    processes.wait()
    if processes.rank:
        tokens = tokens_for(config)
    return train(config, tokens, processes, progress=call, stop=stop)


def tokens_for(config: PretrainConfig, progress: Progress | None = None) -> Tokens:
    """Return the token files of a config, which are prepared now if they do not exist."""
    folder = Path(config.tokens) if config.tokens else Path(config.out).parent / "tokens"
    if not config.train:
        if not config.tokens:
            raise InputError("neither train (text) nor tokens (prepared token files) is set")
        return open_tokens(folder)
    return prepare_tokens(
        folder,
        config.train,
        config.valid,
        tokenizer=config.tokenizer,
        vocabulary=config.vocab,
        lowercase=config.lowercase,
        field=config.text_field,
        progress=progress,
    )
