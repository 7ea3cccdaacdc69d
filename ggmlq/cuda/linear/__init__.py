"""The CUDA ladder of ``linear``: one rung a file, ``r<level>_<name>.py``."""
