"""The architectures that can be pre-trained, each a module with the functions of its computation.

Model, Shape                               a model in pre-training, and its dimensions
Bert, PreNormBert, ModernBert, Llama       the architectures
gated_intermediate                         the usual width of a gated feed-forward layer
"""

from attngeo.training.pretraining.architectures.bert import Bert
from attngeo.training.pretraining.architectures.llama import Llama
from attngeo.training.pretraining.architectures.model import Model
from attngeo.training.pretraining.architectures.modernbert import ModernBert
from attngeo.training.pretraining.architectures.pre_norm_bert import PreNormBert
from attngeo.training.pretraining.architectures.shape import Shape, gated_intermediate

__all__ = ["Bert", "Llama", "Model", "ModernBert", "PreNormBert", "Shape", "gated_intermediate"]
