"""Take the picture of a report that the README shows, with Chromium (`make browser`).

python -m tools.site.screenshot out/site/reports/minilm.html docs/images/report.png [HEAD]
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

CHROMIUM = "/usr/bin/chromium"
SECTION = "Organised attention of single heads"


def main(report: Path, picture: Path, head: str = "L2H10") -> None:
    """Write the section that shows the attention of one head."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1100, "height": 1235})
        page.goto(f"{report.resolve().as_uri()}#{head}")
        page.get_by_role("link", name=SECTION).first.click()
        page.get_by_text("of the energy of all heads").first.wait_for()
        page.locator("select", has=page.locator("option", has_text=head)).first.select_option(label=head)
        page.wait_for_function("document.querySelectorAll('canvas, svg').length > 0")
        page.wait_for_timeout(2000)  # the picture is drawn after the text
        image = Image.open(io.BytesIO(page.screenshot(timeout=180_000))).convert("RGB").quantize(256)
        browser.close()
    image.save(picture, "PNG", optimize=True)
    print(f"{picture}: {picture.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:4])
