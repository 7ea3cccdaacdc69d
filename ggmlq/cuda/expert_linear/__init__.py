"""The CUDA ladder of ``expert_linear``.

    r0 to r3     each expert by a product of ``linear`` or ``scaled_linear`` (dispatch/experts.py)
    r4           a few tokens: one kernel, whose blocks find their expert
    r5           many: tokens sorted by expert on the device, then one product of all experts
    r6           the same for codes with scales
    r7           a few tokens of codes: one kernel again

In the first ones tokens are sorted on the device, but where the groups begin is read on the host: that
waits for the device, and cannot be recorded in a CUDA graph. The others read ids on the device alone.
"""
