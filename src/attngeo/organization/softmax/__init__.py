"""The paraproduct, and whether the softmax preserves the geometry of the logits."""
