"""Objects that only look like those that the package replaces."""

from unittest import mock


def check_stay(replace, stock, method, make):
  """Checks that what looks like an object of a class stays as it is.

  Args:
    replace: a function that returns a fast object, or the object itself.
    stock: the class, of which `replace` knows exactly the objects.
    method: the name of a method, which a user may replace.
    make: makes an object of a class.
  """
  def own(*args):
    raise AssertionError(args)

  namesake = type(stock.__name__, (stock,), {"__module__": stock.__module__})
  for cls in (type("Own", (stock,), {}), namesake):
    operation = make(cls)
    assert replace(operation) is operation
  operation = make(stock)
  assert type(replace(operation)) is not stock
  setattr(operation, method, own)
  assert getattr(replace(operation), method) is own
  with mock.patch.object(stock, method, own):
    operation = make(stock)
    assert replace(operation) is operation
