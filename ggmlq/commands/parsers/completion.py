"""``ggmlq completion``: the script with which a shell completes commands, options, files and tensors."""

from __future__ import annotations

from .._completion import SHELLS
from ._options import Commands, declare

SUMMARY = "make a shell complete commands, files and names of tensors"
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


def add(commands: Commands) -> None:
    """Declare ``ggmlq completion`` with its options and examples."""
    parser = declare(commands, "completion", "setup", SUMMARY, ABOUT, EXAMPLES)
    parser.add_argument("shell", choices=SHELLS, help="the shell")
