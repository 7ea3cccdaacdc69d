"""Estimates of how long kernels take on a card, and the choice that follows from them."""
