// Two surfaces with the same few operations, a canvas and an SVG document, so that a picture is drawn by one function
// and saved as it is seen; colour scales; and the drawing of a tree.

const FONT = "system-ui, sans-serif";
const PAPER = { width: 680, matrix: 560, sharpness: 3, printing: false }; // widths on paper in pixels; dots per pixel

class CanvasSurface {
  constructor(canvas, width, height) {
    const ratio = PAPER.printing ? PAPER.sharpness : Math.max(1, window.devicePixelRatio || 1);
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = width + "px";
    canvas.style.height = height + "px";
    this.context = canvas.getContext("2d");
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.context.clearRect(0, 0, width, height);
  }

  rectangle(x, y, width, height, { fill, stroke }) {
    if (fill) (this.context.fillStyle = fill), this.context.fillRect(x, y, width, height);
    if (stroke) (this.context.strokeStyle = stroke), this.context.strokeRect(x, y, width, height);
  }

  /** Draw connected points [[x, y], …]. */
  path(points, stroke, width = 1) {
    this.context.strokeStyle = stroke;
    this.context.lineWidth = width;
    this.context.beginPath();
    points.forEach(([x, y], i) => (i ? this.context.lineTo(x, y) : this.context.moveTo(x, y)));
    this.context.stroke();
  }

  /** Draw text; `anchor` is start, middle or end, `turned` draws it upwards. */
  text(x, y, text, { fill, size = 11, anchor = "start", turned = false }) {
    this.context.save();
    this.context.translate(x, y);
    if (turned) this.context.rotate(-Math.PI / 2);
    this.context.font = `${size}px ${FONT}`;
    this.context.fillStyle = fill;
    this.context.textAlign = anchor === "middle" ? "center" : anchor;
    this.context.textBaseline = "middle";
    this.context.fillText(text, 0, 0);
    this.context.restore();
  }

  /** Draw the part of `image` (a canvas) from (sx, sy) of size (sw, sh), enlarged without smoothing. */
  image(image, [sx, sy, sw, sh], x, y, width, height) {
    this.context.imageSmoothingEnabled = false;
    this.context.drawImage(image, sx, sy, sw, sh, x, y, width, height);
  }
}

class SvgSurface {
  constructor(width, height, background) {
    this.parts = [
      `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}">`,
    ];
    this.rectangle(0, 0, width, height, { fill: background });
  }

  rectangle(x, y, width, height, { fill = "none", stroke = "none" }) {
    this.parts.push(
      `<rect x="${x}" y="${y}" width="${width}" height="${height}" fill="${fill}" stroke="${stroke}"/>`);
  }

  path(points, stroke, width = 1) {
    const coordinates = points.map(([x, y]) => `${x.toFixed(2)},${y.toFixed(2)}`).join(" ");
    this.parts.push(`<polyline points="${coordinates}" fill="none" stroke="${stroke}" stroke-width="${width}"/>`);
  }

  text(x, y, text, { fill, size = 11, anchor = "start", turned = false }) {
    const turn = turned ? ` transform="rotate(-90 ${x} ${y})"` : "";
    const safe = text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replace(/[\u0000-\u001f\ufffe\uffff]/g, " ");
    this.parts.push(
      `<text x="${x}" y="${y}" font-family="${FONT}" font-size="${size}" fill="${fill}" text-anchor="${anchor}"` +
        ` dominant-baseline="central"${turn}>${safe}</text>`);
  }

  image(image, [sx, sy, sw, sh], x, y, width, height) {
    const part = element("canvas", { width: sw, height: sh });
    part.getContext("2d").drawImage(image, sx, sy, sw, sh, 0, 0, sw, sh);
    this.parts.push(
      `<image x="${x}" y="${y}" width="${width}" height="${height}" preserveAspectRatio="none"` +
        ` style="image-rendering:pixelated" href="${part.toDataURL()}"/>`);
  }

  toString() {
    return this.parts.join("\n") + "\n</svg>\n";
  }
}

// Colours from 0 to 1. The sequential ones grow steadily darker (lighter in the dark theme), so that they can be told
// apart with every kind of colour vision and in print; the diverging one goes from blue over grey to red.
const RAMPS = {
  light: ["#ffffff", "#dbe9f6", "#a6cbe4", "#5ba3cf", "#2171b5", "#08468b", "#04244f"],
  dark: ["#12161c", "#10314f", "#0f5486", "#2b7fb8", "#6baed6", "#b7d7ec", "#ffffff"],
  diverging: ["#2166ac", "#92c5de", "#f7f7f7", "#f4a582", "#b2182b"],
  tree: ["#440154", "#414487", "#2a788e", "#22a884", "#7ad151", "#fde725"],
};

/** Return 256 colours [r, g, b] along a ramp. */
function ramp(name) {
  const anchors = RAMPS[name].map((hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)));
  return Array.from({ length: 256 }, (_, i) => {
    const at = (i / 255) * (anchors.length - 1), low = Math.min(Math.floor(at), anchors.length - 2);
    return anchors[low].map((value, channel) => Math.round(value + (at - low) * (anchors[low + 1][channel] - value)));
  });
}

/** Return one colour of a ramp, for CSS. */
function rampColour(name, share) {
  return `rgb(${ramp(name)[Math.round(255 * Math.min(1, Math.max(0, share)))].join(",")})`;
}

/** Return the folders of a tree as nodes {first, end, level, children, centre}, the root first. */
function folderNodes(tree) {
  const nodes = tree.folders.map(([first, end, top, bottom]) => ({ first, end, top, level: bottom, children: [] }));
  nodes.sort((a, b) => a.first - b.first || b.end - a.end);
  const open = [];
  for (const node of nodes) {
    while (open.length && open.at(-1).end <= node.first) open.pop();
    node.parent = open.at(-1) || null;
    if (node.parent) node.parent.children.push(node);
    open.push(node);
  }
  for (const node of [...nodes].reverse()) {
    const inside = node.children;
    node.centre = inside.length ? (inside[0].centre + inside.at(-1).centre) / 2 : (node.first + node.end) / 2;
  }
  return nodes;
}

/** Draw the part of a tree between the leaves from … to; `place(position, level)` returns a point. */
function drawTree(surface, nodes, from, to, place, stroke) {
  for (const node of nodes) {
    if (!node.children.length || node.end <= from || node.first >= to) continue;
    const within = (centre) => Math.min(to, Math.max(from, centre));
    const shown = node.children.filter((child) => child.end > from && child.first < to);
    const ends = [within(shown[0].centre), within(shown.at(-1).centre)];
    if (node.first < from) ends[0] = from;
    if (node.end > to) ends[1] = to;
    surface.path([place(ends[0], node.level), place(ends[1], node.level)], stroke);
    for (const child of shown) {
      const centre = within(child.centre);
      surface.path([place(centre, node.level), place(centre, child.level)], stroke);
    }
  }
}
