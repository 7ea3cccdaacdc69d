"""The encoder of q3_K, compiled."""

from ...formats.q3_k import FORMAT, PROGRAM
from ._tiles import encoder

encode = encoder(PROGRAM, FORMAT.block_size)
