"""Arrays of weights: QuantArray (blocks), ScaledArray (codes with scales), and their common parts."""
