"""``gq.diff`` and ``ggmlq diff``: compares two GGUF models, tensor by tensor and key by key.

tensors.py    two tensors: the same bytes, the same values, or how far apart and where most
compare.py    two files: their metadata and their tensors, here or by workers
"""

from .compare import Difference, KeyDifference, compare
from .tensors import Place, TensorDifference, WorstBlock

__all__ = ["Difference", "KeyDifference", "Place", "TensorDifference", "WorstBlock", "compare"]
