"""How training changes the QK form.

    initialisation   initialisations of queries and keys: symmetric, controls, and published recipes
    data             corpora, a WordPiece tokenizer, and token files
    pretraining      pre-train a BERT, ModernBERT or LLaMA
    monitoring       scores of a model during training, and of the checkpoints it leaves
    gradients        one backward pass as the rank-1 terms that it adds to the form of each head

Most of these need torch, so nothing is imported here; import from the sub-packages.
"""

__all__ = ["data", "gradients", "initialisation", "monitoring", "pretraining"]
