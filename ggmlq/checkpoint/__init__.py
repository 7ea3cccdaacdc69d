"""Conversion of Hugging Face checkpoints to GGUF (``ggmlq convert``), like llama.cpp's converter, and back.

to_gguf           togguf.py        a folder of safetensors to a GGUF file
mixed.py          the types that a mix gives to its tensors
to_safetensors    back.py          a GGUF file to a folder of safetensors; backtokens.py its tokenizer
packed            packed.py        its tensors under the same names, blocks as they are
families.py       names of tensors on both sides, for each family of models; config.py reads config.json
equivalents.py    names of one tensor on both sides, for errors about a name that a file lacks
layout.py         every tensor of the new file, and from which rows it comes; values.py makes the rows
sizes.py         numbers of config.json held against the tensors, before they take memory
parameters.py     keys that say how the model computes; general.py who made it, card.py the model card
vocabulary.py     the tokenizer: tokens.py, special.py, sentencepiece.py; pretokenizer.py and encode.py find
                  the name of the rule that cuts words, by the hashes in pretokenizers.json
"""

from .back import packed, to_safetensors
from .togguf import to_gguf

__all__ = ["packed", "to_gguf", "to_safetensors"]
