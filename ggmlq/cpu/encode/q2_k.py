"""The encoder of q2_K, compiled."""

from ...formats.q2_k import FORMAT, PROGRAM
from ._tiles import encoder

encode = encoder(PROGRAM, FORMAT.block_size)
