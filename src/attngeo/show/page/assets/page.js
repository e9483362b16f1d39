// A whole page: its figures, its views of attention, links to heads, and printing.

class Page {
  constructor() {
    this.data = readJson("page-data");
    this.figures = [];
    this.views = [];
    this.themed = () => {
      for (const figure of this.figures) figure.applyTheme();
      for (const view of this.views) if (view) view.draw();
    };
  }

  async start() {
    themeSwitch(document.getElementById("theme"), this.themed);
    if (typeof DecompressionStream === "undefined") {
      document.getElementById("old-browser").hidden = false;
      return;
    }
    for (const figure of this.data.figures) {
      const root = document.getElementById(figure.id);
      this.figures.push(new PlotFigure(root, figure, (label) => this.showHead(figure.view, label)));
    }
    window.addEventListener("hashchange", () => {
      const named = this.named();
      if (named) this.showHead(named.view, named.label, false);
    });
    window.addEventListener("beforeprint", () => this.paper(true));
    window.addEventListener("afterprint", () => this.paper(false));
    const views = this.data.views.map((id) => document.getElementById(id));
    for (const root of views) root.style.minHeight = "55rem"; // about what it will need: figures below stay in place
    // First what can be seen, and the view that the address names; then the rest, from top to bottom.
    const near = (root) => root.getBoundingClientRect().top < 1.2 * window.innerHeight;
    const named = this.named();
    for (const [number, root] of views.entries()) if (near(root) || (named && named.view === number)) await this.mount(number);
    if (named) this.showHead(named.view, named.label, false);
    const seen = this.figures.filter(({ root }) => near(root));
    await loadPlotly(document.getElementById("plotly").textContent);
    for (const figure of seen) await figure.draw();
    performance.mark("attngeo-usable");
    for (const number of views.keys()) await this.mount(number);
    for (const figure of this.figures) {
      await new Promise((idle) => setTimeout(idle));
      await figure.draw();
    }
    performance.mark("attngeo-ready");
    document.documentElement.dataset.ready = "true";
  }

  /** Draw a view of attention, once. */
  async mount(number) {
    if (this.views[number]) return;
    const id = this.data.views[number], root = document.getElementById(id);
    this.views[number] = await mountAttention(root, readJson(`${id}-data`), {
      onPick: (label) => history.replaceState(null, "", "#" + this.address(number, label)),
    });
    root.style.minHeight = "";
  }

  /** Return the address of a head inside the page: L3H7, or 2-L3H7 for the second model. */
  address(view, label) {
    return view === 0 ? label : `${view + 1}-${label}`;
  }

  /** Return the view and the label of the head that the address of the page names, or null. */
  named() {
    const found = /^#(?:(\d+)-)?(L\d+H\d+)$/.exec(location.hash);
    return found && { view: Number(found[1] || 1) - 1, label: found[2] };
  }

  showHead(view, label, tell = true) {
    const shown = this.views[view];
    if (shown && shown.pick(label, tell)) shown.root.closest("section").scrollIntoView({ block: "start" });
  }

  /** Prepare for paper: everything drawn, in light colours and narrow enough; and back. */
  paper(printing) {
    const root = document.documentElement;
    PAPER.printing = printing;
    if (printing) {
      this.themeBefore = root.dataset.theme;
      root.dataset.theme = "light";
      if (window.Plotly) this.figures.forEach((figure) => figure.draw());
    } else if (this.themeBefore) root.dataset.theme = this.themeBefore;
    else delete root.dataset.theme;
    this.figures.forEach((figure) => figure.setPaper(printing ? PAPER.width : null));
    this.themed();
  }
}
