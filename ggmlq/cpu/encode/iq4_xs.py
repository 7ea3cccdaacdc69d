"""The encoder of iq4_xs, compiled."""

from ...formats.iq4_xs import FORMAT, PROGRAM
from ._tiles import encoder

encode = encoder(PROGRAM, FORMAT.block_size)
