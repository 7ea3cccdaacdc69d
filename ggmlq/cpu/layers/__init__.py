"""What a model does between products, on the CPU: one file a kernel, and the driver of all of them.

    call.py          from arrays to tables of arguments; tables
    norm.py          rows by the root of their mean square, of a sum of rows too
    gate.py          act(gate) · up; a share of other rows
    rope_append.py   RoPE of queries and keys, which go into the cache with values
    latent.py        queries and keys of attention over short vectors
    rows.py          rows of the embedding
    sums.py          sums of rows, a bias for all of them, the cap of logits
    route.py         the experts of each token, and their weights
    convolution.py   short convolutions, from a state on
    delta.py         the gated delta rule of a head, from its state to gated results
    states.py        from arrays to tables of arguments of these two
    mix.py           results of experts added up by their weights

Rows are float32, and so are all steps, but for sums of squares, which are float64. A row has the same bits
whatever rows are beside it, and with any number of threads.
"""
