// The explorer: one or two panels, each with a text and the organised attention on it.

/** A text box and the picture of its text. A panel without a box shows another head of what the first one shows. */
class Panel {
  constructor(side, mostCharacters, onData) {
    this.side = side;
    this.onData = onData;
    this.asked = 0;
    this.text = element("textarea", { rows: 3, maxlength: mostCharacters, "aria-label": `Text, ${side}`, spellcheck: "false" });
    this.text.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.ask();
    });
    this.form = element("form", {}, this.text, element("button", {}, "Organise"));
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.ask();
    });
    this.status = element("p", { role: "status" });
    this.picture = element("div");
    this.save = element("button", { type: "button", disabled: true, onclick: () => this.saveReport() }, "Save the report");
    this.root = element("section", { "aria-label": `Panel, ${side}` }, this.form, this.status, this.picture,
      element("div", { class: "tools" }, this.save));
  }

  say(text, wrong = false) {
    this.status.textContent = text;
    this.status.classList.toggle("wrong", wrong);
  }

  /** Organise the text in the box. The server ends an older request of this panel, whose answer is not shown. */
  async ask() {
    const number = ++this.asked, began = performance.now();
    if (!this.text.value.trim()) return this.say("The text is empty.", true);
    this.say("Organising …");
    this.root.setAttribute("aria-busy", "true");
    try {
      const answer = await this.post("organise", { side: this.side, text: this.text.value });
      const data = await answer.json();
      if (number !== this.asked) return;
      await this.show(data);
      this.save.disabled = false;
      const milliseconds = performance.now() - began;
      this.root.dataset.milliseconds = milliseconds.toFixed(0);
      const [queries, keys, heads] = data.shape;
      this.say(`${queries} queries, ${keys} keys, ${heads} heads in ${(milliseconds / 1000).toFixed(2)} s`);
      this.onData(data);
    } catch (error) {
      if (number === this.asked) this.say(error.message, true);
    } finally {
      if (number === this.asked) this.root.removeAttribute("aria-busy");
    }
  }

  /** Draw data; the head that was shown before stays if there still is one. */
  async show(data, head = this.view?.data.heads[this.view.head]) {
    this.view?.observer.disconnect();
    const place = element("div");
    this.picture.replaceChildren(place);
    this.view = await mountAttention(place, data);
    if (head !== undefined) this.view.pick(head, false);
    this.root.dataset.ready = Number(this.root.dataset.ready || 0) + 1;
  }

  async saveReport() {
    this.say("Writing the report …");
    try {
      const answer = await this.post("report", { side: this.side });
      saveFile("report.html", "text/html", await answer.text());
      this.say("The report was saved.");
    } catch (error) {
      this.say(error.message, true);
    }
  }

  /** Return the answer to a request; an error in the words of the server. */
  async post(action, fields) {
    let answer;
    try {
      answer = await fetch(action, { method: "POST", body: JSON.stringify(fields) });
    } catch {
      throw new Error("The explorer does not answer. Is it still running?");
    }
    if (!answer.ok) throw new Error((await answer.json()).error);
    return answer;
  }
}

function startExplorer({ mostCharacters }) {
  const beside = document.getElementById("beside");
  const right = new Panel("right", mostCharacters, () => {});
  const left = new Panel("left", mostCharacters, (data) => beside.value === "head" && right.show(data));
  const panels = document.getElementById("panels");
  const arrange = () => {
    const two = beside.value !== "nothing";
    document.body.classList.toggle("two", two);
    panels.replaceChildren(...(two ? [left.root, right.root] : [left.root]));
    right.form.hidden = right.status.hidden = right.save.hidden = beside.value === "head";
    if (beside.value === "head" && left.view) right.show(left.view.data, left.view.data.trees[2].order.at(-1));
  };
  beside.addEventListener("change", arrange);
  themeSwitch(document.getElementById("theme"), () => [left, right].forEach((panel) => panel.view?.draw()));
  if (typeof DecompressionStream === "undefined") document.getElementById("old-browser").hidden = false;
  arrange();
  left.text.focus();
}

startExplorer(readJson("explorer-data"));
