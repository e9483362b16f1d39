"""From a checkpoint to its queries and keys, to the QK forms of its heads, to their scores.

    sources   open a checkpoint: folder, hub, safetensors, GGUF, pickle, or weights in memory
    layout    how model families store queries and keys, and how they are cut into heads
    scoring   the form W_q W_kᵀ, its symmetry and directionality, their nulls, and tables of scores
    data      the scores published with arXiv 2502.10927

Each step imports only from the ones before it. The names that users need most:

    score, ScoreTable, published          scores of a model (`scoring`)
    Form                                  one form (`scoring`)
    attention_layers, Layer               the queries and keys of each layer (`layout`)
"""

from attngeo.weights.layout.layer import Layer
from attngeo.weights.layout.layers import attention_layers
from attngeo.weights.scoring.form import Form
from attngeo.weights.scoring.published import published
from attngeo.weights.scoring.score import score
from attngeo.weights.scoring.score_table import ScoreTable

__all__ = ["Form", "Layer", "ScoreTable", "attention_layers", "published", "score"]
