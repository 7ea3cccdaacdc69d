"""What kernels that fill the card share.

    ring.py      stages of shared memory that are filled ahead
    parts.py     columns divided among blocks, and parts added up in a fixed order
    bias.py      what is added to each row of results
    product.py   which problems they take, which tile serves how many rows, and the launch

``cuda:mma_bf16`` and ``cuda:wgmma`` are such kernels. Those of 8-bit codes on Hopper, filled by boxes:

    boxed.py       the ring: boxes, barriers, the threads that fill it, the order of tiles
    job.py         what a kernel is made for; waves.py: which tile serves a shape
    work8.py       warps that multiply; persistent.py: blocks with roles that stay on the card
    few_rows.py    weights as the wide operand, K divided among a cluster; few_work.py: warps that
                   multiply; few_sums.py: the exchange of sums; few_uses.py: rows that a list names,
                   for ``cuda:few_codes`` of experts
    divided.py     K of a tile divided among a cluster; pace.py: how long each of these takes
    operands8.py   maps and scales of both operands
    endings.py     how results are written: with a bias, as floats or as codes

And those of strips on Hopper, which ``cuda:roles`` is made of:

    pieces.py         which steps of which tile a block makes
    bands.py          where tiles stand, so that those of one time read little
    making.py         activations that the product orders itself
    roles.py          the ring: strips and panels, the thread that fills it; which tile serves a shape
    role_work.py      warps that unpack and multiply
    shared_tiles.py   sums of tiles that several blocks share: kept, awaited, added up
    cluster_tiles.py  the same where all blocks of a tile are a cluster, from block to block
    stage_pace.py     how long a stage takes, by the columns of its tile and what records hold
    strip_pace.py     how long kernels of strips take, this one and the others

And those of experts, which ``cuda:grouped`` is made of besides:

    groups.py      uses of experts sorted on the device: which column of which tile a use has
    own_plan.py    the same of few uses, which every block does for itself
    grouped.py     where the tiles of all experts stand

With groups.py, and what multiplies 8-bit codes, ``cuda:grouped_codes``:

    grouped8.py           roles and rings over the tiles of all experts
    expert_operands8.py   rows of x in the order of the plan, scales of w by expert
"""
