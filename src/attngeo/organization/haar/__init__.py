"""The Haar transform along trees, sparsity and mixed-Hölder smoothness of its coefficients."""
