"""How training changes the QK form.

    initialise       initialisations of queries and keys: symmetric, controls, and published recipes
    data             corpora, a WordPiece tokenizer, and token files
    pretraining      pre-train a BERT, ModernBERT or LLaMA
    monitoring       scores of a model during training, and of the checkpoints it leaves
    gradients        one backward pass as the rank-1 terms that it adds to the form of each head

    bundled_records  what the bundled models recorded during their training

Most of these need torch, so only the last is imported here; import from the sub-packages.
"""

from attngeo.training.monitoring.records import bundled_records

__all__ = ["bundled_records", "data", "gradients", "initialise", "monitoring", "pretraining"]
