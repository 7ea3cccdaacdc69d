"""The doctor: is a kernel right, and if not, which mistake is it?"""

from .catalogue import CATALOGUE, Fault
from .diagnosis import Diagnosis
from .examine import diagnose
from .telling_input import telling_input

__all__ = ["CATALOGUE", "Diagnosis", "Fault", "diagnose", "telling_input"]
