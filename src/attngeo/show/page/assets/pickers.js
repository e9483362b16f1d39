// Ways to pick a head: a list, a layer × head map and the tree of the heads.

/** Return [layer, head] of a label such as "L3H7", or null. */
function layerAndHead(label) {
  const found = /^L(\d+)H(\d+)$/.exec(label);
  return found && [Number(found[1]), Number(found[2])];
}

/** A list of all heads in the order of the tree, with buttons for the one before and the one after. */
class HeadList {
  constructor(labels, order, pick) {
    this.order = order;
    this.select = element("select", { "aria-label": "Head", onchange: () => pick(Number(this.select.value)) });
    const sorted = labels.map((_, head) => head); // by layer and head, as captured
    this.select.append(...sorted.map((head) => element("option", { value: head }, labels[head])));
    const step = (by) => () => {
      const at = order.indexOf(Number(this.select.value));
      pick(order[(at + by + order.length) % order.length]);
    };
    const button = (text, label, by) => element("button", { type: "button", "aria-label": label, onclick: step(by) }, text);
    this.root = element("span", { class: "head-list" }, element("label", {}, "Head ", this.select),
      button("‹", "Previous head in the tree", -1), button("›", "Next head in the tree", 1));
  }

  show(head) {
    this.select.value = String(head);
  }
}

/** A map with a button per head, rows are layers; heads close in the tree have similar colours. */
class HeadMap {
  constructor(labels, order, pick) {
    const places = labels.map(layerAndHead);
    this.buttons = [];
    this.root = element("div", { class: "head-map", role: "group", "aria-label": "Heads by layer. Arrow keys move." });
    if (places.some((place) => place === null)) return; // not labels of layers and heads
    const layers = [...new Set(places.map(([layer]) => layer))].sort((a, b) => a - b);
    this.columns = Math.max(...places.map(([, head]) => head)) + 1;
    const rank = [];
    order.forEach((head, at) => (rank[head] = at));
    labels.forEach((label, head) => {
      const button = element("button", { type: "button", title: label, "aria-label": label, tabindex: -1,
        onclick: () => pick(head), onkeydown: (event) => this.move(event, head, pick) });
      button.style.background = rampColour("tree", rank[head] / Math.max(1, labels.length - 1));
      button.style.gridRow = layers.indexOf(places[head][0]) + 1;
      button.style.gridColumn = places[head][1] + 2;
      this.buttons[head] = button;
    });
    layers.forEach((layer, row) => {
      const name = element("span", { class: "row-name", "aria-hidden": "true" }, "L" + layer);
      name.style.gridRow = row + 1;
      this.root.append(name);
    });
    this.places = places;
    this.root.append(...this.buttons);
  }

  move(event, head, pick) {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!step) return;
    event.preventDefault();
    const [layer, number] = this.places[head];
    const next = this.places.findIndex(([l, h]) => l === layer + step[0] && h === number + step[1]);
    if (next >= 0) pick(next), this.buttons[next].focus();
  }

  show(head) {
    this.buttons.forEach((button, at) => {
      button.tabIndex = at === head ? 0 : -1;
      button.setAttribute("aria-pressed", at === head);
    });
  }
}

/** The tree of the heads, its leaves from left to right; a click picks the nearest head. */
class HeadTree {
  constructor(tree, labels, pick) {
    this.tree = tree;
    this.labels = labels;
    this.nodes = folderNodes(tree);
    this.canvas = element("canvas", { role: "img", "aria-label": "Tree of the heads. The list above picks the same heads." });
    this.root = element("div", { class: "head-tree" }, this.canvas);
    this.canvas.addEventListener("click", (event) => pick(this.tree.order[this.leafAt(event)]));
    this.canvas.addEventListener("mousemove", (event) => {
      this.canvas.title = this.labels[this.tree.order[this.leafAt(event)]];
    });
  }

  leafAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const share = (event.clientX - box.left) / box.width;
    return Math.min(this.tree.order.length - 1, Math.max(0, Math.floor(share * this.tree.order.length)));
  }

  show(head, colours) {
    const count = this.tree.order.length;
    const width = PAPER.printing ? PAPER.width : Math.max(160, this.root.clientWidth || 600);
    const cell = width / count, named = cell >= 9;
    const treeHeight = 70, height = treeHeight + 12 + (named ? 42 : 16);
    const surface = new CanvasSurface(this.canvas, width, height);
    const place = (position, level) => [position * cell, 2 + (level / Math.max(1, this.tree.depth - 1)) * (treeHeight - 4)];
    drawTree(surface, this.nodes, 0, count, place, colours.line);
    this.tree.order.forEach((leaf, at) => {
      const fill = rampColour("tree", at / Math.max(1, count - 1));
      surface.rectangle(at * cell, treeHeight, Math.max(1, cell - (cell > 4 ? 1 : 0)), 9, { fill });
      if (named && leaf !== head) {
        surface.text((at + 0.5) * cell, height - 3, this.labels[leaf], { fill: colours.faint, size: 9, turned: true });
      }
    });
    const at = this.tree.order.indexOf(head), x = (at + 0.5) * cell;
    surface.rectangle(Math.max(1, at * cell - 1), treeHeight - 2, Math.max(3, cell + 1), 13, { stroke: colours.text });
    if (named) surface.text(x, height - 3, this.labels[head], { fill: colours.text, size: 10, turned: true });
    else surface.text(Math.min(width - 22, Math.max(22, x)), height - 7, this.labels[head],
      { fill: colours.text, size: 11, anchor: "middle" });
  }
}
