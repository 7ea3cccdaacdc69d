"""The encoder of q5_K, compiled."""

from ...formats.q5_k import FORMAT, PROGRAM
from ._tiles import encoder

encode = encoder(PROGRAM, FORMAT.block_size)
