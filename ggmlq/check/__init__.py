"""The tool behind ``ggmlq check``: it runs the kernels of a libggml on seeded cases, and judges each result.

In reading order:

    cases.py       one product to try: a type, a shape, a kind of data, a seed
    data.py        activations and weights by kind, the same for the same seed
    batches.py     products in batches
    mixtures.py    products with experts, and how tokens are divided among them
    plan.py        the default run: which cases in which layout, with how many threads
    running.py     one product on a library, and the same weights for other activations
    run.py         all cases one after the other: multiply, repeat, judge, diagnose
    elements.py    one arithmetic against one result, with a bound for each element
    nearness.py    results that are nearer to float64 than a known arithmetic
    attention.py   arithmetics in which attention may have been computed
    nodes.py       a node that is no product, by its oracle
    sketch.py      a case of an operation: a small graph and the data of its leaves
    opcases.py     cases of operations element by element; CASES lists those of all operations
    opcases_looks.py    ways to look at memory: rows apart, permuted
    opcases_rows.py     cases of norms, sums and orders of rows
    opcases_moves.py    of copies and other moves
    opcases_models.py   of softmax, rope, recurrences
    opcases_attention.py    of attention
    opcases_images.py   of convolutions, pools, other sizes of images
    opcases_windows.py  of windows, relative positions, an indexer, streams
    opcases_gradients.py    of gradients
    opcases_large.py    large ones of many operations
    opcontrast.py  traits that only wrong cases of an operation have
    invariance.py  things beside a row that its bits depend on
    testfile.py    lines for llama.cpp's test-backend-ops
    ops.py         all cases of operations one after the other
    opreport.py    their lines, and a summary
    unjudged.py    the reason why a case has no verdict
    judge.py       the arithmetic that fits, and whether the result is right in it
    diagnosing.py  diagnoses of wrong results, a few of each type and layout
    outcome.py     the outcome of one case
    contrast.py    what wrong cases share and right ones do not
    report.py      lines, the summary, files for replay
    page.py        the same as a page
"""
