"""The doctor for nodes that are no products: which mistake gives the result that a kernel gave.

examine.py    diagnose_node: from a result to a diagnosis
imitation.py  a mistake as the same operation on other operands, or with other parameters
imitate_models.py    those of attention, rope, recurrences, windows, streams
imitate.py    those of other operations, and the table of all
memory.py     mistakes of strides: operands read as if they lay otherwise
places.py     rows and columns that were never computed
catalogue.py  the mistakes by name
"""

from ..catalogue import NODES
from .examine import diagnose_node

__all__ = ["NODES", "diagnose_node"]
