"""The tool behind ``ggmlq check``: it runs the kernels of a libggml on seeded cases, and judges each result.

In reading order:

    cases.py       one product to try: a type, a shape, a kind of data, a seed
    batches.py     products in batches, and with experts
    strided.py     products whose operands are permuted, or lie apart, or have activations of 16 bits
    plan.py        one product on a library; the default run: which cases, in which layout, how many threads
    run.py         all cases one after the other: multiply, repeat, judge, diagnose
    judge.py       the arithmetic that fits, and whether the result is right in it, element by element
    beyond.py      results that no arithmetic explains and that are right: nearer, or sums in halves
    outcome.py     the outcome of one case
    report.py      lines, the summary, what wrong cases share, files for replay
    nodes.py       a node that is no product, by its oracle; lines for llama.cpp's test-backend-ops
    sketch.py      a case of an operation: a small graph and the data of its leaves; CASES lists all
    opcases.py     cases of operations element by element and on rows, gradients, large ones
    opcases_moves.py    of copies and other moves
    opcases_models.py   of softmax, rope, recurrences, attention
    opcases_images.py   of convolutions, pools, other sizes and windows of images
    opcases_special.py  of special values, by stated rules, and of operands that few models have
    order.py       the order of cases for a budget: by what each catches that none before it does
    testfile.py    cases of a file of test-backend-ops
    ops.py         all cases of operations one after the other
    opreport.py    their lines, a summary, and traits that only wrong cases have
    ci.py          for a CI: known faults, JUnit's XML, annotations of GitHub
    anybody.py     gq.check: a Python function that decodes, multiplies or encodes, judged on seeded blocks
    results.py     its results, on the host
    cover.py       blocks with every code and hostile scales
    encoders.py    the judgement on blocks that somebody made
    plugin.py      the same as a fixture of pytest
    vectors.py     files for kernels in any language: blocks, values, bounds, mutants
    invariance.py  things beside a row that its bits depend on
"""
