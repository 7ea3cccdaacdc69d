"""The parser of ``ggmlq`` and of its commands: commands in groups, and similar names in errors."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from ..base.text import meant, printable
from ._options import Commands

GROUPS = ("files", "models", "kernels", "setup")  # of commands, as the list of all shows them


class Parser(argparse.ArgumentParser):
    """A parser that suggests similar names; names in messages are escaped, as a shell's ``*`` passes any."""

    commands: Commands | None = None

    def __init__(self, *args: Any, group: str = "", **words: Any) -> None:
        super().__init__(*args, **words)
        self.group = group  # of commands, under which the list of all shows it

    def format_help(self) -> str:
        """The help, with the commands in their groups."""
        if self.commands is None:
            return super().format_help()
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        lines = {action.dest: action for action in self.commands._choices_actions}
        for group, names in self.groups().items():
            formatter.start_section(group)
            formatter.add_arguments([lines[name] for name in names])
            formatter.end_section()
        formatter.start_section("options")
        formatter.add_arguments([action for action in self._actions if action is not self.commands])
        formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help()

    def groups(self) -> dict[str, list[str]]:
        """The names of commands by group."""
        groups: dict[str, list[str]] = {group: [] for group in GROUPS}
        for name, parser in self.commands.choices.items() if self.commands is not None else ():
            groups[getattr(parser, "group", "")].append(name)
        return groups

    def error(self, message: str) -> NoReturn:
        """Print the error, not all options of a command beside it, and exit with status 2."""
        if self.commands is not None:
            super().error(printable(message))
        self.exit(2, f"{self.prog}: error: {printable(message)}\n{self.prog} --help lists the options\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices or not isinstance(value, str):
            return super()._check_value(action, value)
        choices = [str(choice) for choice in action.choices]
        way = meant(value, choices, f"choose from {', '.join(choices)}")
        if action is self.commands:
            raise argparse.ArgumentError(None, f"there is no command {value!r}; {way}")
        raise argparse.ArgumentError(action, f"invalid choice: {value!r}; {way}")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """The options; an error for unknown words suggests similar ones."""
        options, rest = self.parse_known_args(args, namespace)
        if rest:
            parser = self.commands.choices[options.command] if self.commands is not None else self
            near = {word: meant(word.partition("=")[0], parser._option_string_actions, "") for word in rest}
            words = [f"{word}; {way}" if word[0:1] == "-" and way else word for word, way in near.items()]
            parser.error(f"unrecognized arguments: {' '.join(words)}")
        return options
