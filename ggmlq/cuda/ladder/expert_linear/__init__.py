"""The CUDA ladder of ``expert_linear``.

    r0 to r3     each expert by a product of ``linear`` or ``scaled_linear`` (ggmlq/dispatch/experts.py)
    r4           a few tokens: one kernel, whose blocks find their expert
    r5           many tokens: sorted by expert on the device, then one product of all experts
    r6           the same for codes with scales
    r7           a few tokens of codes: one kernel again
    r8           one token: r4 with activations as integers of 16 bits
    r9           many tokens where there is no wgmma

r0 to r3 sort tokens on the device but read on the host where the groups begin: that waits for the device, and
cannot be recorded in a CUDA graph. The others read ids on the device alone.
"""
