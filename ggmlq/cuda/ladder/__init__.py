"""The ladders on GPUs: one rung a file, ``r<level>_<name>.py``, to be read from the lowest up.

linear/          ``x @ q.T`` with weights in blocks
scaled_linear/   products of codes with scales
expert_linear/   products with the weights of the experts that tokens use
chapters/        each technique of the summit alone, which nothing else imports

Rungs that teach are complete in their files. The others choose a tile and launch what kernels/ has.
"""
