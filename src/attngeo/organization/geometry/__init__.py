"""Affinities, diffusion, the tree distance, and the agreement of two geometries."""
