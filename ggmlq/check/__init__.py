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
    judge.py       the arithmetic that fits, and whether the result is right in it
    diagnosing.py  diagnoses of wrong results, a few of each type and layout
    outcome.py     the outcome of one case
    contrast.py    what wrong cases share and right ones do not
    report.py      lines, the summary, files for replay
    page.py        the same as a page
"""
