"""The directive `options`: the arguments and options of a command, from its definition."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective


class Options(SphinxDirective):
    """`{options} score`, or `{options} atlas add` for a command of a group."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        command = find(self.arguments[0].split())
        self.env.note_reread()  # options change without a change of the page
        usage = f"attngeo {self.arguments[0]} {' '.join(usage_of(command))}"
        rows = [row_of(parameter) for parameter in command.params if not getattr(parameter, "hidden", False)]
        return [
            nodes.literal_block(usage, usage, language="text"),
            table([row for row in rows if row[0]], ("argument or option", "meaning")),
        ]


def find(words: list[str]) -> Any:
    """Return the command that these words call."""
    import typer

    from attngeo.cli import app

    command: Any = typer.main.get_command(app)
    for word in words:
        command = command.get_command(None, word)
    return command


def usage_of(command: Any) -> list[str]:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    words = ["[OPTIONS]"]
    for argument in arguments:
        name = argument.metavar or argument.human_readable_name.upper()
        name += "..." if argument.nargs == -1 else ""
        words.append(name if argument.required else f"[{name}]")
    return words


def row_of(parameter: Any) -> tuple[str, str]:
    if parameter.param_type_name == "argument":
        return parameter.metavar or parameter.human_readable_name.upper(), parameter.help or ""
    names = ", ".join([*parameter.opts, *parameter.secondary_opts])
    if not (parameter.is_flag or parameter.count):
        names += f" {metavar(parameter)}"
    text = parameter.help or ""
    if parameter.show_default and (default := default_of(parameter)):
        text += f" Default: {default}."
    if parameter.required:
        text += " Required."
    return names, text


def default_of(parameter: Any) -> str:
    """Return the default of an option, the name of a switch that has two; empty where there is none."""
    if parameter.default is None or parameter.default in ((), []):
        return ""
    if parameter.secondary_opts:
        return str((parameter.opts if parameter.default else parameter.secondary_opts)[0])
    return "" if parameter.is_flag else str(parameter.default)


def metavar(parameter: Any) -> str:
    if parameter.metavar:
        return str(parameter.metavar)
    choices = getattr(parameter.type, "choices", None)
    if choices:
        return "|".join(str(getattr(choice, "value", choice)) for choice in choices)
    return str(parameter.type.name).upper()


def table(rows: list[tuple[str, str]], head: tuple[str, str]) -> nodes.table:
    """Return a table whose first column is code."""
    group = nodes.tgroup(cols=2)
    group += [nodes.colspec(colwidth=30), nodes.colspec(colwidth=70)]
    header, body = nodes.thead(), nodes.tbody()
    header += line([nodes.Text(head[0])], [nodes.Text(head[1])])
    for names, meaning in rows:
        body += line([nodes.literal(names, names)], [nodes.Text(meaning)])
    group += [header, body]
    out = nodes.table(classes=["options"])
    out += group
    return out


def line(*cells: list[nodes.Node]) -> nodes.row:
    row = nodes.row()
    for cell in cells:
        entry = nodes.entry()
        entry += nodes.paragraph("", "", *cell)
        row += entry
    return row
