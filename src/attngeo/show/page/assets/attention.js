// The organised attention of one head: a matrix with the trees and the labels of its queries and keys.

/** Draw the network of `data` (see page/attention.py) into `root`. Return the view once its first head is drawn. */
async function mountAttention(root, data, { onPick = () => {} } = {}) {
  const view = new AttentionView(root, data, onPick);
  view.network = await Network.open(data);
  view.pick(data.trees[2].order[0], false);
  return view;
}

class AttentionView {
  constructor(root, data, onPick) {
    this.root = root;
    this.data = data;
    this.onPick = onPick;
    this.stop = data.stops.length - 1;
    this.organised = true;
    this.nodes = data.trees.map(folderNodes);
    this.resetZoom();
    this.pixels = element("canvas", { width: data.shape[1], height: data.shape[0] });
    this.build();
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(root);
  }

  // ---- elements

  build() {
    const { data } = this;
    const pick = (head) => this.pick(head);
    this.pickers = [
      new HeadList(data.heads, data.trees[2].order, pick),
      new HeadTree(data.trees[2], data.heads, pick),
      new HeadMap(data.heads, data.trees[2].order, pick),
    ];
    this.slider = element("input", { type: "range", min: 0, max: data.stops.length - 1, value: this.stop,
      "aria-label": "Number of coefficients", oninput: () => this.setStop(Number(this.slider.value)) });
    this.held = element("output", { class: "held" });
    this.order = element("select", { "aria-label": "Order", onchange: () => this.setOrganised(this.order.value === "tree") },
      element("option", { value: "tree" }, "organised"), element("option", { value: "given" }, "as given"));
    this.zoomOut = element("button", { type: "button", onclick: () => this.resetZoom(true) }, "Whole matrix");
    const save = (text, action) => element("button", { type: "button", onclick: action }, text);
    this.canvas = element("canvas", { tabindex: 0, role: "img" });
    this.readout = element("p", { class: "readout", "aria-live": "polite" });
    this.canvas.addEventListener("mousemove", (event) => this.point(event));
    this.canvas.addEventListener("mouseleave", () => this.setCursor(null));
    this.canvas.addEventListener("click", (event) => this.zoomTo(event));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    const [list, tree, map] = this.pickers.map((picker) => picker.root);
    this.figure = element("div", { class: "matrix" }, this.canvas, this.readout);
    this.root.classList.add("attention");
    this.root.replaceChildren(
      element("div", { class: "controls" }, list,
        element("label", {}, "Order ", this.order),
        element("label", { class: "wide" }, "Coefficients ", this.slider), this.held),
      tree,
      element("div", { class: "beside" }, this.figure, map),
      element("div", { class: "tools" }, this.zoomOut, save("Save as SVG", () => this.saveSvg()),
        save("Save data as CSV", () => this.saveCsv())));
  }

  // ---- state

  /** Show a head, by number or label. Return whether there is one. */
  pick(head, tell = true) {
    const number = typeof head === "string" ? this.data.heads.indexOf(head) : head;
    if (!(number in this.data.heads)) return false;
    this.head = number;
    this.full = this.network.head(number, this.data.stops.length - 1);
    this.rebuild();
    if (tell) this.onPick(this.data.heads[number]);
    return true;
  }

  setStop(stop) {
    this.stop = stop;
    this.rebuild();
  }

  setOrganised(organised) {
    this.organised = organised;
    this.resetZoom();
    this.draw();
  }

  resetZoom(draw = false) {
    const [queries, keys] = this.data.shape;
    this.window = [[0, queries], [0, keys]];
    this.cursor = null;
    if (draw) this.draw();
  }

  rebuild() {
    const last = this.data.stops.length - 1;
    this.values = this.stop === last ? this.full : this.network.head(this.head, this.stop);
    const share = percent(this.data.headShares[this.stop][this.head]);
    const count = this.data.counts[this.stop];
    this.held.textContent = `${count.toLocaleString("en")} coefficient${count === 1 ? " holds" : "s hold"} ` +
      `${percent(this.data.shares[this.stop])} of the energy of all heads, ${share} of this one`;
    this.slider.setAttribute("aria-valuetext", this.held.textContent);
    this.draw();
  }

  /** Return the element at a position of an axis, in the order that is shown. */
  elementAt(axis, position) {
    return this.organised ? this.data.trees[axis].order[position] : position;
  }

  label(axis, position) {
    return tokenLabel((axis === 0 ? this.data.queries : this.data.keys)[this.elementAt(axis, position)]);
  }

  value(row, column) {
    return this.values[this.elementAt(0, row) * this.data.shape[1] + this.elementAt(1, column)];
  }

  // ---- drawing

  draw() {
    if (!this.values) return;
    const colours = themeColours(this.root);
    const width = PAPER.printing ? PAPER.matrix : Math.max(240, Math.min(this.figure.clientWidth || 600, 900));
    this.layout = matrixLayout(this, width);
    this.paintPixels(colours);
    this.paint(new CanvasSurface(this.canvas, this.layout.width, this.layout.height), colours, this.cursor);
    this.pickers.forEach((picker) => picker.show(this.head, colours));
    const name = this.data.heads[this.head];
    this.canvas.setAttribute("aria-label", `Attention of head ${name}, ${this.data.shape[0]} queries by ` +
      `${this.data.shape[1]} keys, ${this.organised ? "in the order of their trees" : "in the given order"}. ` +
      "Arrow keys read single values, plus and minus zoom, 0 shows the whole matrix.");
    const [[q0, q1], [k0, k1]] = this.window;
    this.zoomOut.disabled = q1 - q0 === this.data.shape[0] && k1 - k0 === this.data.shape[1];
    this.root.dataset.head = name;
  }

