"""The explorer's server: what it answers, what it refuses, and that a newer text cancels an older one."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
from contextlib import closing
from typing import Any

import pytest

import attngeo
from attngeo.errors import InputError
from attngeo.reporting.explorer import MOST_CHARACTERS, ExplorerServer, Superseded, TextSession

TEXT = "The old man looked at the sea and said nothing."


def ask(server: ExplorerServer, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def organise(server: ExplorerServer, **fields: Any) -> tuple[int, Any]:
    status, body = ask(server, "POST", f"/{server.token}/organise", json.dumps(fields).encode())
    return status, json.loads(body)


def test_a_text_is_organised_as_organize_does(server):
    status, data = organise(server, side="left", text=TEXT)
    assert status == 200
    found = attngeo.organize(attngeo.capture(attngeo.bundled("encoder"), TEXT, stage="probabilities"))
    assert data["shape"] == list(found.values.shape)
    assert [tree["order"] for tree in data["trees"]] == [tree.order.tolist() for tree in found.trees]


def test_the_report_is_that_of_the_text_on_its_side(server):
    """Of the two texts that a page shows, each has its own report; there is none of a side without a text."""
    texts = {"left": TEXT, "right": "A ship sailed in."}
    shapes = {side: organise(server, side=side, text=text)[1]["shape"] for side, text in texts.items()}
    assert shapes["left"] != shapes["right"]
    for side, shape in shapes.items():
        status, body = ask(server, "POST", f"/{server.token}/report", json.dumps({"side": side}).encode())
        found = f'"shape":{json.dumps(shape, separators=(",", ":"))}'
        assert status == 200 and found.encode() in body and b"bundled/encoder" in body
    with pytest.raises(InputError, match="organise a text first"):
        TextSession(attngeo.bundled("decoder")).report_html("right")


def test_the_page_says_that_it_may_ask_this_server_only(server):
    status, body = ask(server, "GET", f"/{server.token}/")
    assert status == 200 and b"connect-src &#39;self&#39;" in body and b"unsafe-eval" not in body


def test_nothing_is_answered_without_the_token_or_from_the_disk(server):
    token = server.token
    for path in ("/", "/wrong/", f"/{token}", f"/{token}/../../etc/passwd", f"/{token}/assets/page.js"):
        status, body = ask(server, "GET", path)
        assert status == 404 and b"root:" not in body


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (" \n", "the text is empty"),
        ("a" * (MOST_CHARACTERS + 1), "20,001 characters, expected at most 20,000"),
        ("word " * 3000, "truncate"),
    ],
)
def test_a_bad_text_is_refused_in_one_line(server, text, message):
    status, answer = organise(server, side="left", text=text)
    assert status == 400 and message in answer["error"] and "\n" not in answer["error"]


def test_a_newer_text_cancels_an_older_one_of_the_same_side(session, monkeypatch):
    """The older call is held inside its first progress step until the newer one has been asked for."""
    from attngeo.reporting import explorer as text_session

    begun, go_on, outcomes = threading.Event(), threading.Event(), {}
    real = text_session.organize

    def held(tensor: Any, *, device: Any, progress: Any) -> Any:
        def step(*call: Any) -> None:
            if not begun.is_set():
                begun.set()
                go_on.wait(30)
            progress(*call)

        return real(tensor, device=device, progress=step)

    monkeypatch.setattr(text_session, "organize", held)

    def work(name: str, side: str, text: str) -> None:
        try:
            outcomes[name] = session.organise(side, text)["shape"][0]
        except Superseded:
            outcomes[name] = "superseded"

    older = threading.Thread(target=work, args=("older", "left", TEXT))
    older.start()
    assert begun.wait(30)
    others = [threading.Thread(target=work, args=("other side", "right", TEXT))]
    others += [threading.Thread(target=work, args=("newer", "left", "A newer text."))]
    before = session._newest["left"]
    for thread in others:
        thread.start()
    while session._newest["left"] == before:  # until the newer one is queued
        others[1].join(0.001)
    go_on.set()
    for thread in (older, *others):
        thread.join(60)
    sizes = [len(session._loaded.tokenizer(text).input_ids) for text in (TEXT, "A newer text.")]
    assert outcomes == {"older": "superseded", "other side": sizes[0], "newer": sizes[1]}


def test_a_port_in_use_and_a_model_without_tokenizer_are_one_line(session, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"port {port} of 127.0.0.1: cannot be used"):
            ExplorerServer(session, port=port)
    model = attngeo.bundled("encoder")
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).symlink_to(f"{model}/{name}")
    with pytest.raises(InputError, match="no tokenizer"):
        TextSession(tmp_path)


def test_a_text_is_never_taken_for_the_path_of_an_image(tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    transformers.ViTModel(transformers.ViTConfig(**sizes, image_size=32, patch_size=16)).save_pretrained(tmp_path)
    transformers.AutoTokenizer.from_pretrained(attngeo.bundled("encoder")).save_pretrained(tmp_path)
    with pytest.raises(InputError, match="reads images or sounds, expected a model or stack that reads text"):
        TextSession(tmp_path)


def test_the_command_serves_until_it_is_interrupted():
    command = [sys.executable, "-m", "attngeo", "explore", str(attngeo.bundled("encoder"))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None and running.stderr is not None
        address = running.stdout.readline().removeprefix("attngeo: ").strip()
        host, token = address.removeprefix("http://").split("/")[:2]
        with closing(http.client.HTTPConnection(host, timeout=60)) as connection:
            connection.request("GET", f"/{token}/")
            assert connection.getresponse().status == 200
            running.send_signal(signal.SIGINT)  # while the connection is open and its answer not read
            assert running.stdout.read() == "attngeo: stopped\n"
        assert running.stderr.read() == f"attngeo: loading {command[-1]}\n"
    assert running.returncode == 0
