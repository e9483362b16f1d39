"""Compare GGUF architectures with live models.

`archs`   tiny transformers models, and how llama.cpp's converter changes their tensors
`prove`   the verdict on an architecture
"""
