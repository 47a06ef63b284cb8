"""Colour vision: the distance of two colours with a missing kind of cones, and contrast."""

from __future__ import annotations

NORMAL = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
# Viénot, Brettel and Mollon 1999, on linear RGB.
EYES = {
    "all colours": NORMAL,
    "no long cones": ((0.11238, 0.88762, 0.0), (0.11238, 0.88762, 0.0), (0.00401, -0.00401, 1.0)),
    "no middle cones": ((0.29275, 0.70725, 0.0), (0.29275, 0.70725, 0.0), (-0.02234, 0.02234, 1.0)),
}


def linear(colour: str) -> tuple[float, ...]:
    parts = [int(colour[index : index + 2], 16) / 255 for index in (1, 3, 5)]
    return tuple(part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)


def contrast(first: str, other: str) -> float:
    weights = (0.2126, 0.7152, 0.0722)
    light = sorted(sum(w * part for w, part in zip(weights, linear(colour), strict=True)) for colour in (first, other))
    return (light[1] + 0.05) / (light[0] + 0.05)


def lab(colour: str, eye: str) -> tuple[float, ...]:
    seen = [max(0.0, sum(weight * part for weight, part in zip(row, linear(colour), strict=True))) for row in EYES[eye]]
    xyz = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    white = (0.9505, 1.0, 1.089)
    x, y, z = (sum(w * part for w, part in zip(row, seen, strict=True)) / top for row, top in zip(xyz, white, strict=True))
    x, y, z = (part ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116 for part in (x, y, z))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)
