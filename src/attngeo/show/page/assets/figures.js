// Figures that plotly draws: themes, choices as select elements, saving, and heads that are picked by a click.

// Without a mouse plotly's buttons would always be there, over the titles; a double tap resets the axes all the same.
const PLOT_SETTINGS = { responsive: true, displaylogo: false, plotlyServerURL: "", showSendToCloud: false,
  displayModeBar: matchMedia("(hover: none)").matches ? false : "hover",
  modeBarButtonsToRemove: ["toImage", "select2d", "lasso2d", "autoScale2d"] };

/** Inflate plotly's script and run it from a blob: address, which the page's policy allows. */
async function loadPlotly(text) {
  const address = URL.createObjectURL(new Blob([await inflate(text)], { type: "text/javascript" }));
  await new Promise((done, failed) => {
    document.head.append(element("script", { src: address, onload: done, onerror: failed }));
  });
  URL.revokeObjectURL(address);
}

/** Return the colours that plotly's layout needs in the current theme, under the names of `relayout`. */
function themeChanges(layout) {
  const colours = themeColours();
  const changes = { "font.color": colours.text, "modebar.bgcolor": colours.background,
    "modebar.color": colours.line, "modebar.activecolor": colours.text };
  for (const name of Object.keys(layout).filter((key) => /^[xy]axis\d*$/.test(key))) {
    changes[`${name}.gridcolor`] = colours.grid;
    changes[`${name}.zerolinecolor`] = colours.line;
    changes[`${name}.linecolor`] = colours.line;
  }
  return changes;
}

/** Return a copy of a layout in the colours of the current theme. */
function themed(layout) {
  const copy = structuredClone(layout);
  for (const [path, value] of Object.entries(themeChanges(layout))) {
    const names = path.split("."), last = names.pop();
    names.reduce((part, name) => (part[name] ??= {}), copy)[last] = value;
  }
  return copy;
}

const PANEL = 300; // pixels: least width of a panel beside another
const SHEET = 800; // pixels: panels side by side are not taller on paper, so that they fit below the text of their section
const LOWER = 0.82; // height on paper of other figures, as a share of that on the screen: two fit on a page

/** Return the layout changes that place the panels of a figure in so many columns, each `height` pixels tall. */
function panelGrid({ grid, layout }, columns, width, height) {
  const rows = Math.ceil(grid.panels / columns), inner = rows * height + (rows - 1) * grid.gap;
  const between = columns > 1 ? 72 / Math.max(72, width - layout.margin.l - layout.margin.r) : 0;
  const wide = (1 - (columns - 1) * between) / columns;
  const stacked = grid.panels * grid.height + (grid.panels - 1) * grid.gap;
  const changes = { height: layout.height - stacked + inner };
  for (let at = 0; at < grid.panels; at++) {
    const left = (at % columns) * (wide + between), top = 1 - (Math.floor(at / columns) * (height + grid.gap)) / inner;
    const number = at ? at + 1 : "";
    changes[`xaxis${number}.domain`] = [left, left + wide];
    changes[`yaxis${number}.domain`] = [Math.max(0, top - height / inner), top];
    changes[`annotations[${at}].x`] = left;
    changes[`annotations[${at}].y`] = top;
  }
  return changes;
}

/** One figure: its drawing, its select element where it has a choice, and buttons that save it. */
class PlotFigure {
  /** root: the element of the figure in the page; onHead: called with the label of a head that is clicked */
  constructor(root, figure, onHead) {
    this.root = root;
    this.figure = figure;
    this.onHead = onHead;
    this.drawn = false;
    this.plot = element("div", { class: "plot", role: "img", "aria-label": figure.label });
    this.plot.style.minHeight = (this.arrangement(root.clientWidth) || figure.plotly.layout).height + "px";
    const button = (text, action) =>
      element("button", { type: "button", "aria-label": `${text}: ${figure.label}`, onclick: action }, text);
    root.replaceChildren(...this.choices(), this.plot, element("div", { class: "tools" },
      button("Save as SVG", () => this.saveSvg()), button("Save data as CSV", () => this.saveCsv())), this.table());
  }

  /** Return a select element for each menu of the figure; plotly's own menus cannot be used from a keyboard. */
  choices() {
    return (this.figure.plotly.layout.updatemenus || []).map((menu) => {
      const options = menu.buttons.map((button, at) => element("option", { value: at }, plainText(button.label)));
      const select = element("select", { "aria-label": `Choice of ${this.figure.label}`, onchange: async () => {
        await this.draw();
        const { method, args } = menu.buttons[Number(select.value)];
        Plotly[method](this.plot, ...args);
      } }, ...options);
      select.value = String(menu.active || 0);
      return element("label", { class: "choice" }, "Show ", select);
    });
  }

