"""The text of the runs and its tokens.

packed_tokens    token files compressed for transport, and back
overlap          how much of a held-out text occurs in the training text
frequencies      the loss of a model that knows only how often each token occurs
"""

__all__ = ["frequencies", "overlap", "packed_tokens"]
