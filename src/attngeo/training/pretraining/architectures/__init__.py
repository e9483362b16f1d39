"""The architectures that can be pre-trained, each a class with the functions of its computation.

Model, Shape                               a model in pre-training, and its dimensions
Bert, PreNormBert, ModernBert, Llama       the architectures
"""

from attngeo.training.pretraining.architectures.bert import Bert, PreNormBert
from attngeo.training.pretraining.architectures.llama import Llama
from attngeo.training.pretraining.architectures.model import Model, Shape
from attngeo.training.pretraining.architectures.modernbert import ModernBert

__all__ = ["Bert", "Llama", "Model", "ModernBert", "PreNormBert", "Shape"]
