"""``gq.survey``: facts about the values of all tensors of models, and the error of each type on them.

run.py      gq.survey: files opened, tasks made and done, results put together
facts.py    what came of it
"""

from ..values import Values
from .facts import Survey, Surveyed
from .run import survey

__all__ = ["Survey", "Surveyed", "Values", "survey"]
