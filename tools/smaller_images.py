"""Write the PNG files of a folder with at most 256 colours, where that makes them smaller.

python -m tools.smaller_images docs/images

Figures have few colours, and a reader of the page sees no difference; the files take a third of the space. The palette
covers all colours that occur: those of a thin dotted line are rare, and must not become those of another.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

from PIL import Image

from attngeo.io.atomic import write_file


def main(folder: Path) -> None:
    """Rewrite the files of the folder that have more colours, and print how many bytes that saved."""
    saved = 0
    for path in sorted(folder.rglob("*.png")):
        with Image.open(path) as image:
            if image.mode == "P":
                continue
            smaller = io.BytesIO()
            image.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
                smaller, "PNG", optimize=True
            )
        gain = path.stat().st_size - smaller.tell()
        if gain > 0:
            write_file(path, smaller.getvalue())
            saved += gain
    print(f"{folder}: {saved:,} bytes saved")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
