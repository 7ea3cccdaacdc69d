"""Operations of ggml without an oracle here, each with the reason."""

from __future__ import annotations

PRODUCTS = ("MUL_MAT", "MUL_MAT_ID")  # judged in their own arithmetic: ggmlq.reference.linear
_TRAINING = "computes gradients or a training step; no model that is run has it"
_VIEW = "computes nothing: another look at the memory of its source"
_CUSTOM = "a function of the program's own, whose meaning ggml does not know"

NOT_COVERED = {
    **dict.fromkeys(("NONE", "RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE"), _VIEW),
    **dict.fromkeys(
        (
            "IM2COL_BACK", "POOL_2D_BACK", "FLASH_ATTN_BACK", "CROSS_ENTROPY_LOSS", "CROSS_ENTROPY_LOSS_BACK",
            "OPT_STEP_ADAMW", "OPT_STEP_SGD",
        ),
        _TRAINING,
    ),
    **dict.fromkeys(("MAP_CUSTOM1", "MAP_CUSTOM2", "MAP_CUSTOM3", "CUSTOM"), _CUSTOM),
}  # fmt: skip
