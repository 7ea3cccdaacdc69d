"""Tokenizers from a file's metadata: text to tokens and back, as llama.cpp does it.

tokenizer.py   Tokenizer: encode, decode, pieces, the tokens that begin and end a text
vocabulary.py  the tokens with their kinds and scores; those that end a text, special ones within it
pairs.py       byte pairs: words cut by a rule of that name, their bytes joined by rank
unigram.py     SentencePiece: neighbours joined by score; unigram: the path of the best score, normalization
chat.py        chat templates, by Jinja2 where it is installed
sandbox.py     its sandbox, where all that a template does is counted, with the work that each call takes
work.py        the limit of that work
"""

from .tokenizer import Tokenizer

__all__ = ["Tokenizer"]
