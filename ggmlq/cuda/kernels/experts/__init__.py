"""What experts need beside their products, which hopper/, mma/, gemv/ and codes8/ have.

router.py   the scores of experts, the choice of some, weighted sums: a launch each
"""
