"""Files and folders appear complete or not at all, with ordinary permissions, and leave no temporary files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from attngeo.errors import AttngeoError
from attngeo.io.archive import save_json
from attngeo.io.files import (
    atomic_file,
    atomic_folder,
    check_new_folder,
    check_writable,
    remove_unfinished,
    write_file,
)

posix_only = pytest.mark.skipif(os.name != "posix", reason="needs POSIX")


@pytest.fixture
def umask():
    """Set the umask to one that differs from the usual 022, and back."""
    before = os.umask(0o027)
    yield 0o027
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


# ---- files


@pytest.mark.parametrize("durable", [False, True])
def test_a_file_is_replaced_when_the_context_ends(tmp_path, durable):
    path = tmp_path / "scores.csv"
    write_file(path, b"old")
    with atomic_file(path, durable=durable) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["scores.csv"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_keeps_the_old_file_and_leaves_nothing(tmp_path, error):
    path = tmp_path / "scores.csv"
    write_file(path, b"old")
    with pytest.raises(error), atomic_file(path) as file:
        file.write(b"half")
        raise error
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["scores.csv"]


@posix_only
def test_a_full_disk_keeps_the_old_file_and_leaves_nothing(tmp_path):
    path = tmp_path / "scores.csv"
    write_file(path, b"old")
    script = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "from attngeo.errors import AttngeoError\n"
        "from attngeo.io.files import write_errors, write_file\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"  # fails in write and once more in close
        "path = Path(sys.argv[1])\n"
        "try:\n"
        "    with write_errors(path):\n"
        "        write_file(path, bytes(2000))\n"
        "except AttngeoError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{path}: cannot be written (File too large)\n"
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["scores.csv"]


@posix_only
def test_a_killed_process_leaves_the_old_file(tmp_path):
    path = tmp_path / "scores.csv"
    write_file(path, b"old")
    script = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from attngeo.io.files import atomic_file\n"
        "with atomic_file(Path(sys.argv[1])) as file:\n"
        "    file.write(b'half')\n"
        "    file.flush()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert path.read_bytes() == b"old"
    assert len(os.listdir(tmp_path)) == 2  # a killed process cannot clean up after itself
    remove_unfinished(tmp_path)
    assert os.listdir(tmp_path) == ["scores.csv"] and path.read_bytes() == b"old"


@posix_only
def test_permissions_follow_the_umask(tmp_path, umask):
    path = tmp_path / "scores.csv"
    write_file(path, b"first")
    assert mode(path) == 0o666 & ~umask
    write_file(path, b"second")
    assert mode(path) == 0o666 & ~umask
    with atomic_folder(tmp_path / "out") as folder:
        write_file(folder / "summary.txt", b"text")
    assert mode(tmp_path / "out") == 0o777 & ~umask
    assert mode(tmp_path / "out" / "summary.txt") == 0o666 & ~umask


@posix_only
def test_a_link_stays_and_the_file_it_points_to_is_replaced(tmp_path):
    (tmp_path / "disk").mkdir()
    link, target = tmp_path / "scores.csv", tmp_path / "disk" / "scores.csv"
    link.symlink_to(target)
    for content in (b"first", b"second"):  # the link dangles before the first write
        check_writable(link)
        write_file(link, content)
        assert link.is_symlink() and target.read_bytes() == content
    assert sorted(os.listdir(tmp_path)) == ["disk", "scores.csv"] and os.listdir(tmp_path / "disk") == ["scores.csv"]


@posix_only
def test_a_device_is_written_and_not_replaced():
    check_writable(Path(os.devnull))
    write_file(Path(os.devnull), b"content")
    assert not Path(os.devnull).is_file()


# ---- folders


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_leaves_no_folder(tmp_path, error):
    with pytest.raises(error), atomic_folder(tmp_path / "out") as folder:
        write_file(folder / "half", b"half")
        raise error
    assert os.listdir(tmp_path) == []


def test_an_error_about_a_file_inside_names_the_folder_that_was_asked_for(tmp_path):
    with pytest.raises(AttngeoError) as caught, atomic_folder(tmp_path / "out") as folder:
        save_json(folder / "missing" / "plan.json", "plan", {})
    assert str(caught.value).startswith(f"{tmp_path}/out/missing/plan.json: ") and ".part-" not in str(caught.value)
    assert os.listdir(tmp_path) == []


def test_only_an_empty_folder_is_replaced(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    with atomic_folder(out) as folder:
        write_file(folder / "summary.txt", b"text")
        assert os.listdir(out) == []
    assert os.listdir(out) == ["summary.txt"]
    with (
        pytest.raises(AttngeoError, match="out: exists already, expected a new or an empty folder"),
        atomic_folder(out),
    ):
        pytest.fail("the context began")
    (tmp_path / "file").write_bytes(b"content")
    with pytest.raises(AttngeoError, match="file: exists already, expected a new or an empty folder"):
        check_new_folder(tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"content" and sorted(os.listdir(tmp_path)) == ["file", "out"]


def test_a_relative_path_is_written_in_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for check in (check_writable, check_new_folder):
        check(Path("out"))
    with atomic_folder(Path("out")) as folder:
        write_file(folder / "summary.txt", b"text")
    write_file(Path("scores.csv"), b"content")
    assert sorted(os.listdir(tmp_path)) == ["out", "scores.csv"]


# ---- checks before the work


def test_paths_that_cannot_be_written_are_found_early(tmp_path):
    with pytest.raises(AttngeoError, match="is a folder, expected a file name"):
        check_writable(tmp_path)
    for check in (check_writable, check_new_folder):
        with pytest.raises(AttngeoError, match=r"x: the folder .*no does not exist"):
            check(tmp_path / "no" / "x")


def test_a_folder_without_permission_is_found_early(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, how: False)  # root, who may run the tests, has every permission
    for check in (check_writable, check_new_folder):
        with pytest.raises(AttngeoError, match=r"x: the folder .* cannot be written to"):
            check(tmp_path / "x")
