"""What a report computes from models and an input, and what it calls them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import attngeo
from attngeo.errors import AttngeoError
from attngeo.reporting import missing

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TEXT = "The sea was calm."
ENCODER, DECODER = (attngeo.bundled(name) for name in ("encoder", "decoder"))


def test_options_say_what_is_computed(tmp_path: Path) -> None:
    """Of the model and of the one that it is compared with; a text that is too long is only read when truncated."""
    options: dict[str, Any] = {"layers": [1, 2], "truncate": True, "full": True, "stage": "logits"}
    path = attngeo.report(ENCODER, tmp_path / "report.html", inputs="word " * 200, against=DECODER, **options)
    page = path.read_text("utf-8")
    assert '"permuted: trees"' in page and '<section id="invariance"' in page and '"stage":"logits"' in page
    heads = ",".join(f'"L{layer}H{head}"' for layer in (1, 2) for head in range(4))
    assert f'"heads":[{heads}]' in page
    short = attngeo.report(ENCODER, path, inputs=TEXT, layers=[0]).read_text("utf-8")
    assert '<section id="invariance"' not in short and '"permuted: trees"' not in short


def test_what_a_model_will_refuse_is_said_before_another_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(missing, "score", None)
    monkeypatch.setattr(missing, "capture", None)
    short = shutil.copytree(DECODER, tmp_path / "short")
    config = short / "config.json"
    config.write_text(config.read_text().replace('"max_position_embeddings": 128', '"max_position_embeddings": 8'))
    path, text = tmp_path / "report.html", "word " * 20
    for given, options in (([ENCODER, short], {}), ([ENCODER], {"against": short})):
        with pytest.raises(AttngeoError, match="short reads at most 8"):
            attngeo.report(given, path, inputs=text, **options)
    with pytest.raises(AttngeoError, match="missing: no such folder"):
        attngeo.report([ENCODER, tmp_path / "missing"], path, inputs=text)
    with pytest.raises(AttngeoError, match="short reads at most 8"):
        attngeo.compare(ENCODER, short, inputs=text)
    assert not path.exists()


def test_a_model_of_the_same_short_name_is_shown_too(tmp_path: Path) -> None:
    """Two runs in folders of one name; a report names both, by as much of their paths as tells them apart."""
    refs = [shutil.copytree(ref, tmp_path / run / "run" / "model") for ref, run in ((DECODER, "x"), (ENCODER, "y"))]
    page = attngeo.report(refs[0], tmp_path / "report.html", against=refs[1]).read_text("utf-8")
    names = ["…/x/run/model", "…/y/run/model"]
    assert f"<title>Attention geometry of {names[0]} and {names[1]}</title>" in page
    assert f"Compared: {names[0]} → {names[1]}" in page
    for name in names:  # of the verdict, the rows of scores, the head forms
        assert page.count(name) > 4


@pytest.mark.parametrize("in_memory", [False, True])
def test_a_model_compared_with_itself_or_its_class_is_told_apart(tmp_path: Path, in_memory: bool) -> None:
    if in_memory:
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        given, against = (transformers.BertModel(transformers.BertConfig(vocab_size=32, **sizes)) for _ in range(2))
        title = "BertModel (1) and BertModel (2)"
    else:
        given, against, title = str(ENCODER), Path(ENCODER), "bundled/encoder"
    page = attngeo.report(given, tmp_path / "report.html", against=against).read_text("utf-8")
    assert f"<title>Attention geometry of {title}</title>" in page
