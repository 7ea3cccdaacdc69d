"""Models surveyed: what the values of each tensor are like, and what each type would cost it.

run.py      gq.survey: files opened, tasks made, results put together
walk.py     all values of a part of a tensor, and the energy of its rows
trial.py    rows that stand for a tensor, encoded in each type
facts.py    what came of it
"""

from .facts import Survey, Surveyed, Values
from .run import survey

__all__ = ["Survey", "Surveyed", "Values", "survey"]
