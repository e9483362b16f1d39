"""`attngeo report`: files that are written, and options that are refused in one line."""

from __future__ import annotations

import pytest

import attngeo
from tests.cli.commands import call, error_line

ENCODER, DECODER = (str(attngeo.bundled(name)) for name in ("encoder", "decoder"))


def report(*arguments: object):
    return call("report", *arguments)


def test_a_report_of_weights_alone_needs_no_input(tmp_path):
    path = tmp_path / "weights.html"
    done = report(ENCODER, DECODER, "--out", path)
    assert done.returncode == 0 and done.stdout == "" and f"attngeo: wrote {path}" in done.stderr
    text = path.read_text("utf-8")
    assert "clearly symmetric (median 0.60" in text and 'id="attention"' not in text
    assert path.stat().st_size < 3_000_000


def test_a_report_of_an_input_a_saved_result_and_another_model(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("ot")
    text, table, path = tmp_path / "text.txt", tmp_path / "scores.parquet", tmp_path / "report.html"
    text.write_text("The sea was calm and the night was long.")
    attngeo.score(ENCODER, layers=[0, 1]).save(table)
    options = ("--against", DECODER, "--layers", "0-1", "--stage", "logits", "--out", path)
    done = report(ENCODER, table, "--text-file", text, *options)
    assert done.returncode == 0, done.stderr
    written = path.read_text("utf-8")
    assert '"stage":"logits"' in written and '<section id="comparison"' in written
    assert (
        '"heads":["L0H0","L0H1","L0H2","L0H3","L1H0"' in written
        and "L2H0" not in written.split("attention-view-data")[1][:9999]
    )


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((ENCODER, "--text", "a", "--image", "b.png"), "at most one of --text, --text-file, --image, --audio"),
        (("no/such-folder/model",), "no/such-folder/model"),
        ((ENCODER, "--text", "The sea.", "--layers", "9"), "layers"),
        ((ENCODER, "--text", "sea " * 900), "--truncate"),
        ((ENCODER, "--stage", "keys"), "stage 'keys'"),
        ((ENCODER, "--out", "report.pdf"), "report.pdf: a report is an HTML page, expected a name ending in .html"),
        ((ENCODER, "--truncate"), "truncate: says how an input is read, but no input was given"),
        ((ENCODER, "--full"), "full: asks for controls of the attention on an input, but no input was given"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in error_line(report(*arguments))
    assert list(tmp_path.iterdir()) == []


def test_a_text_for_a_model_of_images_names_the_option_to_use(tmp_path):
    transformers = pytest.importorskip("transformers")
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = transformers.ViTModel(transformers.ViTConfig(image_size=32, patch_size=16, **size))
    model.save_pretrained(tmp_path / "vit")
    line = error_line(report(tmp_path / "vit", "--text", "a", "--out", tmp_path / "report.html"))
    assert line.endswith("/vit: reads images, not texts, and there is no file 'a'; give the path of one (--image)")
