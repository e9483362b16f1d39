"""Write the PNG files of a folder with at most 256 colours, where that makes them smaller.

python -m tools.smaller_images docs/images

Figures have few colours, and a reader of the page sees no difference; the files take a third of the space. One part of
the palette holds the most frequent colours, so that backgrounds, grids and letters keep theirs exactly. The other part
covers all colours that occur: those of a thin dotted line are rare, and must not become those of another.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from attngeo.io.files import write_file

_FREQUENT = 64  # colours that are kept exactly


def with_palette(image: Image.Image) -> Image.Image:
    """Return an RGB image with each colour replaced by the nearest one of a palette of 256."""
    pixels = np.asarray(image)  # [height, width, 3]
    colours, numbers, counts = np.unique(pixels.reshape(-1, 3), axis=0, return_inverse=True, return_counts=True)
    frequent = colours[np.argsort(-counts, kind="stable")[:_FREQUENT]]  # [at most 64, 3]
    covering = image.quantize(256 - _FREQUENT, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).getpalette()
    palette = np.concatenate([frequent, np.array(covering, np.uint8).reshape(-1, 3)])  # [at most 256, 3]
    # Pillow's own search for the nearest colour takes white for a light grey.
    distances = ((colours[:, None].astype(np.int32) - palette) ** 2).sum(2)  # [colours, palette]
    nearest = distances.argmin(1).astype(np.uint8)  # [colours]
    result = Image.fromarray(nearest[numbers].reshape(pixels.shape[:2]), "P")
    result.putpalette(palette.ravel().tolist())
    return result


def main(folder: Path) -> None:
    """Rewrite the files of the folder that have more colours, and print how many bytes that saved."""
    saved = 0
    for path in sorted(folder.rglob("*.png")):
        with Image.open(path) as image:
            if image.mode == "P":
                continue
            smaller = io.BytesIO()
            with_palette(image.convert("RGB")).save(smaller, "PNG", optimize=True)
        gain = path.stat().st_size - smaller.tell()
        if gain > 0:
            write_file(path, smaller.getvalue())
            saved += gain
    print(f"{folder}: {saved:,} bytes saved")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
