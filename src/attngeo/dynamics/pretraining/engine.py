"""One training step, as fast as the device allows: compiled layers, fused AdamW, the whole step one CUDA graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attngeo.dynamics.pretraining.batches import Batch
from attngeo.dynamics.pretraining.bert import Bert
from attngeo.dynamics.pretraining.config import PretrainConfig
from attngeo.dynamics.pretraining.processes import Team


def learning_rate(step: int, config: PretrainConfig) -> float:
    """Linear rise over the warm-up, linear fall to 0 at the end; steps count from 0."""
    if step < config.warmup:
        return config.lr * (step + 1) / config.warmup
    return config.lr * (config.steps - step) / max(1, config.steps - config.warmup)


class Engine:
    """A model with its optimiser; `step(batch, number)` trains on one batch and returns its loss on the device."""

    def __init__(self, model: Bert, config: PretrainConfig, team: Team, graph: bool | None = None) -> None:
        self.model, self.config, self.team = model, config, team
        self.parameters = list(model.parameters())
        on_gpu = team.device.type == "cuda"
        # A graph needs the learning rate as a tensor it can read; gradients between processes stay outside graphs.
        self._graphed = (on_gpu and team.world == 1) if graph is None else graph
        self._rate = torch.zeros((), device=team.device) if self._graphed else None
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
        self._read: Batch | None = None  # the tensors the graph reads
        self._loss: Tensor | None = None  # the tensor it writes

    def step(self, batch: Batch, number: int) -> Tensor:
        rate = learning_rate(number, self.config)
        if not self._graphed:
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            return self._train(batch)
        if self._graph is None:
            self._capture(batch)
        assert self._rate is not None and self._read is not None and self._loss is not None
        self._rate.fill_(rate)
        for mine, new in ((self._read.ids, batch.ids), (self._read.at, batch.at), (self._read.targets, batch.targets)):
            mine.copy_(new)
        self._graph.replay()
        return self._loss

    def _train(self, batch: Batch) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.model.loss(batch.ids, batch.at, batch.targets)
        loss.backward()
        value = loss.detach()
        if self.team.world > 1:
            self.team.mean_([value, *(weight.grad for weight in self.parameters)])
        if self.config.clip:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.config.clip)
        self.optimizer.step()
        return value

    def _capture(self, batch: Batch) -> None:
        """Warm up at learning rate 0, put the optimiser back where it was, record one step."""
        saved = self.state()
        assert self._rate is not None
        self._rate.zero_()
        self._read = Batch(*(part.clone() for part in (batch.ids, batch.at, batch.targets)))
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._train(self._read)
        torch.cuda.current_stream().wait_stream(side)
        self.optimizer.zero_grad(set_to_none=True)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._loss = self._train(self._read)
        self.restore(saved)

    def state(self) -> dict[str, Any]:
        """Copies of everything a step changes, on the CPU: weights, both moments, step counts, by parameter name."""
        moments = {}
        for name, weight in self.model.named_parameters():
            held = self.optimizer.state.get(weight)
            if held:
                moments[name] = {key: value.detach().cpu().clone() for key, value in held.items()}
        weights = {name: weight.detach().cpu().clone() for name, weight in self.model.named_parameters()}
        return {"weights": weights, "moments": moments}

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def restore(self, state: dict[str, Any]) -> None:
        """Put back what `state` gave, into the same memory, so that a recorded graph sees it."""
        for name, weight in self.model.named_parameters():
            weight.copy_(state["weights"][name])
            held, moments = self.optimizer.state[weight], state["moments"].get(name)
            if not held and moments:
                on = {key: value.to(weight.device) for key, value in moments.items()}
                if not self._graphed and "step" in on and not self.optimizer.param_groups[0]["fused"]:
                    on["step"] = moments["step"].clone()  # kept on the CPU by the plain optimiser
                self.optimizer.state[weight] = on
            for key, value in held.items():
                value.copy_(moments[key]) if moments else value.zero_()
