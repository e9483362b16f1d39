// A whole page: its figures, its views of attention, links to heads, and printing.

const PAPER = 680; // pixels: width of a figure on paper

class Page {
  constructor() {
    this.data = readJson("page-data");
    this.figures = [];
    this.views = [];
    this.themed = () => [...this.figures.map((figure) => figure.applyTheme()), ...this.views.map((view) => view.draw())];
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
    window.addEventListener("hashchange", () => this.follow());
    window.addEventListener("beforeprint", () => this.paper(true));
    window.addEventListener("afterprint", () => this.paper(false));
    // Views first: they need no plotly, and their height must be known before it is asked which figures can be seen.
    await this.mountViews();
    this.follow();
    performance.mark("attngeo-views");
    await loadPlotly(document.getElementById("plotly").textContent);
    const seen = this.figures.filter(({ root }) => root.getBoundingClientRect().top < 1.5 * window.innerHeight);
    for (const figure of seen) await figure.draw();
    performance.mark("attngeo-usable");
    for (const figure of this.figures) {
      await new Promise((idle) => setTimeout(idle));
      await figure.draw();
    }
    performance.mark("attngeo-ready");
    document.documentElement.dataset.ready = "true";
  }

  async mountViews() {
    for (const [number, id] of this.data.views.entries()) {
      const root = document.getElementById(id);
      const view = await mountAttention(root, readJson(`${id}-data`), {
        onPick: (label) => history.replaceState(null, "", "#" + this.address(number, label)),
      });
      this.views.push(view);
    }
  }

  /** Return the address of a head inside the page: L3H7, or 2-L3H7 for the second model. */
  address(view, label) {
    return view === 0 ? label : `${view + 1}-${label}`;
  }

  /** Show the head that the address of the page names. */
  follow() {
    const found = /^#(?:(\d+)-)?(L\d+H\d+)$/.exec(decodeURIComponent(location.hash));
    if (found) this.showHead(Number(found[1] || 1) - 1, found[2], false);
  }

  showHead(view, label, tell = true) {
    const shown = this.views[view];
    if (shown && shown.pick(label, tell)) shown.root.closest("section").scrollIntoView({ block: "start" });
  }

  /** Prepare for paper: everything drawn, in light colours and narrow enough; and back. */
  paper(printing) {
    const root = document.documentElement;
    if (printing) {
      this.themeBefore = root.dataset.theme;
      root.dataset.theme = "light";
      this.figures.forEach((figure) => figure.draw());
    } else if (this.themeBefore) root.dataset.theme = this.themeBefore;
    else delete root.dataset.theme;
    this.figures.forEach((figure) => figure.setWidth(printing ? PAPER : null));
    this.themed();
  }
}
