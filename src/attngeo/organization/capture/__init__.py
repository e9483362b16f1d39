"""From a model and an input to the network tensor: queries × keys × heads.

    capture         run a model on a text, an image, a sound or prepared tensors → NetworkTensor
    NetworkTensor   the attention logits or probabilities of all heads, with labels and mask
    STAGES          "logits" and "probabilities", the two kinds of values
    softmax         probabilities from logits

Modules: `capture` (the function), `recorder` (fills the tensor while the model runs), `inputs` and `media` (prepare the
model's arguments), `network_tensor` (the result).
"""

from attngeo.organization.capture.capture import capture
from attngeo.organization.capture.network_tensor import STAGES, NetworkTensor, softmax

__all__ = ["STAGES", "NetworkTensor", "capture", "softmax"]