  async draw() {
    if (this.drawn) return;
    this.drawn = true;
    const { data, layout } = this.figure.plotly;
    const { updatemenus, ...rest } = layout;
    await Plotly.newPlot(this.plot, data, themed({ autosize: true, ...rest }), PLOT_SETTINGS);
    this.arrange();
    if (this.figure.plotly.grid) new ResizeObserver(() => this.arrange()).observe(this.root);
    this.plot.on("plotly_click", ({ points }) => {
      const label = [points[0].customdata].flat()[0];
      if (typeof label === "string") this.onHead(label);
    });
  }

  async applyTheme() {
    if (this.drawn) await Plotly.relayout(this.plot, themeChanges(this.plot.layout));
  }

  /** Return how the panels are placed on a page of this width, or null where they cannot be side by side. */
  arrangement(width, paper = false) {
    const { grid, layout } = this.figure.plotly;
    if (!grid) return null;
    const columns = Math.max(1, Math.min(grid.beside, grid.panels, Math.floor(width / PANEL)));
    const rows = Math.ceil(grid.panels / columns);
    const frame = layout.height - grid.panels * grid.height - (grid.panels - rows) * grid.gap;
    const height = paper ? Math.min(grid.height, Math.max(160, (SHEET - frame) / rows)) : grid.height;
    return panelGrid(this.figure.plotly, columns, width, height);
  }

  async arrange() {
    const changes = this.drawn && !this.onPaper && this.arrangement(this.root.clientWidth);
    if (!changes || changes.height === this.plot.layout.height) return;
    this.plot.style.minHeight = changes.height + "px";
    await Plotly.relayout(this.plot, { ...changes, autosize: true }); // a height alone would fix the width, too
  }

  /** Give the drawing the width of paper, or (null) that of the page again. */
  async setPaper(width) {
    this.onPaper = width !== null;
    if (!this.drawn) return;
    const high = Math.round((this.onPaper ? LOWER : 1) * this.figure.plotly.layout.height);
    const changes = this.arrangement(width ?? this.root.clientWidth, this.onPaper) || { height: high };
    this.plot.style.minHeight = this.onPaper ? "0" : changes.height + "px";
    await Plotly.relayout(this.plot, { ...changes, ...(this.onPaper ? { width } : { autosize: true, width: null }) });
  }

  async saveSvg() {
    await this.draw();
    const { data, layout } = this.plot;
    const background = themeColours().background;
    const address = await Plotly.toImage({ data, layout: { ...layout, paper_bgcolor: background } },
      { format: "svg", width: this.plot.clientWidth, height: this.plot.clientHeight });
    saveFile(`${this.figure.id}.svg`, "image/svg+xml", decodeURIComponent(address.slice(address.indexOf(",") + 1)));
  }

  rows() {
    const names = Object.keys(this.figure.table);
    const count = Math.max(0, ...names.map((name) => this.figure.table[name].length));
    return [names, ...Array.from({ length: count }, (_, at) => names.map((name) => this.figure.table[name][at]))];
  }

  saveCsv() {
    saveFile(`${this.figure.id}.csv`, "text/csv", csv(this.rows()));
  }

  /** Return the first rows of the data as a table that is made when it is opened. */
  table() {
    const shown = 200;
    const details = element("details", { class: "data" }, element("summary", {}, "Data"));
    details.addEventListener("toggle", () => {
      if (!details.open || details.children.length > 1) return;
      const [head, ...rows] = this.rows();
      const cell = (value) => element("td", {}, value === null || value === undefined ? "" : String(value));
      details.append(element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": this.figure.label },
        element("table", {}, element("thead", {}, element("tr", {}, ...head.map((name) => element("th", {}, name)))),
          element("tbody", {}, ...rows.slice(0, shown).map((row) => element("tr", {}, ...row.map(cell)))))));
      if (rows.length > shown) details.append(element("p", {}, `${shown} of ${rows.length} rows; the CSV file has all.`));
    });
    return details;
  }
}

/** Return text that was escaped for plotly as it reads. */
function plainText(text) {
  return text.replace(/<[^>]*>/g, "").replaceAll("&lt;", "<").replaceAll("&gt;", ">").replaceAll("&amp;", "&");
}
