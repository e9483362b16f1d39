"""One process, or many through accelerate: which device, which share of a batch, and the mean over all of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Team:
    """This process among those that train together."""

    device: torch.device
    rank: int = 0
    world: int = 1
    accelerator: Any = None

    def mean_(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replace the tensors by their means over all processes, in one exchange."""
        if self.world == 1:
            return
        flat = self.accelerator.reduce(torch.cat([tensor.reshape(-1) for tensor in tensors]), "mean")
        start = 0
        for tensor in tensors:
            tensor.copy_(flat[start : start + tensor.numel()].view_as(tensor))
            start += tensor.numel()

    def anyone(self, flag: bool) -> bool:
        """Whether the flag is set in any process; all of them hear the same."""
        if self.world == 1:
            return flag
        return bool(self.accelerator.reduce(torch.tensor(float(flag), device=self.device), "sum") > 0)

    def agree(self, number: int) -> bool:
        """Whether every process has the same number."""
        if self.world == 1:
            return True
        all_of_them = self.accelerator.gather(torch.tensor([number], device=self.device))  # [world]
        return bool((all_of_them == number).all())

    def wait(self) -> None:
        if self.world > 1:
            self.accelerator.wait_for_everyone()


def team() -> Team:
    """Started by `accelerate launch` (or torchrun): accelerate's processes; else this one alone."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        from datetime import timedelta

        from accelerate import Accelerator, InitProcessGroupKwargs

        # The others wait while the first one tokenises the corpus, which may take longer than the usual ten minutes.
        accelerator = Accelerator(kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(hours=12))])
        return Team(accelerator.device, accelerator.process_index, accelerator.num_processes, accelerator)
    return Team(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
