"""What kernels that fill the card share: stages filled ahead, parts that are added up in a fixed order."""
