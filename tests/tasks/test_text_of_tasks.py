"""The text that every task makes of a row of its data set."""

import pytest
import seqio
from support import prepared

LENGTHS = {"inputs": 5, "targets": 16}
EOS = 1


@pytest.fixture(params=prepared.CASES, ids=lambda case: case.task)
def case(request):
  return request.param


def test_every_task_that_reads_tfds_has_a_case():
  tasks = {name for name in seqio.TaskRegistry.names()
           if name.startswith("synth_") and isinstance(
               seqio.TaskRegistry.get(name).source, seqio.TfdsDataSource)}
  by_tokens = {"synth_c4_span_corruption", "synth_lm1b"}
  ours = {name for name in tasks if not name.endswith("_encoder")}
  assert ours == set(prepared.BY_TASK) | by_tokens


def test_a_row_becomes_the_text_of_t5_and_is_cut_where_too_long(
    case, tasks_to_read):
  task = seqio.TaskRegistry.get(case.task)
  assert set(task.splits) == set(case.splits)
  dataset = task.get_dataset(LENGTHS, case.splits[-1], shuffle=False)
  example, *others = dataset.as_numpy_iterator()
  assert others
  cut = 0
  for feature, text in (("inputs", case.inputs), ("targets", case.targets)):
    assert example[f"{feature}_pretokenized"].decode() == text
    ids = task.output_features[feature].vocabulary.encode(text)
    cut += len(ids) >= LENGTHS[feature]
    assert example[feature].tolist() == ids[:LENGTHS[feature] - 1] + [EOS]
  assert cut == 1  # The inputs are too long here, and the targets are not.
