"""Draw the pictures of docs/gallery.md with the code that stands above them.

    python -m tools.gallery [PICTURE …]    all pictures, or those whose names are given, such as scores

A block of the page leaves its figure under the name `figure`; the picture that follows the block is drawn from it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection
from pathlib import Path
from tempfile import TemporaryDirectory

from attngeo.show import save_figure
from tools.check_docs import parse
from tools.check_docs.session import ROOT, Session
from tools.smaller_images import main as make_smaller

PAGE = ROOT / "docs/gallery.md"
FOLDER = ROOT / "docs/images/gallery"
DOTS_PER_INCH = 100
_PICTURE = re.compile(r"!\[[^]]*\]\(images/gallery/(\w+)\.png\)")


def main(wanted: Collection[str] = ()) -> None:
    """Run the blocks of the page one after the other and draw the picture behind each."""
    import matplotlib

    matplotlib.rcParams["savefig.dpi"] = DOTS_PER_INCH
    text = PAGE.read_text("utf-8")
    lines, blocks = text.splitlines(), parse(text, PAGE.name)
    FOLDER.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="gallery-") as folder:
        session = Session(Path(folder))
        for place, block in enumerate(blocks):
            if printed := session.run(block):
                sys.exit(f"{block}: {printed}")
            following = blocks[place + 1].start if place + 1 < len(blocks) else len(lines)
            found = _PICTURE.search("\n".join(lines[block.end : following]))
            if found and (not wanted or found[1] in wanted):
                save_figure(session.names["figure"], FOLDER / f"{found[1]}.png")
    make_smaller(FOLDER)


if __name__ == "__main__":
    main(sys.argv[1:])
