"""The encoder of q6_K, compiled."""

from ...formats.q6_k import FORMAT, PROGRAM
from ._tiles import encoder

encode = encoder(PROGRAM, FORMAT.block_size)
