"""Kernels for the weights of experts: what the router and few tokens need; hopper/ has those of many tokens.

router.py   the scores of experts, the choice of some, weighted sums: a launch each
gemv.py     few tokens by packed weights, each warp for itself
gated.py    one token times two matrices of its experts, and the gate between them
"""
