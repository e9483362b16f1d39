"""`TextSession`: one loaded model that organises texts; a newer text cancels an older one of the same side."""

from __future__ import annotations

import itertools
import tempfile
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

from attngeo.errors import InputError
from attngeo.io.progress import Progress
from attngeo.live.load import ModelRef, load_model
from attngeo.organization.capture import capture
from attngeo.organization.inputs import TEXT, modality
from attngeo.organization.organize import Organization, organize
from attngeo.organization.tensor import NetworkTensor, check_stack, check_stage
from attngeo.reporting.report import report
from attngeo.show.page.attention import attention_data
from attngeo.weights.scoring.score import score
from attngeo.weights.scoring.score_table import ScoreTable

SIDES = ("left", "right")  # the two places of the page
MOST_CHARACTERS = 20_000  # of a text


class Superseded(Exception):
    """A newer text for the same side has been asked for."""


class TextSession:
    """A model that is loaded once and organises one text at a time.

    >>> session = TextSession(attngeo.bundled("encoder"))
    >>> session.organise("left", "The sea was calm.")["shape"]
    [9, 9, 16]
    """

    def __init__(
        self,
        ref: ModelRef,
        *,
        stage: str = "probabilities",
        stack: str | None = None,
        truncate: bool = False,
        device: str | None = None,
    ):
        check_stage(stage)
        check_stack(stack)
        self._ref, self._device = ref, device
        self._loaded = load_model(ref, device=device)
        if self._loaded.tokenizer is None:
            raise InputError(f"{self._loaded.name}: has no tokenizer, so there is no text to explore it with")
        if modality("a text", self._loaded, stack) != TEXT:  # it would take a text for the path of an image or a sound
            raise InputError(f"{self._loaded.name}: reads images or sounds, expected a model or stack that reads text")
        self._options: dict[str, Any] = {"stage": stage, "stack": stack, "truncate": truncate}
        self._options |= {"tokenizer": self._loaded.tokenizer}
        self._one_at_a_time = threading.Lock()
        self._tickets = itertools.count()
        self._newest = dict.fromkeys(SIDES, -1)
        self._shown: dict[str, Organization] = {}
        self._scores: ScoreTable | None = None

    @property
    def name(self) -> str:
        """The name of the model."""
        return self._loaded.name

    def organise(self, side: str, text: str) -> dict[str, Any]:
        """Return the organised attention on a text, as `attention_data` does.

        side: "left" or "right"; a call for the same side that is still at work ends with `Superseded`
        """
        if side not in SIDES:
            raise InputError(f"side {side!r}: expected left or right")
        if not text.strip():
            raise InputError("the text is empty")
        if len(text) > MOST_CHARACTERS:
            raise InputError(f"the text has {len(text):,} characters, expected at most {MOST_CHARACTERS:,}")
        ticket = self._newest[side] = next(self._tickets)

        def is_wanted(*_: object) -> None:
            if self._newest[side] != ticket:
                raise Superseded

        with self._one_at_a_time:
            is_wanted()
            found = self._shown[side] = self._organised(text, is_wanted)
        return attention_data(found)

    def cancel(self) -> None:
        """End all calls of `organise` that are at work or wait, with `Superseded`."""
        for side in SIDES:
            self._newest[side] = next(self._tickets)

    def warm_up(self) -> None:
        """Organise a few words, so that the first text is not slower than the next: kernels are loaded on first use."""
        attention_data(self._organised("a few words", lambda *_: None))

    def _organised(self, text: str, step: Progress) -> Organization:
        tensor = capture(self._loaded.model, text, **self._options)
        assert isinstance(tensor, NetworkTensor)
        step(0, None)
        return organize(replace(tensor, name=self.name), device=self._device, progress=step)

    def report_html(self, side: str) -> bytes:
        """Return the report of the text that a side shows."""
        found = self._shown.get(side)
        if found is None:
            raise InputError("there is nothing to report yet: organise a text first")
        with self._one_at_a_time, tempfile.TemporaryDirectory(prefix="attngeo-explore-") as folder:
            if self._scores is None:
                self._scores = score(self._ref)
            return report([self._ref, self._scores, found], Path(folder) / "report.html").read_bytes()
