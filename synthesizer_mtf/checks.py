"""Checks of parameters, with messages that name the parameter in gin."""


def is_whole(value, least=1):
  """Whether `value` is a whole number of at least `least`; True is none."""
  return (isinstance(value, int) and not isinstance(value, bool) and
          value >= least)


def check_boolean(name, value, or_none=False):
  """Raises a ValueError unless `value` is True or False, or None if allowed."""
  if isinstance(value, bool) or (or_none and value is None):
    return
  choices = "None, True or False" if or_none else "True or False"
  raise ValueError(
      f"`{name}` is {value!r} but must be {choices}; change it.")


def check_not_negative(name, value):
  """Raises a ValueError unless `value` is a number of at least 0."""
  number = isinstance(value, (int, float)) and not isinstance(value, bool)
  if not number or not value >= 0:
    raise ValueError(
        f"`{name}` is {value!r} but must be a number of at least 0; change "
        f"`{name}`.")


def check_relative_bias(layer, kind, num_buckets):
  """Raises a ValueError for parameters that T5's relative bias cannot have."""
  if kind not in (None, "bias", "bias_shared"):
    raise ValueError(
        f"`{layer}.relative_attention_type` is {kind!r} but must be None, "
        "\"bias\" or \"bias_shared\"; change it.")
  # With fewer a direction of an encoder has none for its nearest keys.
  if not isinstance(num_buckets, int) or num_buckets < 4:
    raise ValueError(
        f"`{layer}.relative_attention_num_buckets` is {num_buckets!r} but must "
        "be a whole number of at least 4; change it.")
