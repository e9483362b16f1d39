"""Pre-train a small encoder or decoder: BERT, ModernBERT or LLaMA.

pretrain        the model of a config, trained and saved; a killed run continues
config          PretrainConfig: the settings of a run
architectures   BERT, pre-norm BERT, ModernBERT and LLaMA, as functions of tensors
model           a model in pre-training: its parameters, the functions that architectures share, its loss
batches         training and held-out batches, as a function of the step and the seed
engine          one training step, in one process or several
measure         scores and attention logits of a model in training
checkpoint      the state from which a run continues, and the trained model
"""

from attngeo.training.pretraining.config import PretrainConfig, load_config
from attngeo.training.pretraining.pretrain import Run, TrainingError, pretrain, train

__all__ = ["PretrainConfig", "Run", "TrainingError", "load_config", "pretrain", "train"]
