// The picture of an attention matrix: where its parts lie, and how they are drawn.

const BAR = 34; // pixels below the matrix for the colour bar
const LEAST = 9; // pixels between two labels

/** Return a token as a short label, without the marks that vocabularies use for spaces and line breaks. */
function tokenLabel(token) {
  const plain = token.replace(/[Ġ▁]/g, " ").replace(/Ċ/g, "⏎").replace(/[\u0000-\u001f]/g, "␣").trim() || "␣";
  const letters = [...plain];
  return letters.length > 12 ? letters.slice(0, 11).join("") + "…" : plain;
}

/** Return a label cut to what fits into so many pixels. */
function fitted(label, pixels, size) {
  const letters = [...label], most = Math.max(2, Math.floor(pixels / (0.6 * size)));
  return letters.length > most ? letters.slice(0, most - 1).join("") + "…" : label;
}

/** Return the places of the parts of a picture that is `width` pixels wide. */
function matrixLayout(view, width) {
  const [[q0, q1], [k0, k1]] = view.window;
  const small = width < 480;
  const treeSize = view.organised ? (small ? 36 : 70) : 0;
  const names = small ? 54 : 76;
  const left = treeSize + names, top = treeSize + names;
  const side = width - left - 2;
  const cell = [0, side / (k1 - k0)];
  cell[0] = Math.min(Math.max(cell[1], 120 / (q1 - q0)), 900 / (q1 - q0)); // square unless too flat or too tall
  const high = cell[0] * (q1 - q0);
  return { width, height: Math.ceil(top + high + BAR), treeSize, names, left, top, side, high, cell };
}

/** Draw trees, labels, matrix, colour bar and, where there is one, the cursor. */
function paintMatrix(surface, view, layout, colours, cursor) {
  const { left, top, side, high, cell, treeSize, names } = layout;
  const [[q0, q1], [k0, k1]] = view.window;
  surface.image(view.pixels, [k0, q0, k1 - k0, q1 - q0], left, top, side, high);
  surface.rectangle(left, top, side, high, { stroke: colours.line });
  if (view.organised) {
    const depth = view.data.trees.map((tree) => Math.max(1, tree.depth - 1));
    const rows = (at, level) => [2 + (level / depth[0]) * (treeSize - 4), top + (at - q0) * cell[0]];
    const columns = (at, level) => [left + (at - k0) * cell[1], 2 + (level / depth[1]) * (treeSize - 4)];
    drawTree(surface, view.nodes[0], q0, q1, rows, colours.line);
    drawTree(surface, view.nodes[1], k0, k1, columns, colours.line);
  }
  const size = (axis) => Math.min(11, Math.max(8, cell[axis] - 1));
  const name = (axis, at, pixels = size(axis)) => fitted(view.label(axis, at), names - 6, pixels);
  const every = cell.map((pixels) => Math.max(1, Math.ceil(LEAST / pixels)));
  for (let row = q0; row < q1; row += every[0]) {
    surface.text(left - 4, top + (row - q0 + 0.5) * cell[0], name(0, row),
      { fill: colours.faint, size: size(0), anchor: "end" });
  }
  for (let column = k0; column < k1; column += every[1]) {
    surface.text(left + (column - k0 + 0.5) * cell[1], top - 4, name(1, column),
      { fill: colours.faint, size: size(1), turned: true });
  }
  if (cursor && cursor.row < q1 && cursor.column < k1) {
    const x = left + (cursor.column - k0) * cell[1], y = top + (cursor.row - q0) * cell[0];
    surface.rectangle(left - names, y + cell[0] / 2 - 7, names - 1, 14, { fill: colours.background });
    surface.text(left - 4, y + cell[0] / 2, name(0, cursor.row, 12), { fill: colours.text, size: 12, anchor: "end" });
    surface.rectangle(x + cell[1] / 2 - 7, top - names, 14, names - 1, { fill: colours.background });
    surface.text(x + cell[1] / 2, top - 4, name(1, cursor.column, 12), { fill: colours.text, size: 12, turned: true });
    surface.rectangle(left, y, side, cell[0], { stroke: colours.accent });
    surface.rectangle(x, top, cell[1], high, { stroke: colours.accent });
  }
  paintBar(surface, view, left, top + high + 10, side, colours);
}

function paintBar(surface, view, left, y, side, colours) {
  const width = Math.min(180, side / 3);
  const { most, signed, colours: scale } = view.scale;
  const count = 48;
  for (let i = 0; i < count; i++) {
    const fill = `rgb(${scale[Math.round((255 * i) / (count - 1))].join(",")})`;
    surface.rectangle(left + (i * width) / count, y, width / count + 0.5, 10, { fill });
  }
  surface.rectangle(left, y, width, 10, { stroke: colours.line });
  const quantity = signed ? view.data.stage : "probability, root scale";
  const style = { fill: colours.faint, size: 10 };
  surface.text(left - 4, y + 5, signed ? digits(-most) : "0", { ...style, anchor: "end" });
  surface.text(left + width + 4, y + 5, digits(most), style);
  const beside = 7 * digits(most).length + 16; // pixels; where the name does not fit beside the numbers, it stands below
  if (side - width - beside > 6 * quantity.length) surface.text(left + width + beside, y + 5, quantity, style);
  else surface.text(left, y + 19, quantity, style);
}
