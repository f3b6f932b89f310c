"""Small whole numbers in bytes: five ternary digits a byte, or bit planes."""

from __future__ import annotations

import torch

TERNARY = 3
DIGITS = 5  # 3^5 = 243


def packed_width(columns: int, levels: int) -> int:
    """Bytes of a row."""
    if levels == TERNARY:
        return -(-columns // DIGITS)
    return (levels - 1).bit_length() * -(-columns // 8)


def pack(codes: torch.Tensor, levels: int) -> torch.Tensor:
    """Numbers (n, N) of 0 ... levels - 1 as uint8 (n, packed_width); rows are padded to whole bytes."""
    if levels == TERNARY:
        return _weighted(codes, tuple(3**i for i in range(DIGITS)))
    powers = tuple(1 << i for i in range(8))
    return torch.cat([_weighted((codes.int() >> bit) & 1, powers) for bit in range((levels - 1).bit_length())], 1)


def _weighted(codes: torch.Tensor, powers: tuple[int, ...]) -> torch.Tensor:
    """Sums (n, N / len(powers)) uint8 of digits times powers; padded with zeros."""
    padded = torch.nn.functional.pad(codes.to(torch.uint8), (0, -codes.shape[1] % len(powers)))
    digits = padded.view(len(codes), -1, len(powers))
    return (digits * torch.tensor(powers, dtype=torch.uint8, device=codes.device)).sum(2, dtype=torch.uint8)


def unpack(packed: torch.Tensor, columns: int, levels: int) -> torch.Tensor:
    """What `pack` packed, uint8 (n, columns)."""
    if levels == TERNARY:
        powers = torch.tensor([3**i for i in range(DIGITS)], dtype=torch.uint8, device=packed.device)
        return ((packed[:, :, None] // powers) % 3).flatten(1)[:, :columns]
    shifts = torch.arange(8, dtype=torch.uint8, device=packed.device)
    bits = (levels - 1).bit_length()
    planes = ((packed.view(len(packed), bits, -1, 1) >> shifts) & 1).flatten(2)[:, :, :columns]
    weights = torch.tensor([1 << i for i in range(bits)], dtype=torch.uint8, device=packed.device)
    return (planes * weights[:, None]).sum(1, dtype=torch.uint8)
