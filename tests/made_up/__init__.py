"""Types that ggml does not have: what a newcomer's format gets without a line outside its own file."""

from . import x3_0, x5_k

FORMATS = {fmt.name: fmt for fmt in (x3_0.FORMAT, x5_k.FORMAT)}
