"""Ids of types that forks of llama.cpp have given out, for the error about an id that ggml does not have.

A file does not say whose types it has. The ids of ik_llama.cpp stand in its gguf-py; 43 and up, the next that
ggml will give out, have been taken by many, each for types of its own.
"""

from __future__ import annotations

IK = "ik_llama.cpp"
TURBO = "forks with TurboQuant"
CLAIMED = {
    43: f"BPOSIT8 (invar), TQ3_0, TURBO2_0 or TURBO4 ({TURBO}), IQ1_XS (unsloth), T5B, NF4DQ, EOQ",
    44: f"TURBO3_0 or TQ3_1S ({TURBO}), IQ1_XXS (unsloth)",
    45: f"TQ3_1S or TQ4_1S ({TURBO})",
    46: f"TQ4_1S or Q1_0 ({TURBO})",
    47: f"TURBO4_0 ({TURBO})",
    48: f"Q8_CR ({TURBO})",
    49: f"Q5_CR ({TURBO})",
}
OF_IK = {
    97: "Q8_0_X4", 98: "Q8_1_X4", 99: "Q8_2_X4", 133: "Q6_0", 134: "IQ1_BN", 135: "IQ2_BN", 136: "Q8_K64",
    137: "IQ2_K", 138: "IQ3_K", 139: "IQ4_K", 140: "IQ5_K", 141: "IQ6_K", 144: "IQ4_KS", 145: "IQ2_KS",
    146: "IQ4_KSS", 147: "Q8_K16", 148: "Q8_K32", 149: "Q8_KR8", 150: "Q8_K128", 151: "Q8_KV", 152: "IQ5_KS",
    153: "IQ2_KT", 154: "IQ3_KT", 155: "IQ4_KT", 156: "IQ3_KS", 157: "IQ2_KL", 158: "IQ1_KT", 202: "Q4_0_R8",
    206: "Q5_0_R4", 208: "Q8_0_R8", 210: "Q2_K_R4", 211: "Q3_K_R4", 212: "Q4_K_R4", 213: "Q5_K_R4",
    214: "Q6_K_R4", 216: "IQ2_XXS_R4", 217: "IQ2_XS_R4", 218: "IQ3_XXS_R4", 219: "IQ1_S_R4", 220: "IQ4_NL_R4",
    221: "IQ3_S_R4", 222: "IQ2_S_R4", 223: "IQ4_XS_R8", 229: "IQ1_M_R4", 230: "BF16_R16", 233: "Q6_0_R4",
    335: "IQ2_BN_R4", 337: "IQ2_K_R4", 338: "IQ3_K_R4", 339: "IQ4_K_R4", 340: "IQ5_K_R4", 344: "IQ4_KS_R4",
    352: "IQ5_KS_R4", 398: "Q8_KV_R8", 399: "Q8_K_R8",
}  # fmt: skip


def claimants(number: int) -> str:
    """The end of an error: forks that use an id, and the way out."""
    way = "read the file with that program, or fetch one in a type of llama.cpp's own"
    if number in CLAIMED:
        return f"forks of llama.cpp use {number} for {CLAIMED[number]}; {way}"
    if number in OF_IK:
        return f"{IK}, a fork of llama.cpp, uses {number} for its {OF_IK[number]}; {way}"
    if min(CLAIMED) <= number <= max(OF_IK):
        return (
            f"forks of llama.cpp use numbers from {min(CLAIMED)} on for types of their own, {IK} those from "
            f"{min(OF_IK)} to {max(OF_IK)}; the name of the file or its page says which; {way}"
        )
    return "no program is known to use it; the file is damaged"