  /** Colour one pixel per entry. The scale belongs to the head and stays the same for all numbers of coefficients. */
  paintPixels(colours) {
    const [queries, keys] = this.data.shape;
    let low = 0, high = 0;
    for (const value of this.full) {
      if (value < low) low = value;
      if (value > high) high = value;
    }
    const signed = this.data.stage !== "probabilities";
    const most = (signed ? Math.max(high, -low) : Math.min(high, 1)) || 1; // rebuilt probabilities may exceed 1
    const scale = ramp(signed ? "diverging" : colours.ramp);
    this.scale = { most, signed, colours: scale };
    const image = new ImageData(keys, queries);
    for (let row = 0, at = 0; row < queries; row++) {
      const start = this.elementAt(0, row) * keys;
      for (let column = 0; column < keys; column++, at += 4) {
        const value = this.values[start + this.elementAt(1, column)] / most;
        const share = signed ? 0.5 + 0.5 * value : Math.sqrt(Math.max(0, value)); // the root shows faint entries too
        const [r, g, b] = scale[Math.round(255 * Math.min(1, Math.max(0, share)))];
        image.data[at] = r, image.data[at + 1] = g, image.data[at + 2] = b, image.data[at + 3] = 255;
      }
    }
    this.pixels.getContext("2d").putImageData(image, 0, 0);
  }

  paint(surface, colours, cursor) {
    paintMatrix(surface, this, this.layout, colours, cursor);
  }

  // ---- pointer and keys

  /** Return {row, column} under the pointer, or {axis, position, level} where it is over a tree. */
  placeOf(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = event.clientX - box.left, y = event.clientY - box.top, { left, top, cell, treeSize } = this.layout;
    const [[q0, q1], [k0, k1]] = this.window;
    const row = q0 + Math.floor((y - top) / cell[0]), column = k0 + Math.floor((x - left) / cell[1]);
    const inRows = y >= top && row < q1, inColumns = x >= left && column < k1;
    if (inRows && inColumns) return { row, column };
    const level = (axis, at) => Math.round((at / treeSize) * (this.data.trees[axis].depth - 1));
    if (inRows && x < treeSize) return { axis: 0, position: row, level: level(0, x) };
    if (inColumns && y < treeSize) return { axis: 1, position: column, level: level(1, y) };
    return {};
  }

  point(event) {
    const place = this.placeOf(event);
    this.canvas.style.cursor = "axis" in place && this.organised ? "zoom-in" : "crosshair";
    this.setCursor("row" in place ? place : null);
  }

  setCursor(cursor) {
    this.cursor = cursor;
    this.readout.textContent = cursor ? this.describe(cursor.row, cursor.column) : "";
    if (this.values) this.paint(new CanvasSurface(this.canvas, this.layout.width, this.layout.height), themeColours(this.root), cursor);
  }

  describe(row, column) {
    const where = (axis, position) => `${this.label(axis, position)} (position ${this.elementAt(axis, position)})`;
    return `query ${where(0, row)}, key ${where(1, column)}: ${digits(this.value(row, column))}`;
  }

  /** Zoom to the folder of a tree that was clicked. */
  zoomTo(event) {
    const { axis, position, level } = this.placeOf(event);
    if (axis === undefined || !this.organised) return;
    const folder = this.nodes[axis].find((node) =>
      node.first <= position && position < node.end && node.top <= level && level <= node.level);
    if (folder) this.zoom(axis, folder);
  }

  zoom(axis, folder) {
    this.window[axis] = folder.end - folder.first > 1 ? [folder.first, folder.end] : [folder.parent.first, folder.parent.end];
    this.draw();
  }

  key(event) {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    const [[q0, q1], [k0, k1]] = this.window;
    const { row, column } = this.cursor || { row: q0, column: k0 };
    if (step) {
      const within = (at, from, to) => Math.min(to - 1, Math.max(from, at));
      this.setCursor(this.cursor
        ? { row: within(row + step[0], q0, q1), column: within(column + step[1], k0, k1) } : { row, column });
    } else if (event.key === "0") this.resetZoom(true);
    else if ((event.key === "+" || event.key === "-") && this.organised) {
      [row, column].forEach((position, axis) => {
        const [from, to] = this.window[axis];
        const here = this.nodes[axis].filter((node) => node.first <= position && position < node.end);
        const now = here.findLast((node) => node.first <= from && node.end >= to) || here[0];
        const next = event.key === "+" ? here[here.indexOf(now) + 1] : now.parent;
        if (next) this.zoom(axis, next);
      });
    } else return;
    event.preventDefault();
  }

  // ---- files

  saveSvg() {
    const colours = themeColours(this.root);
    const surface = new SvgSurface(this.layout.width, this.layout.height, colours.background);
    this.paint(surface, colours, null);
    saveFile(`attention-${this.data.heads[this.head]}.svg`, "image/svg+xml", surface.toString());
  }

  saveCsv() {
    const [[q0, q1], [k0, k1]] = this.window;
    const range = (from, to) => Array.from({ length: to - from }, (_, i) => from + i);
    const name = (axis, at) => `${this.elementAt(axis, at)} ${(axis ? this.data.keys : this.data.queries)[this.elementAt(axis, at)]}`;
    const rows = [["query \\ key", ...range(k0, k1).map((at) => name(1, at))]];
    for (const row of range(q0, q1)) {
      rows.push([name(0, row), ...range(k0, k1).map((column) => Number(this.value(row, column).toPrecision(5)))]);
    }
    saveFile(`attention-${this.data.heads[this.head]}.csv`, "text/csv", csv(rows));
  }
}
