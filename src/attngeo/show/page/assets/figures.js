// Figures that plotly draws: themes, choices as select elements, saving, and heads that are picked by a click.

const PLOT_SETTINGS = { responsive: true, displaylogo: false, plotlyServerURL: "",
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
  const changes = { "font.color": colours.text };
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

/** One figure: its drawing, its select element where it has a choice, and buttons that save it. */
class PlotFigure {
  /** root: the element of the figure in the page; onHead: called with the label of a head that is clicked */
  constructor(root, figure, onHead) {
    this.root = root;
    this.figure = figure;
    this.onHead = onHead;
    this.drawn = false;
    this.plot = element("div", { class: "plot", role: "img", "aria-label": figure.label });
    this.plot.style.minHeight = (figure.plotly.layout.height || 320) + "px";
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
    this.plot.on("plotly_click", ({ points }) => {
      const label = [points[0].customdata].flat()[0];
      if (typeof label === "string") this.onHead(label);
    });
  }

  async applyTheme() {
    if (this.drawn) await Plotly.relayout(this.plot, themeChanges(this.plot.layout));
  }

  /** Give the drawing a fixed width for paper, or (null) the width of the page again. */
  setWidth(width) {
    return this.drawn && Plotly.relayout(this.plot, width === null ? { autosize: true, width: null } : { width });
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
