"""The processes that train together: one, or several started by accelerate or torchrun."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from accelerate import Accelerator


@dataclass(frozen=True)
class ProcessGroup:
    """This process and its place among the processes that train together."""

    device: torch.device
    rank: int = 0  # of this process
    world: int = 1  # number of processes
    accelerator: Accelerator | None = None  # None for a single process

    def mean_(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its mean over all processes, in one exchange."""
        if self.accelerator is None:
            return
        flat = self.accelerator.reduce(torch.cat([tensor.reshape(-1) for tensor in tensors]), "mean")  # [numbers]
        first = 0
        for tensor in tensors:
            tensor.copy_(flat[first : first + tensor.numel()].view_as(tensor))
            first += tensor.numel()

    def any(self, flag: bool) -> bool:
        """Tell every process whether the flag is set in at least one of them."""
        if self.accelerator is None:
            return flag
        return bool(self.accelerator.reduce(torch.tensor(float(flag), device=self.device), "sum") > 0)

    def all_equal(self, number: int) -> bool:
        """Tell whether every process has the same number."""
        if self.accelerator is None:
            return True
        numbers = self.accelerator.gather(torch.tensor([number], device=self.device))  # [world]
        return bool((numbers == number).all())

    def wait(self) -> None:
        """Wait until every process has come here."""
        if self.accelerator is not None:
            self.accelerator.wait_for_everyone()


def process_group() -> ProcessGroup:
    """Return the processes that `accelerate launch` or torchrun started, or this process alone."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        from accelerate import Accelerator, InitProcessGroupKwargs

        # The others wait while the first tokenises the corpus, which may take longer than the default of ten minutes.
        accelerator = Accelerator(kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(hours=12))])
        return ProcessGroup(accelerator.device, accelerator.process_index, accelerator.num_processes, accelerator)
    return ProcessGroup(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
