"""Kernels that choices take, each read from its parameters to its stores.

hopper/     the warp-specialised kernel of Hopper: a producer warp fetches, two warpgroups multiply
"""
