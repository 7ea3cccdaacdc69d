"""The encoder of iq4_nl, compiled."""

from ...formats.iq4_nl import FORMAT, PROGRAM
from ._blocks import encoder

encode = encoder(PROGRAM, FORMAT.block_size)
