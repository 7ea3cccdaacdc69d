"""What ``cuda:gemv`` is made of."""
