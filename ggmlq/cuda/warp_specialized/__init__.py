"""The warp-specialised product on packed weights: a producer warp, consumer warpgroups."""
