"""The text that each task makes of a row of its data set."""

import pytest
import seqio
from support import prepared
import tensorflow as tf

LENGTHS = {"inputs": 5, "targets": 16}
EOS = 1


def test_every_task_that_reads_tfds_has_a_case():
  tasks = {name for name in seqio.TaskRegistry.names()
           if name.startswith("synth_") and isinstance(
               seqio.TaskRegistry.get(name).source, seqio.TfdsDataSource)}
  elsewhere = {"synth_c4_span_corruption", "synth_lm1b", "synth_web_questions"}
  ours = {name for name in tasks
          if not name.endswith("_encoder") and "_lra_" not in name}
  assert ours == set(prepared.BY_TASK) | elsewhere


@pytest.mark.slow
@pytest.mark.parametrize("cases", [prepared.GLUE, prepared.SUPER_GLUE, prepared.OTHERS],
                         ids=["glue", "super_glue", "others"])
def test_rows_become_the_texts_of_t5_and_are_cut_where_too_long(cases, tasks_to_read):
  for case in cases:
    assert_text(case)


def assert_text(case):
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
  assert cut == 1  # Only the inputs are too long.


def test_questions_without_a_book_have_a_prefix_and_any_answer_is_right():
  task = seqio.TaskRegistry.get("synth_web_questions")
  row = {"question": "who?", "answers": ["Ada", "Bob"], "url": "x"}
  example, = task.preprocessors[0](
      tf.data.Dataset.from_tensors(row)).as_numpy_iterator()
  assert (example["inputs"], example["targets"]) == (b"web question: who?", b"Ada")
  targets = task.postprocess_fn("Ada", example=example, is_target=True)
  assert task.metric_fns[0]([targets, targets], ["bob", "Eve"])["em"] == 50
  assert set(task.splits) == {"train", "validation", "test"}
