"""``ggmlq completion``: what a shell reads to complete commands, options, files and names of tensors."""

from __future__ import annotations

import argparse

from ..completion import SHELLS, script

ABOUT = """\
Print the script that makes a shell complete ggmlq's commands, options and files, types, and the names of
tensors in a file. It needs the package argcomplete: pip install argcomplete
"""
EXAMPLES = """\
add to ~/.bashrc or ~/.zshrc:
  eval "$(ggmlq completion bash)"
  eval "$(ggmlq completion zsh)"
for fish, once:
  ggmlq completion fish > ~/.config/fish/completions/ggmlq.fish
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "completion",
        help="make a shell complete commands, files and names of tensors",
        description=ABOUT,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=SHELLS, help="which shell")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    print(script(args.shell))
    return 0
