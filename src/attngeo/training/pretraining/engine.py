"""One training step: compiled layers, fused AdamW, on a GPU the whole step as one CUDA graph; alone or with others."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from attngeo.training.pretraining.batches import Batch
from attngeo.training.pretraining.config import PretrainConfig

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
        """Replace each tensor by its mean over all processes, in one exchange; only where there are several."""
        assert self.accelerator is not None
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


def learning_rate(step: int, config: PretrainConfig) -> float:
    """Return the learning rate of a step, counted from 0: a linear rise over the warm-up, then a linear fall to 0."""
    if step < config.warmup:
        return config.lr * (step + 1) / config.warmup
    return config.lr * (config.steps - step) / max(1, config.steps - config.warmup)


class Engine:
    """A model with its optimiser; on a GPU with a single process, the step is recorded as a CUDA graph.

    model: has a method loss(ids, positions, targets) that returns the loss [] of a `Batch`
    """

    def __init__(self, model: nn.Module, config: PretrainConfig, processes: ProcessGroup) -> None:
        self.model, self.config, self.processes = model, config, processes
        self.parameters = list(model.parameters())
        on_gpu = processes.device.type == "cuda"
        # The exchange of gradients between processes is not recorded in a graph.
        self._graphed = on_gpu and processes.world == 1
        # A graph reads the learning rate from a tensor.
        self._rate = torch.zeros((), device=processes.device) if self._graphed else None
        matrices = [weight for weight in self.parameters if weight.dim() == 2]
        others = [weight for weight in self.parameters if weight.dim() != 2]
        self.optimizer = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}],
            lr=0.0 if self._rate is None else self._rate,
            betas=config.betas,
            fused=on_gpu or None,
            capturable=self._graphed,
        )
        self._graph: Any = None
        self._inputs: Batch | None = None  # the tensors the graph reads
        self._loss: Tensor | None = None  # the tensor the graph writes

    def step(self, batch: Batch, number: int) -> Tensor:
        """Train on one batch as step `number`, counted from 0, and return its loss [] on the device."""
        rate = learning_rate(number, self.config)
        if not self._graphed:
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            return self._train(batch)
        if self._graph is None:
            self._capture(batch)
        assert self._rate is not None and self._inputs is not None and self._loss is not None
        self._rate.fill_(rate)
        self._inputs.ids.copy_(batch.ids)
        self._inputs.positions.copy_(batch.positions)
        self._inputs.targets.copy_(batch.targets)
        self._graph.replay()
        return self._loss

    def _train(self, batch: Batch) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.model.loss(batch.ids, batch.positions, batch.targets)
        loss.backward()
        value = loss.detach()
        if self.processes.world > 1:
            self.processes.mean_([value, *(weight.grad for weight in self.parameters)])
        if self.config.clip:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.config.clip)
        self.optimizer.step()
        return value

    def _capture(self, batch: Batch) -> None:
        """Record one step as a graph: warm up at learning rate 0, record, restore weights and optimiser."""
        saved = self.state()
        assert self._rate is not None
        self._rate.zero_()
        self._inputs = Batch(batch.ids.clone(), batch.positions.clone(), batch.targets.clone())
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._train(self._inputs)
        torch.cuda.current_stream().wait_stream(side)
        self.optimizer.zero_grad(set_to_none=True)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._loss = self._train(self._inputs)
        self.restore(saved)

    def state(self) -> dict[str, Any]:
        """Return copies of everything a step changes, on the CPU, by parameter name.

        {"weights": {name: tensor}, "moments": {name: {"step", "exp_avg", "exp_avg_sq"}}}
        """
        moments = {}
        for name, weight in self.model.named_parameters():
            held = self.optimizer.state.get(weight)
            if held:
                moments[name] = {key: value.detach().cpu().clone() for key, value in held.items()}
        weights = {name: weight.detach().cpu().clone() for name, weight in self.model.named_parameters()}
        return {"weights": weights, "moments": moments}

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def restore(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned, in the same memory, so that a recorded graph sees it."""
        for name, weight in self.model.named_parameters():
            weight.copy_(state["weights"][name])
            held, moments = self.optimizer.state[weight], state["moments"].get(name)
            if not held and moments:
                on_device = {key: value.to(weight.device) for key, value in moments.items()}
                if not self._graphed and "step" in on_device and not self.optimizer.param_groups[0]["fused"]:
                    on_device["step"] = moments["step"].clone()  # the plain optimiser keeps it on the CPU
                self.optimizer.state[weight] = on_device
            for key, value in held.items():
                value.copy_(moments[key]) if moments else value.zero_()
