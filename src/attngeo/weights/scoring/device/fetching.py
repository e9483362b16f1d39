"""`Fetched`: a tensor that is copied to the CPU while the device goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attngeo.arrays import Floats

if TYPE_CHECKING:
    from torch import Tensor


class Fetched:
    """The values of a tensor, wanted later: asking at once would wait while the device computes nothing else."""

    def __init__(self, values: Tensor) -> None:
        import torch

        self._copy = values.to("cpu", non_blocking=True)
        self._copied = torch.cuda.current_stream(values.device).record_event() if values.is_cuda else None

    def array(self) -> Floats:
        """Return the values, once they have arrived."""
        if self._copied is not None:
            self._copied.synchronize()
        return np.asarray(self._copy.numpy())
