"""``ggmlq report``: examines all tensors of a GGUF model, and shows the facts and findings on a page.

examine.py    the walk over all tensors
facts.py      what is known of a tensor, of parts, of the whole, and what of it somebody should know
values.py     how values are spread, dead and outlying rows and columns; errors, measured or estimated
blocks.py     damaged blocks, scales, codes
page.py       the facts as a page, with charts and grids
survey/       gq.survey: values of many models, and the error of each type on them
"""

from ..gguf.check import Finding
from .examine import Report, examine
from .facts import Part, Tensor

__all__ = ["Finding", "Part", "Report", "Tensor", "examine"]
