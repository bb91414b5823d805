r"""Bits of a party per round, by an accounting that reproduces both of the paper's savings (Sec. 5.3).

.. math::
    \underbrace{N D + K D^2}_{\text{parameters down}} + \underbrace{K q D}_{\text{neighbourhoods}}
    + \underbrace{\gamma (N D + K D^2)}_{\text{gradients up}}, \qquad \gamma = 1 \text{ without quantization}

A neighbourhood counts once, however many parties receive it. Sec. 5.3 counts it once per recipient, and
parameters K times; with that neither saving comes out.
"""

from __future__ import annotations

D = 6
K = 2
BITS = 32
QUANTIZED_BITS = 5.2
"""Bits of a quantized coordinate in that accounting, solved from the paper's 50.6 %."""


def formula(ratio: float | None, quantized: bool, users: int = 6040, dim: int = D, layers: int = K) -> float:
    """Return the bits per round by the accounting above; without a ratio, X itself is sent."""
    public = users * dim + layers * dim * dim
    gradients = public * (QUANTIZED_BITS / BITS if quantized else 1.0)
    rows = users if ratio is None else users / ratio
    return BITS * (public + layers * rows * dim + gradients)
