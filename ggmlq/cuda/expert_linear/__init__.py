"""The CUDA ladder of ``expert_linear``: products of ``linear`` and ``scaled_linear``.

Each rung is :func:`ggmlq.experts.each` in another arithmetic. Tokens are sorted on the device, but where the
groups begin is read on the host: that waits for the device, and cannot be recorded in a CUDA graph.
"""
