"""Many networks on many texts: head trees, sparsity and softmax invariance, one row per network and text.

Text, read_texts   texts, from a file or a folder (`texts`)
Trees, Invariance  what is asked of a network on a text (`questions`)
OrganizeJob        the task that answers one question (`job`)
organize_networks  all tasks of one call of `Atlas.organize` (`call`)
organized_frame, invariance_frame, agreement_frame   the results, per text or pair of texts (`frames`)
summarize          means over texts, with 95% intervals (`summary`)
"""

from attngeo.atlas.organizing.call import organize_networks
from attngeo.atlas.organizing.frames import agreement_frame, invariance_frame, organized_frame
from attngeo.atlas.organizing.job import OrganizeJob
from attngeo.atlas.organizing.questions import Invariance, Trees
from attngeo.atlas.organizing.summary import summarize
from attngeo.atlas.organizing.texts import Text, read_texts

__all__ = [
    "Invariance",
    "OrganizeJob",
    "Text",
    "Trees",
    "agreement_frame",
    "invariance_frame",
    "organize_networks",
    "organized_frame",
    "read_texts",
    "summarize",
]
