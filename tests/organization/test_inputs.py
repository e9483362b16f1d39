"""Texts, images and sounds become model inputs, or an error of one line."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers as tf
from PIL import Image
from scipy.io import wavfile

from attngeo.errors import InputError, SourceError
from attngeo.organization.capture import capture
from attngeo.organization.inputs import is_sound_file
from tests.live.tiny_live_models import model_inputs, tiny_model

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "form", "of", "every", "head", "##s", ".")


@pytest.fixture(scope="module")
def tokenizer():
    return tf.BertTokenizer(vocab={word: index for index, word in enumerate(WORDS)}, model_max_length=64)


@pytest.fixture(scope="module")
def bert(tmp_path_factory, tokenizer):
    """Return the folder of a saved encoder with its tokenizer."""
    folder = tmp_path_factory.mktemp("bert")
    tiny_model("bert").save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def tone(tmp_path_factory):
    """Return a WAV file of a tenth of a second, stereo, at 8 kHz."""
    path = tmp_path_factory.mktemp("sound") / "tone.wav"
    wave = np.sin(np.arange(800) / 5)[:, None] * [1, 0.5]
    wavfile.write(path, 8000, (wave * 2**14).astype(np.int16))
    return path


def test_a_sound_file_is_known_by_its_first_bytes_or_its_name(tone, tmp_path):
    plain, words = tmp_path / "plain", tmp_path / "words.txt"
    plain.write_bytes(tone.read_bytes())
    words.write_text("RIFF and WAVE")
    assert is_sound_file(tone) and is_sound_file(plain) and is_sound_file("absent.MP3")
    assert not is_sound_file(words) and not is_sound_file("absent.txt")


def test_a_text_for_a_model_in_a_folder(bert):
    tensor = capture(bert, "The heads.")
    assert tensor.queries == tensor.keys == ("[CLS]", "the", "head", "##s", ".", "[SEP]")
    assert tensor.name.endswith("/" + bert.name)
    both = capture(str(bert), ["The heads.", "Every form"], stage="probabilities")
    assert [t.shape[0] for t in both] == [6, 4]
    alone = capture(bert, ["The heads."])
    assert alone[0] == tensor


def test_a_text_for_a_live_model_or_a_folder_needs_a_tokenizer(bert, tokenizer, tmp_path):
    live = tiny_model("bert")
    live.save_pretrained(tmp_path)
    assert capture(tmp_path, model_inputs("bert")).queries == tuple("012345678")
    with pytest.raises(InputError, match="no tokenizer was found with the model, a text cannot be read"):
        capture(tmp_path, "The heads.")
    with pytest.raises(InputError, match="no tokenizer was found with the model"):
        capture(live, "The heads.")
    assert np.array_equal(capture(live, "The heads.", tokenizer=tokenizer).values, capture(bert, "The heads.").values)
    loaded = tf.AutoModel.from_pretrained(bert)  # remembers its folder
    assert capture(loaded, "The heads.").queries[1] == "the"


def test_a_text_that_is_too_long_is_truncated_or_refused_before_the_model_is_loaded(bert, tmp_path):
    """Weights that cannot be read are not found out about: nothing was loaded but the tokenizer and the config."""
    tensor = capture(bert, "the head " * 60, truncate=True)
    assert tensor.shape[:2] == (64, 64) and tensor.queries[-1] == "[SEP]"
    for path in bert.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes()[: 100 if path.suffix == ".safetensors" else None])
    with pytest.raises(InputError, match=r"text: 122 tokens, but .* reads at most 64; .*--truncate"):
        capture(tmp_path, "the head " * 60)
    with pytest.raises(SourceError, match="transformers cannot load it"):
        capture(tmp_path, "the head " * 20)


def test_roberta_reads_fewer_tokens_than_it_has_positions(tokenizer):
    model = tiny_model("roberta")  # 64 positions, the first one used is padding_idx + 1
    assert capture(model, "the " * 200, tokenizer=tokenizer, truncate=True).shape[0] == 63


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_stacks_of_an_encoder_decoder_are_chosen_by_name(kind, tokenizer):
    model = tiny_model(kind)
    with pytest.raises(InputError, match=r"has the stacks .*: choose one with stack= \(--stack\)"):
        capture(model, "The heads.", tokenizer=tokenizer)
    with pytest.raises(InputError, match="no stack vision to capture; it has"):
        capture(model, "The heads.", tokenizer=tokenizer, stack="vision")
    assert capture(model, "The heads.", tokenizer=tokenizer, stack="encoder").shape == (6, 6, 8)
    cross = capture(model, "The heads.", tokenizer=tokenizer, stack="cross", target="every form")
    assert cross.shape == (4, 6, 8)
    assert cross.queries[1:] == ("[CLS]", "every", "form") and cross.keys[1] == "the"
    for inputs, stack, why in (
        ("The heads.", "encoder", "its encoder reads no target"),
        (model_inputs(kind), "cross", "the inputs already contain decoder inputs"),
    ):
        with pytest.raises(InputError, match=rf"target= \(--target\) was given, but {why}"):
            capture(model, inputs, tokenizer=tokenizer, stack=stack, target="every form")
    decoder = capture(model, "The heads.", tokenizer=tokenizer, stack="decoder")
    assert decoder.queries[1:] == cross.keys[:-1]  # without a target: the text, shifted right behind the start token


def test_the_stack_is_chosen_by_the_kind_of_input(tokenizer):
    model = tiny_model("clip")
    assert capture(model, "The heads.", tokenizer=tokenizer).queries[1] == "the"
    picture = capture(model, Image.new("RGB", (50, 40), "red"))
    assert picture.shape == (17, 17, 8) and picture.queries[:3] == ("[CLS]", "0,0", "0,1")


def test_images_are_prepared_by_config_or_processor(tmp_path):
    tiny_model("vit").save_pretrained(tmp_path)
    pixels = np.random.default_rng(0).integers(0, 255, (48, 60, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "picture.png")
    plain = capture(tmp_path, tmp_path / "picture.png")  # without a processor: resized and scaled by the config
    assert plain.shape == (17, 17, 8) and plain.keys[-1] == "3,3"
    assert plain == capture(tmp_path, str(tmp_path / "picture.png")) == capture(tmp_path, pixels)
    tf.ViTImageProcessorPil(size={"height": 32, "width": 32}, image_mean=[0.1] * 3).save_pretrained(tmp_path)
    processed = capture(tmp_path, tmp_path / "picture.png")
    own = tf.AutoImageProcessor.from_pretrained(tmp_path)(images=Image.fromarray(pixels), return_tensors="pt")
    np.testing.assert_array_equal(processed.values, capture(tmp_path, dict(own)).values)
    assert np.abs(processed.values - plain.values).max() > 1e-3


def test_patches_are_numbered_by_row_and_column():
    """An image of 2 × 3 patches, which a square one would not tell from 3 × 2."""
    config = tf.ViTConfig(image_size=(32, 48), patch_size=16, hidden_size=16, num_hidden_layers=1,
                          num_attention_heads=2, intermediate_size=16)  # fmt: skip
    tensor = capture(tf.ViTModel(config).eval(), {"pixel_values": torch.zeros(1, 3, 32, 48)})
    assert tensor.queries == ("[CLS]", "0,0", "0,1", "0,2", "1,0", "1,1", "1,2") == tensor.keys


def test_a_decoder_reads_the_text_behind_its_own_start_token(tokenizer):
    """BART starts its decoder with [SEP]; its padding and its first token are others."""
    config = tf.BartConfig(vocab_size=len(WORDS), d_model=16, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=16,
                           encoder_attention_heads=2, decoder_attention_heads=2, decoder_ffn_dim=16, pad_token_id=0,
                           bos_token_id=2, eos_token_id=3, decoder_start_token_id=3, forced_eos_token_id=3,
                           max_position_embeddings=64)  # fmt: skip
    model = tf.BartModel(config).eval()
    tensor = capture(model, "the form of every head.", stack="decoder", tokenizer=tokenizer)
    assert tensor.queries == ("[SEP]", "[CLS]", "the", "form", "of", "every", "head", ".")


@pytest.mark.parametrize(("kind", "what", "option"), [("vit", "image", "--image"), ("wav2vec2", "sound", "--audio")])
def test_a_text_for_a_model_that_reads_none_is_refused_as_a_text(kind, what, option):
    model = tiny_model(kind)
    found = rf"^\w+: reads {what}s, not texts, and there is no file %s; give the path of one \({option}\)$"
    with pytest.raises(InputError, match=found % "'a'"):
        capture(model, "a")
    with pytest.raises(InputError, match=found % r"'It is a truth\\nuniversally .{,60}…'"):
        capture(model, "It is a truth\nuniversally acknowledged, " * 500)  # longer than any path


def test_sounds_are_mixed_to_mono_and_resampled(tone, tmp_path):
    model = tiny_model("wav2vec2")
    tensor = capture(model, tone)  # 800 samples at 8 kHz are 1600 at 16 kHz
    assert tensor.shape == (49, 49, 8) and tensor.queries[:2] == ("0", "1")
    rate, wave = wavfile.read(tone)
    mono = wave.mean(1) / (2**15 - 1)
    np.testing.assert_allclose(capture(model, mono, sampling_rate=rate).values, tensor.values, atol=1e-5)
    assert capture(model, mono.tolist(), sampling_rate=8000).shape == tensor.shape


def test_the_padding_of_a_sound_is_removed(tone):
    extractor = tf.WhisperFeatureExtractor(feature_size=8, chunk_length=1, sampling_rate=16000, hop_length=250)
    model = tiny_model("whisper")  # 64 frames of 1/64 s, two per position
    tensor = capture(model, tone, processor=extractor, stack="encoder")
    assert tensor.shape == (4, 4, 8)  # a tenth of a second: 6.4 frames
    with pytest.raises(InputError, match="its decoder reads a text of its own; give target="):
        capture(model, tone, processor=extractor, stack="cross")
    with pytest.raises(InputError, match="tokenizer"):
        capture(model, tone, processor=extractor, stack="cross", target="a tone")
    with pytest.raises(InputError, match=r"sound: 2.0 s, but the model reads at most 1 s; .*--truncate"):
        capture(model, np.ones(32000), processor=extractor, stack="encoder")
    assert capture(model, np.ones(32000), processor=extractor, stack="encoder", truncate=True).shape[0] == 32


def test_references_without_a_model_are_refused(tmp_path, bert):
    with pytest.raises(SourceError, match="no such folder, and not a hub id"):
        capture("./nowhere/model", "text")
    with pytest.raises(SourceError, match=f"{tmp_path}: is empty, expected "):
        capture(tmp_path, "text")
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((bert / name).read_bytes())
    (tmp_path / "model.safetensors").write_bytes((bert / "model.safetensors").read_bytes()[:5000])
    with pytest.raises(SourceError, match="transformers cannot load it") as caught:
        capture(tmp_path, "text")
    assert "\n" not in str(caught.value)


def test_a_checkpoint_with_missing_weights_is_refused(bert, tmp_path):
    from safetensors.torch import load_file, save_file

    weights = load_file(bert / "model.safetensors")
    save_file(
        {k: v for k, v in weights.items() if "layer.1.attention.self.key" not in k}, tmp_path / "model.safetensors"
    )
    (tmp_path / "config.json").write_bytes((bert / "config.json").read_bytes())
    with pytest.raises(
        SourceError, match=r"encoder\.layer\.1\.attention\.self\.key\.bias and 1 more .*not in the checkpoint"
    ):
        capture(tmp_path, model_inputs("bert"))


IDS = torch.arange(9)
REFUSED = {
    "an empty text": ("bert", "  \n", {}, "text: empty"),
    "token ids without a batch axis": ("llama", {"input_ids": IDS}, {}, r"input_ids has the shape \[9\], expected"),
    "a list of token ids": ("llama", {"input_ids": [3, 4, 5]}, {}, r"has the shape \[3\], expected \[rows, tokens\]"),
    "token ids without a name": (
        "bert",
        IDS[None],
        {},
        r"cannot read a sound; .* or token ids as \{\"input_ids\": ids\}",
    ),
    "no inputs": ("bert", [], {}, "no inputs"),
    "an empty mapping": ("bert", {}, {}, "expected a mapping of names to tensors"),
    "an empty batch": ("bert", {"input_ids": torch.zeros(0, 3)}, {}, "the main one not empty"),
    "a number": ("bert", 3, {}, "int: expected a text"),
    "numbers that are no image": ("vit", np.zeros((4, 4, 3)), {}, "expected uint8"),
    "an empty sound": ("wav2vec2", np.array([]), {}, "expected a sound of finite samples"),
    "a sound with NaN": ("wav2vec2", np.array([0.0, np.nan]), {}, "expected a sound of finite samples"),
    "attention outside the interface": ("bloom", model_inputs("bloom"), {}, "model type bloom: attention does not go"),
    "an unknown stage": ("bert", "the", {"stage": "scores"}, "stage 'scores': expected one of logits, probabilities"),
    "no layer": ("bert", "the", {"layers": []}, "expected at least one layer number, got an empty collection"),
    "a negative layer": ("bert", "the", {"layers": -1}, "layers: expected layer numbers from 0, got -1"),
    "several stacks": ("bert", "the", {"stack": ["encoder"]}, r"stack: \['encoder'\], expected the name of one stack"),
    "a tokenizer of the package tokenizers": (
        "bert",
        "the",
        {"tokenizer": "inner"},
        "tokenizer: a .*, expected a tokenizer",
    ),
    "a number as processor": (
        "bert",
        "the",
        {"processor": 1},
        "processor: a int, expected a processor of transformers",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_captured_is_named(name, tokenizer):
    kind, inputs, options, message = REFUSED[name]
    if options.get("tokenizer") == "inner":  # it has not the methods of transformers
        options = {"tokenizer": tokenizer.backend_tokenizer}
    with pytest.raises(InputError, match=message):
        capture(tiny_model(kind), inputs, **options)


@pytest.mark.parametrize("device", ["nonsense", True])
def test_a_device_that_cannot_be_used_is_refused(bert, device):
    with pytest.raises(InputError, match=f"device {device!r} cannot be used"):
        capture(bert, "The heads.", device=device)


def test_files_that_are_no_images_or_sounds_are_refused(tone, tmp_path):
    Image.new("RGB", (64, 64), "red").save(tmp_path / "whole.png")
    for kind, suffix, whole, what in (
        ("vit", "png", tmp_path / "whole.png", "not an image"),
        ("wav2vec2", "wav", tone, "not a WAV file"),
    ):
        words, short = tmp_path / f"words.{suffix}", tmp_path / f"short.{suffix}"
        words.write_text("not that")
        short.write_bytes(whole.read_bytes()[: 60 if suffix == "png" else 900])
        for path in (words, short):
            with pytest.raises(InputError, match=f"{path.name}: {what}, or an incomplete one"):
                capture(tiny_model(kind), path)
        with pytest.raises(InputError, match=rf"none\.{suffix}: no such file"):
            capture(tiny_model(kind), tmp_path / f"none.{suffix}")


def test_modules_that_are_no_models_of_transformers_are_named():
    peft = pytest.importorskip("peft")
    with pytest.raises(InputError, match="Linear: not a transformers model"):
        capture(torch.nn.Linear(2, 2), "text")
    adapted = peft.get_peft_model(tiny_model("bert"), peft.LoraConfig(target_modules=["query", "key"], r=2))
    with pytest.raises(InputError, match=r"PeftModel: has an adapter; merge it by merge_and_unload\(\)"):
        capture(adapted, model_inputs("bert"))
    assert capture(adapted.merge_and_unload(), model_inputs("bert")).shape == (9, 9, 8)
