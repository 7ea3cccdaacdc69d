"""What kernels that fill the card share.

    ring.py      stages of shared memory that are filled ahead
    schedule/split_k.py     columns divided among blocks, and parts added up in a fixed order
    epilogue/bias.py      what is added to each row of results
    warp_specialized/product.py   which problems they take, which tile serves how many rows, and the launch

``cuda:mma_bf16`` and ``cuda:wgmma`` are such kernels. Those of 8-bit codes on Hopper, filled by boxes:

    boxed.py       the ring: boxes, barriers, the threads that fill it, the order of tiles
    codes8/job.py         what a kernel is made for; schedule/waves.py: which tile serves a shape
    codes8/consumers.py       warps that multiply; codes8/persistent.py: blocks with roles that stay on the card
    codes8/small_m.py    weights as the wide operand, K divided among a cluster; codes8/small_m_consumers.py: warps that
                   multiply; codes8/small_m_sums.py: the exchange of sums; codes8/small_m_uses.py: rows that a list names,
                   for ``cuda:small_m_codes`` of experts
    codes8/split_k.py     K of a tile divided among a cluster; cost/codes8.py: how long each of these takes
    codes8/operands.py   maps and scales of both operands
    codes8/epilogue.py     how results are written: with a bias, as floats or as codes

And those of strips on Hopper, which ``cuda:warp_specialized`` is made of:

    schedule/work_units.py         which steps of which tile a block makes
    schedule/raster.py          where tiles stand, so that those of one time read little
    warp_specialized/late_activations.py         activations that the product orders itself
    warp_specialized/producer.py          the ring: strips and panels, the thread that fills it; which tile serves a shape
    warp_specialized/consumers.py      warps that unpack and multiply
    warp_specialized/stream_k.py   sums of tiles that several blocks share: kept, awaited, added up
    warp_specialized/cluster_split.py  the same where all blocks of a tile are a cluster, from block to block
    cost/stage.py     how long a stage takes, by the columns of its tile and what records hold
    cost/packed.py     how long kernels of strips take, this one and the others

And those of experts, which ``cuda:grouped`` is made of besides:

    schedule/groups.py      uses of experts sorted on the device: which column of which tile a use has
    schedule/block_plan.py    the same of few uses, which every block does for itself
    schedule/grouped.py     where the tiles of all experts stand

With schedule/groups.py, and what multiplies 8-bit codes, ``cuda:grouped_codes``:

    codes8/grouped.py           roles and rings over the tiles of all experts
    codes8/expert_operands.py   rows of x in the order of the plan, scales of w by expert
"""
