"""Images, sounds, and plain arrays given on the command line."""

from __future__ import annotations

import io
from functools import cache
from pathlib import Path
from random import Random

import numpy as np

from tests.fuzz.containers import mutate_npy, npy_bytes
from tests.fuzz.kinds import Files, Kind, mutate_one
from tests.fuzz.mutations import mutate_bytes


def _image_files() -> Files:
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (24, 32, 3), np.uint8)
    files = {}
    for name in ("picture.png", "picture.jpg", "picture.gif", "picture.tiff", "picture.webp", "picture.bmp"):
        content = io.BytesIO()
        Image.fromarray(pixels).save(content, Image.registered_extensions()[Path(name).suffix])
        files[name] = content.getvalue()
    return files


def _mutate_image(rng: Random, files: Files) -> Files:
    name = rng.choice(list(files))
    return {name: mutate_bytes(rng, files[name], header=100)}


def _read_image(rng: Random, folder: Path, out: Path) -> None:
    from attngeo.organization.inputs import read_image

    for path in folder.iterdir():
        assert read_image(path).mode == "RGB"


def _sound_files() -> Files:
    from scipy.io import wavfile

    content = io.BytesIO()
    wavfile.write(content, 8000, (np.sin(np.arange(800) / 5) * 20_000).astype(np.int16))
    return {"sound.wav": content.getvalue()}


def _read_sound(rng: Random, folder: Path, out: Path) -> None:
    from attngeo.organization.inputs import waveform

    assert waveform(folder / "sound.wav", None, 16_000).ndim == 1


def _read_array(rng: Random, folder: Path, out: Path) -> None:
    """Read an array as `attngeo organize --tensor` does."""
    from attngeo.io.archive import load_npy
    from attngeo.organization.checks import checked

    assert np.isfinite(checked(load_npy(folder / "array.npy"))).all()


KINDS = (
    Kind("image", cache(_image_files), _mutate_image, _read_image),
    Kind("sound", cache(_sound_files), mutate_one(lambda rng, data: mutate_bytes(rng, data, header=60)), _read_sound),
    Kind(
        "plain array",
        lambda: {"array.npy": npy_bytes(np.random.default_rng(0).standard_normal((8, 7, 5)))},
        mutate_one(lambda rng, data: mutate_npy(rng, "", data)),
        _read_array,
    ),
)
