"""``gq.survey``: facts about the values of all tensors of models, and the error of each type on them.

run.py      gq.survey: files opened, tasks made, results put together
walk.py     all values of a part of a tensor, and the energy of its rows
trial.py    rows that stand for a tensor, encoded in each type
facts.py    what came of it
"""

from .facts import Survey, Surveyed, Values
from .run import survey

__all__ = ["Survey", "Surveyed", "Values", "survey"]
