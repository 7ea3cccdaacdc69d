"""Encoders compiled for the CPU: one file a format, named like the format's file, found by name.

Each has ``encode(values, imatrix, blocks)``: float32 [rows, K], contiguous and finite; float32 [K]
or None; uint8 [rows, bytes a row] to fill. It runs on the calling thread without the global lock;
``ggmlq/ops/encoding.py`` deals out the rows. The bytes are those of the format's own ``pack``.
"""
