"""Conversion of Hugging Face checkpoints to GGUF (``ggmlq convert``), like llama.cpp's converter, and back.

togguf.py         to_gguf: a folder of safetensors to a GGUF file, its types those of a mix if one is named
back.py           to_safetensors: a GGUF file to a folder of safetensors; packed: blocks as they are
backtokens.py     its tokenizer on the way back, backconfig.py its config.json
families.py       names of tensors on both sides, for each family of models
opened.py         names of families that modules of transformers are filled with, openedconfig.py their config
config.py         config.json, held against the tensors before it takes memory; keys on how a model computes
layout.py         every tensor of the new file, and from which rows it comes; values.py makes the rows
lora.py           a GGUF model with the matrices of an adapter added: of PEFT, or of llama.cpp
grids.py          GPTQ, AWQ and MLX checkpoints of 4 bits as blocks of the same grids
general.py        who made the model: keys, and the model card
vocabulary.py     the tokenizer's keys; sentencepiece.py reads and writes tokenizer.model
pretokenizer.py   the name of the rule that cuts words, by the hashes in pretokenizers.json
"""

from .back import packed, to_safetensors, write_tokenizer
from .backconfig import config_of
from .togguf import to_gguf

__all__ = ["config_of", "packed", "to_gguf", "to_safetensors", "write_tokenizer"]
