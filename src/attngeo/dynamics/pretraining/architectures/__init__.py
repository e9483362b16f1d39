"""The architectures that can be pre-trained, each a module with the functions of its computation.

Model, Shape                               a model in pre-training, and its dimensions
Bert, PreNormBert, ModernBert, Llama       the architectures
gated_intermediate                         the usual width of a gated feed-forward layer
"""

from attngeo.dynamics.pretraining.architectures.bert import Bert
from attngeo.dynamics.pretraining.architectures.llama import Llama
from attngeo.dynamics.pretraining.architectures.model import Model
from attngeo.dynamics.pretraining.architectures.modernbert import ModernBert
from attngeo.dynamics.pretraining.architectures.pre_norm_bert import PreNormBert
from attngeo.dynamics.pretraining.architectures.shape import Shape, gated_intermediate

__all__ = ["Bert", "Llama", "Model", "ModernBert", "PreNormBert", "Shape", "gated_intermediate"]
