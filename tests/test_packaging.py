"""Declared is what is used: dependencies, versions, the content of the wheel, commands and links in the docs."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from email.parser import HeaderParser
from functools import cache
from importlib.metadata import packages_distributions
from io import StringIO
from pathlib import Path

import pytest

import attngeo

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
# Training libraries that attngeo has a callback for: of use only to those who have the library.
BROUGHT_BY_USERS = {"ipykernel", "lightning", "pytorch-lightning"}
FOR_USERS = set(EXTRAS) - {"all", "dev", "docs"}
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

# Imported packages that have no entry of their own, because another one always brings them.
COMES_WITH = {
    "IPython": "ipykernel",
    "click": "typer",
    "docutils": "sphinx",
    "packaging": "pytest",
    "traitlets": "anywidget",
    "triton": "torch",
}
# Development tools that are called and not imported, with a file that calls them and the call.
TOOLS = {
    "import-linter": ("Makefile", "lint-imports"),
    "jupyterlab": ("tests/test_notebooks.py", '"-m", "jupyterlab"'),
    "marimo": ("tests/test_notebooks.py", '"-m", "marimo"'),
    "mypy": ("Makefile", "mypy"),
    "pytest-xdist": ("Makefile", "pytest -n"),
    "ruff": ("Makefile", "ruff check"),
}


def distribution(requirement: str) -> str:
    """Return the normalised name of a requirement such as "ml_dtypes>=0.5"."""
    name = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert name, requirement
    return re.sub(r"[-_.]+", "-", name[0]).lower()


def declared(*extras: str) -> set[str]:
    """Return the distributions that these extras add to the core dependencies."""
    requirements = [requirement for extra in extras for requirement in EXTRAS[extra]] + PROJECT["dependencies"]
    return {distribution(requirement) for requirement in requirements}


def imported(*folders: str) -> dict[str, str]:
    """Return every distribution that the code of these folders imports, with one file that does."""
    owners = packages_distributions()
    ours = {"attngeo", "bench", "experiments", "tests", "tools", "_typeshed"}  # _typeshed: known to type checkers only
    uses: dict[str, str] = {}
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for module in modules_imported(ast.parse(path.read_text("utf-8"))):
                package = module.partition(".")[0]
                if package in sys.stdlib_module_names or package in ours:
                    continue
                package = COMES_WITH.get(package, package)
                for name in owners.get(package, [package])[:1]:
                    uses.setdefault(distribution(name), str(path.relative_to(ROOT)))
    return uses


def modules_imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("import_module", "importorskip", "find_spec") and isinstance(node.args[0].value, str):
                yield node.args[0].value


# ---- dependencies


def test_every_import_of_the_library_is_declared():
    known = declared(*FOR_USERS) | BROUGHT_BY_USERS
    assert not {name: path for name, path in imported("src").items() if name not in known}


def test_every_import_of_tests_and_tools_is_declared():
    known = declared(*FOR_USERS, "dev", "docs")
    uses = imported("tests", "bench", "tools", "experiments")
    assert not {name: path for name, path in uses.items() if name not in known}


def test_every_declared_dependency_is_used():
    assert declared(*FOR_USERS) <= set(imported("src"))
    uses = set(imported("tests", "bench", "tools"))
    for name in declared("dev") - declared() - uses:
        assert name in TOOLS, f"{name} is in the extra dev and nothing imports it"
        file, call = TOOLS[name]
        assert call in (ROOT / file).read_text("utf-8"), f"{name} is in the extra dev and {file} does not call it"


def test_the_extra_all_holds_the_extras_for_users():
    assert set(re.findall(r"\w+", EXTRAS["all"][0])) - {"attngeo"} == FOR_USERS


def test_what_make_installs_satisfies_what_is_declared():
    requirements = pytest.importorskip("packaging.requirements")
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    pins = {distribution(name): version for name, version in pins.items()}
    for text in [*PROJECT["dependencies"], *(r for extra, rs in EXTRAS.items() if extra != "all" for r in rs)]:
        requirement = requirements.Requirement(text)
        name = distribution(requirement.name)
        assert name in pins, f"constraints.txt has no version of {name}"
        assert requirement.specifier.contains(pins[name]), f"constraints.txt has {name} {pins[name]}, needed {text}"


# ---- the wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    wheels = pytest.importorskip("hatchling.builders.wheel")
    [path] = wheels.WheelBuilder(str(ROOT)).build(
        directory=str(tmp_path_factory.mktemp("wheel")), versions=["standard"]
    )
    return zipfile.ZipFile(path)


def test_the_wheel_holds_the_library_and_its_data_and_nothing_else(wheel):
    source = ROOT / "src" / "attngeo"
    inside = {name for name in wheel.namelist() if ".dist-info/" not in name}
    expected = {
        f"attngeo/{path.relative_to(source).as_posix()}"
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert inside == expected
    assert {Path(name).suffix for name in inside} <= {
        ".py", ".typed", ".json", ".jsonl", ".safetensors", ".toml", ".parquet", ".txt", ".csv", ".xz", ".md", ".js",
        ".css", ".html",
    }  # fmt: skip
    assert "attngeo/py.typed" in inside
    assert sum(info.file_size for info in wheel.infolist()) < 10_000_000


def test_the_wheel_says_what_it_is(wheel):
    [name] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    metadata = HeaderParser().parsestr(wheel.read(name).decode())
    assert metadata["Name"] == "attngeo" and metadata["Version"] == attngeo.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert set(metadata.get_all("Provides-Extra")) == set(EXTRAS)
    assert {line.split(", ")[0] for line in metadata.get_all("Project-URL")} == {
        "Homepage", "Documentation", "Issues", "Changelog",
    }  # fmt: skip
    [entry] = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
    assert "attngeo = attngeo.__main__:main" in wheel.read(entry).decode()


def test_the_wheel_works_on_its_own(wheel, tmp_path):
    wheel.extractall(tmp_path)
    script = (
        "import attngeo\n"
        "print(attngeo.__file__)\n"
        "print(attngeo.score(attngeo.bundled('encoder'), nulls=False).frame.height)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    where, rows = done.stdout.splitlines()
    assert Path(where).is_relative_to(tmp_path) and int(rows) > 0


def test_what_the_source_distribution_includes_exists():
    tables = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    for name in tables["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]:
        assert (ROOT / name).exists(), name


# ---- the documentation


def code(page: Path) -> str:
    """Return the code of a Markdown page: fenced and indented blocks and inline code, one piece per line."""
    text = page.read_text("utf-8")
    fenced = re.findall(r"^```.*?\n(.*?)^```", text, re.M | re.S)
    text = re.sub(r"^```.*?\n.*?^```", "", text, flags=re.M | re.S)
    indented = re.findall(r"^ {4}(.*)$", text, re.M)
    inline = re.findall(r"`([^`]+)`", text)
    joined = "\n".join([*fenced, *indented, *inline])
    return re.sub(r"\\\n\s*", " ", joined)  # continued lines


@cache
def experiment_options(command: str) -> set[str]:
    """Return the options of a command of the initialisation experiment, as its help lists them."""
    from experiments.initialisation.__main__ import main

    with redirect_stdout(StringIO()) as printed, pytest.raises(SystemExit):
        main([command, "--help"])
    return set(re.findall(r"--[a-z][a-z-]*", printed.getvalue()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_the_docs_exist(page):
    typer = pytest.importorskip("typer")
    from attngeo.cli import app

    if page.name == "CHANGELOG.md":
        return  # names commands that are gone
    text = code(page)
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M))
    assert set(re.findall(r"^\s*make ((?:[a-z]+-)*[a-z]+)\b", text, re.M)) <= targets
    group = typer.main.get_command(app)
    for command, rest in re.findall(r"^\s*(?:\$ )?attngeo ([a-z]+)\b(.*)$", text, re.M):
        found = group.get_command(None, command)
        assert found is not None, f"attngeo {command}"
        if hasattr(found, "commands") and rest.split():  # a group: the next word names the command
            subcommand = rest.split()[0]
            assert subcommand in found.commands, f"attngeo {command} {subcommand}"
            found = found.commands[subcommand]
        options = {option for parameter in found.params for option in (*parameter.opts, *parameter.secondary_opts)}
        asked = set(re.findall(r"(?<=\s)--[a-z][a-z-]*", rest.split(" | ")[0].split(" #")[0]))
        assert asked <= options | {"--help"}, f"attngeo {command}{rest}"
    for command, rest in re.findall(r"python3? -m experiments\.initialisation ([a-z]+)\b(.*)$", text, re.M):
        asked = set(re.findall(r"(?<=\s)--[a-z][a-z-]*", rest.split(" #")[0]))
        assert asked <= experiment_options(command), f"python -m experiments.initialisation {command}{rest}"
    for module in re.findall(r"python3? -m ((?:bench|tools|experiments)(?:\.\w+)*)", text):
        path = ROOT.joinpath(*module.split("."))
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), f"python -m {module}"
    for file in re.findall(r"python3? ((?:bench|tools)/\S+\.py)", text):
        assert (ROOT / file).is_file(), file


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_in_the_docs_lead_somewhere(page):
    text = re.sub(r"^```.*?\n.*?^```", "", page.read_text("utf-8"), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"[a-z]+:", target):
            path, _, anchor = target.partition("#")
            file = page.parent / path if path else page
            assert file.exists(), target
            if anchor and file.suffix == ".md":
                headings = re.findall(r"^#+ (.*)$", file.read_text("utf-8"), re.M)
                assert anchor in {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}, target


def test_the_commit_that_results_state_is_that_of_the_checkout():
    found = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    if found.returncode:
        pytest.skip("needs a git checkout")
    assert attngeo.version.commit() == found.stdout.strip()


def test_the_version_is_the_same_everywhere():
    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    assert re.search(r"^version: (\S+)$", citation, re.M)[1] == attngeo.__version__
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert attngeo.__version__ in changelog
