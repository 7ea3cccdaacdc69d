"""The README as a package index shows it; everything else stands in setup.cfg.

Links into this tree lead nowhere there: they become their words, and pictures are left out.
"""

import re
from pathlib import Path

from setuptools import setup

text = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
text = re.sub(r"^.*(?:!\[[^\]]*\]\((?!https?:)|<img |<picture|</picture).*\n", "", text, flags=re.MULTILINE)
text = re.sub(r"\[([^\]]+)\]\((?!https?:)[^)]*\)", r"\1", text)

setup(long_description=text, long_description_content_type="text/markdown")
