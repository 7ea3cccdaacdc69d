"""The encoder of q4_K, compiled."""

from ...formats.q4_k import FORMAT, PROGRAM
from ._tiles import encoder

encode = encoder(PROGRAM, FORMAT.block_size)
