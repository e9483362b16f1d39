"""Sharded models: functions that need all weights in one process refuse them by name and do not change them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import attngeo
from attngeo.errors import InputError, LayoutError
from attngeo.training.gradients.gradient_terms import gradient_terms
from attngeo.training.initialise import symmetric_init_
from tests.training.gradients.gradient_models import labelled_batch, model_with_loss


@pytest.fixture
def sharded() -> Iterator[Any]:
    """A BERT under FSDP 2, in a group of one process."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        yield fully_shard(model_with_loss("bert"), mesh=init_device_mesh("cpu", (1,)))
    finally:
        distributed.destroy_process_group()


def test_a_sharded_model_is_not_initialised(sharded: Any) -> None:
    before = {name: value.full_tensor().clone() for name, value in sharded.named_parameters()}
    with pytest.raises(LayoutError, match="BertForMaskedLM: its weights are sharded; initialise the model before"):
        symmetric_init_(sharded)
    assert all(torch.equal(value.full_tensor(), before[name]) for name, value in sharded.named_parameters())


def test_gradient_terms_refuse_a_sharded_model(sharded: Any) -> None:
    with pytest.raises(
        InputError, match="BertForMaskedLM: its weights are sharded, expected all of them in this process"
    ):
        gradient_terms(sharded, labelled_batch("bert"))


@pytest.mark.filterwarnings("ignore")  # FSDP 1 is deprecated
def test_a_model_under_fsdp_1_is_refused_with_the_name_of_its_successor(sharded: Any) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(model_with_loss("bert"), device_id=torch.device("cpu"))
    for use in (lambda: attngeo.score(model), lambda: attngeo.Monitor()(0, model)):
        with pytest.raises(InputError, match=r"\(FSDP 1\) flattens its weights; shard the model by FSDP 2, torch"):
            use()
