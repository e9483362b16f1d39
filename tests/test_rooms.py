"""The shape of the package: packages that say what they offer, and imports that stay light."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import attngeo

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "attngeo"
MODULES = sorted([*SOURCE.rglob("*.py"), *(ROOT / "experiments").rglob("*.py")])
FOLDERS = sorted({path.parent for path in MODULES})
# The command line, the data and the helpers of all rooms are not part of the library's interface.
ROOMS = sorted({path.parent.name for path in SOURCE.glob("*/__init__.py")} - {"charts", "cli", "data", "io"})


def name_of(path: Path) -> str:
    """Return a folder or module of the package as Python names it: src/attngeo/io/files.py -> attngeo.io.files."""
    base = SOURCE.parent if path.is_relative_to(SOURCE) else ROOT
    return ".".join(path.relative_to(base).with_suffix("").parts)


def run(script: str) -> str:
    """Run a script in a fresh interpreter and return what it prints."""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


# ---- what packages offer


def test_every_module_has_a_docstring():
    assert not [name_of(path) for path in MODULES if not ast.get_docstring(ast.parse(path.read_text("utf-8")))]


@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_every_package_has_what_it_lists(folder):
    package = import_module(name_of(folder))
    assert package.__doc__
    offered = getattr(package, "__all__", [])
    assert len(set(offered)) == len(offered)
    modules = {path.stem for path in folder.glob("*.py")} | {path.parent.name for path in folder.glob("*/__init__.py")}
    missing = [name for name in offered if name not in modules and not hasattr(package, name)]
    assert not missing


# ---- what imports load


def test_importing_attngeo_loads_neither_numpy_nor_torch():
    assert run("import sys, attngeo; print([m for m in ('numpy', 'polars', 'torch') if m in sys.modules])") == "[]\n"


def test_every_room_and_every_public_name_is_an_attribute_of_attngeo():
    for room in ROOMS:
        assert getattr(attngeo, room).__name__ == f"attngeo.{room}" and room in dir(attngeo), room
    for name in attngeo.__all__:
        assert getattr(attngeo, name) is not None and name in dir(attngeo), name


def test_scoring_safetensors_loads_no_torch():
    script = (
        "import sys, attngeo\n"
        "attngeo.score(attngeo.bundled('encoder'), nulls=False)\n"
        "print([m for m in ('torch', 'transformers', 'matplotlib', 'typer') if m in sys.modules])\n"
    )
    assert run(script) == "[]\n"


WITHOUT = ("matplotlib", "numba", "polars", "rich", "typer")
# Modules that nothing in scoring or training needs: they print or draw.
FOR_PEOPLE = ("attngeo.cli", "attngeo.show", "attngeo.__main__")


@pytest.mark.parametrize("rooms", ["attngeo.weights", pytest.param("attngeo", marks=pytest.mark.slow)])
def test_scoring_and_training_import_without_what_they_do_not_need(rooms):
    pytest.importorskip("torch")
    names = [name_of(path).removesuffix(".__init__") for path in MODULES if path.is_relative_to(SOURCE)]
    names = [name for name in names if name.startswith(rooms) and not name.startswith(FOR_PEOPLE)]
    compiled = [name for name in names if name.endswith("_kernels")]
    script = (
        "import sys\n"
        f"for name in {WITHOUT}: sys.modules[name] = None\n"
        "from importlib import import_module\n"
        f"for name in {sorted(set(names) - set(compiled))}: import_module(name)\n"
        "import numpy as np, attngeo\n"
        "from attngeo.weights.scoring.form import Form\n"
        "Form(np.eye(4), np.eye(4)).symmetry()\n"
        "print('all imported')\n"
    )
    assert run(script) == "all imported\n"


def test_names_and_calls_that_need_torch_say_so_without_it() -> None:
    code = """if True:
        import sys
        sys.modules["torch"] = None
        from pathlib import Path
        import attngeo
        from attngeo.applications.prune.curve import prune_folder
        for name in attngeo.__all__:
            try:
                getattr(attngeo, name)
            except attngeo.AttngeoError as error:
                assert str(error) == f"attngeo.{name} needs torch and transformers: pip install 'attngeo[torch]'"
                print(name)
        for call, arguments in (
            (attngeo.capture, ("model", "a text")),
            (attngeo.prune_plan, ("model", "a text")),
            (attngeo.load_pruned, ("model",)),
            (prune_folder, ("model", "a text", Path("new"))),
        ):
            try:
                call(*arguments)
            except attngeo.AttngeoError as error:
                assert str(error) == "running a model needs torch and transformers: pip install 'attngeo[torch]'"
                print(call.__name__)
    """
    names = {"Monitor", "gradient_terms", "pretrain", "symmetric_init_", "watch"}
    assert names | {"capture", "prune_plan", "load_pruned", "prune_folder"} <= set(run(code).split())
