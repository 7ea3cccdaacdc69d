"""The encoder of iq4_nl, compiled."""

from ...formats.iq4_nl import FORMAT, PROGRAM
from ._tiles import encoder

encode = encoder(PROGRAM, FORMAT.block_size)
