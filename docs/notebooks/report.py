"""The attention view of a report as a marimo notebook: `marimo run docs/notebooks/report.py`, or `marimo edit`."""

import marimo

app = marimo.App(width="full", app_title="Any head of a model on a text")


@app.cell
def _():
    import marimo as mo

    import attngeo

    return attngeo, mo


@app.cell
def _(mo):
    text = mo.ui.text_area(
        "it is a truth universally acknowledged that a single man must be in want of a wife", label="Text"
    ).form()
    model = mo.ui.dropdown(["encoder", "decoder"], "encoder", label="Bundled model")
    mo.vstack([model, text])
    return model, text


@app.cell
def _(attngeo, mo, model, text):
    words = text.value or text.element.value
    tensor = attngeo.capture(attngeo.bundled(model.value), words, stage="probabilities")
    organization = attngeo.organize(tensor)
    view = mo.ui.anywidget(organization.view())
    view  # noqa: B018  a cell shows its last expression
    return organization, view


@app.cell
def _(mo, organization):
    mo.md(f"{organization!r}")
    return


if __name__ == "__main__":
    app.run()
