"""Units of measurement: their dimension, and their size beside the first of it."""

import re
from dataclasses import dataclass
from fractions import Fraction

from vime.grading.expression import Unread


@dataclass(frozen=True, kw_only=True, slots=True)
class Unit:
    """Powers of dimensions, and a factor; `Unit(dimensions=(("length", 2),), factor=Fraction(1, 10000))` is 1 cm²."""

    dimensions: tuple[tuple[str, int], ...]
    factor: Fraction = Fraction(1)

    def to(self, exponent: int) -> "Unit":
        """A power of the unit."""
        if not 0 < abs(exponent) < 10:
            raise Unread("a power of a unit")
        return Unit(dimensions=tuple((name, power * exponent) for name, power in self.dimensions), factor=self.factor**exponent)

    def by(self, other: "Unit") -> "Unit":
        """The unit per another one."""
        powers = dict(self.dimensions)
        for name, power in other.dimensions:
            powers[name] = powers.get(name, 0) - power
        left = tuple(sorted((name, power) for name, power in powers.items() if power))
        return Unit(dimensions=left, factor=self.factor / other.factor)


def _table(dimension: str, **sizes: str) -> dict[str, Unit]:
    """Units of a dimension by name. Each keyword is names joined by underscores; its value is their size."""
    found = {}
    for names, size in sizes.items():
        for name in names.split("_"):
            found[name] = Unit(dimensions=((dimension, 1),), factor=Fraction(size))
    return found


_UNITS = {
    **_table("length", m_meter_meters_metre_metres="1", cm_centimeter_centimeters="1/100", mm_millimeter_millimeters="1/1000"),
    **_table("length", km_kilometer_kilometers="1000", ft_foot_feet="0.3048", inch_inches="0.0254", mi_mile_miles="1609.344"),
    **_table("length", yd_yard_yards="0.9144"),
    **_table("unit", unit_units="1"),
    **_table("time", s_sec_secs_second_seconds="1", min_mins_minute_minutes="60", h_hr_hrs_hour_hours="3600", day_days="86400"),
    **_table("time", ms_millisecond_milliseconds="1/1000", week_weeks="604800"),
    **_table("calendar", month_months="1", year_years="12"),
    **_table(
        "mass", kg_kilogram_kilograms="1", g_gram_grams="1/1000", mg_milligram_milligrams="1e-6", lb_lbs_pound_pounds="0.45359237"
    ),
    **_table("volume", L_l_liter_liters_litre_litres="1", ml_mL_milliliter_milliliters="1/1000"),
    **_table("dollar", dollar_dollars_USD="1", cent_cents="1/100"),
    **_table("angle", degree_degrees="1"),
    **_table("temperature", K_kelvin="1"),
}
MONEY = {
    **{sign: _UNITS["dollar"] for sign in ("\\$", "$")},
    **{sign: Unit(dimensions=((sign, 1),)) for sign in ("€", "£", "¥")},
    "pounds": Unit(dimensions=(("£", 1),)),
}
ANGLE = _UNITS["degree"]
_COMPOUND = {"mph": ("miles", "hour"), "kph": ("km", "h"), "kmh": ("km", "h")}
_NO_NOUNS_WORDS = (
    "times less minus plus is was percents halves thirds quarters fourths this unless tens hundreds thousands "
    "millions billions dozens tenths hundredths pis pairs solutions"
)
_NO_NOUNS = frozenset(_NO_NOUNS_WORDS.split())
_PEOPLE = {"people", "children", "men", "women", "mice", "geese"}
_POWERS = {"square": 2, "sq": 2, "squared": 2, "cubic": 3, "cubed": 3}


def is_unit(name: str, *, is_word: bool) -> bool:
    """True if a text behind a number is a unit. Letters of a formula must be a known unit and at least two."""
    if not is_word and len(name) < 2:
        return False
    try:
        unit_of(name)
    except Unread:
        return False
    return is_word or name in _UNITS or _is_noun(name)


def _is_noun(name: str) -> bool:
    """True if a word is a noun in the plural, which counts what it names."""
    return name in _PEOPLE or (name.isalpha() and name.islower() and len(name) > 3 and name[-1] == "s" and name not in _NO_NOUNS)


def unit_of(name: str) -> Unit:
    """The unit of a name, like `cm`, `square meters`, `km/h`, `m/s^2` or `students`. Raises Unread for any other text."""
    if name == "°":
        return ANGLE
    above, *below = re.split(r"/|\bper\b", name.strip().rstrip("."))
    if len(below) > 1:
        raise Unread(name)
    unit = _power(above)
    return unit.by(_power(below[0])) if below else unit


def _power(text: str) -> Unit:
    match = re.fullmatch(r"(?:(square|sq|cubic)\.?\s+)?([A-Za-z]+)(?:\s+(squared|cubed)|\s*\^\s*\{?(\d)\}?)?", text.strip())
    if not match:
        raise Unread(text)
    before, name, after, exponent = match.groups()
    power = _POWERS[before or after] if before or after else int(exponent or 1)
    if name in _COMPOUND:
        above, below = _COMPOUND[name]
        return _UNITS[above].by(_UNITS[below])
    if name not in _UNITS and not _is_noun(name):
        raise Unread(text)
    return _UNITS.get(name, Unit(dimensions=((name, 1),))).to(power)
