"""En-De pairs from babel's CLDR tables: names of countries, languages, dates.

A model learns single names by heart. It translates a held-out name correctly mostly if
the name consists of parts: languages of countries, amounts and dates.
"""

import datetime
import itertools

import babel
from babel import dates
from babel import units
from synthesizer_mtf.tasks import english

ENGLISH, GERMAN = babel.Locale("en"), babel.Locale("de")

_TABLES = ("territories", "languages", "scripts", "currencies", "variants")
_AMOUNTS = (1, 2, 3, 5, 10, 12, 20, 50, 100)
_DATES = range(0, 20000, 13)

Pair = tuple[str, str]  # English, German.


def pairs() -> list[Pair]:
  """Returns all pairs (English, German), sorted, each English name once.

  Names that are equal in both languages are left out, so that copying scores 0.
  """
  german: dict[str, str] = {}
  for source, target in itertools.chain(
      _table_names(), _locale_names(), _amounts(), _dates()):
    german.setdefault(_clean(source), _clean(target))
  return sorted(pair for pair in german.items() if pair[0] != pair[1])


def split() -> tuple[list[Pair], list[Pair]]:
  """Returns (train, validation), split by the pairs' English side."""
  train, validation = [], []
  for pair in pairs():
    (validation if english.is_held_out(pair[0], 10) else train).append(pair)
  return train, validation


def _tables(locale):
  """Yields the tables of names, and those of the calendar."""
  for table in _TABLES:
    yield getattr(locale, table)
  for table in ("months", "days", "quarters"):
    yield getattr(locale, table)["format"]["wide"]


def _table_names():
  zones = sorted(set(ENGLISH.meta_zones) & set(GERMAN.meta_zones))
  for tables in [*zip(_tables(ENGLISH), _tables(GERMAN)), *(
      [locale.meta_zones[zone].get("long", {}) for locale in (ENGLISH, GERMAN)]
      for zone in zones)]:
    for code in sorted(set.intersection(*map(set, tables))):
      yield tuple(table[code] for table in tables)


def _locale_names():
  """Languages of countries, such as "German (Austria)"."""
  for name in sorted(babel.localedata.locale_identifiers()):
    locale = babel.Locale.parse(name)
    source = locale.get_display_name(ENGLISH)
    target = locale.get_display_name(GERMAN)
    if source and target:
      yield source, target


def _amounts():
  """Amounts of units, such as "3 kilometers per hour"."""
  for unit in sorted(ENGLISH.unit_display_names):
    for amount in _AMOUNTS:
      try:
        source = units.format_unit(amount, unit, locale=ENGLISH)
        target = units.format_unit(amount, unit, locale=GERMAN)
      except units.UnknownUnitError:
        break
      if unit not in source + target:  # babel's fallback without a pattern.
        yield source, target


def _dates():
  """Dates, such as "Monday, January 5, 2015"."""
  for day in _DATES:
    date = datetime.date(1970, 1, 1) + datetime.timedelta(days=day)
    yield (dates.format_date(date, "full", locale=ENGLISH),
           dates.format_date(date, "full", locale=GERMAN))


def _clean(name):
  """Normalizes CLDR's narrow and no-break spaces, and its soft hyphens."""
  return " ".join(name.replace("\u00ad", "").split())
