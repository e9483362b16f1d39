"""Pre-train a small encoder or decoder: BERT, ModernBERT or LLaMA.

pretrain                            from a config to a trained model; a killed run continues
PretrainConfig, load_config         the settings of a run
train, Run, TrainingError           the training loop on prepared tokens, its result, and a loss that is not finite
ProcessGroup, process_group         the processes that train together
build_model, build_objective        the initialised model and the objective of a config
Batches, Rows, held_out_batches     training and held-out batches
MaskedObjective, CausalObjective    BERT's masking, and next-token prediction
Engine                              one training step
load_checkpoint                     the state of a run
"""

from attngeo.training.data.masking import MaskedObjective
from attngeo.training.pretraining.batches import Batches, Rows, held_out_batches
from attngeo.training.pretraining.build import build_model, build_objective
from attngeo.training.pretraining.checkpoint import load_checkpoint
from attngeo.training.pretraining.config import PretrainConfig, load_config
from attngeo.training.pretraining.engine import Engine
from attngeo.training.pretraining.loop import Run, TrainingError, train
from attngeo.training.pretraining.objective import CausalObjective
from attngeo.training.pretraining.pretrain import pretrain
from attngeo.training.pretraining.processes import ProcessGroup, process_group

__all__ = [
    "Batches",
    "CausalObjective",
    "Engine",
    "MaskedObjective",
    "PretrainConfig",
    "ProcessGroup",
    "Rows",
    "Run",
    "TrainingError",
    "build_model",
    "build_objective",
    "held_out_batches",
    "load_checkpoint",
    "load_config",
    "pretrain",
    "process_group",
    "train",
]
