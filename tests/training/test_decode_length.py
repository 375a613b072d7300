"""One binding limits the length of all kinds of decoding."""

import functools

import gin
import mesh_tensorflow as mtf
import numpy as np
import pytest
from support import models
from synthesizer_mtf.trainer.data import decode_length
from synthesizer_mtf.trainer.model import pipeline
import tensorflow.compat.v1 as tf
from tensorflow_estimator.python.estimator.tpu import tpu_estimator

TOKENS = "synthesizer_decode_length.tokens = {}"
INPUTS = [[5, 9, 3, 7, 11, 2, 1], [8, 4, 1, 0, 0, 0, 0]]
GREEDY = ["sample_autoregressive.never_end = True"]


def predict(*bindings, model_type="bitransformer", given=None, room=0):
  """A model, and the function that decodes with it."""
  models.parse_gin(["models/bi_v1.gin"], [*models.TINY, "num_layers = 1", *bindings])
  m = models.Model(model_type)
  return m, decode_length.predict_fn(m.model, given, False, room)


def decode(*bindings, inputs=INPUTS, scale=0.5, **kwargs):
  """The ids that a random model decodes with these bindings."""
  m, function = predict(*bindings, **kwargs)
  with m.tf_graph.as_default():
    decoded = decoding(m, function, inputs)
    (values,), _ = m.run(decoded, scale=scale)
  return values[0]


def decoding(m, function, inputs=INPUTS):
  return function(model=m.model, features={"inputs": m.ids(inputs)},
                  variable_dtype=mtf.VariableDType(tf.float32))


@pytest.mark.slow
def test_greedy_decoding_ends_after_so_many_tokens():
  longer = decode(*GREEDY, TOKENS.format(11))  # Also longer than the inputs.
  assert longer.shape == (2, 11) and (longer[:, 7:] > 0).any()
  shorter = decode(*GREEDY, TOKENS.format(4))
  np.testing.assert_array_equal(shorter, longer[:, :4])


def test_beam_search_ends_after_so_many_tokens(monkeypatch):
  m, function = predict("Bitransformer.decode.beam_size = 3", TOKENS.format(29))
  asked = []

  def beam_search(ids, decode_length, **others):
    del others
    asked.extend([ids, decode_length])
    return ids

  monkeypatch.setattr(m.model.decoder, "beam_search", beam_search)
  with m.tf_graph.as_default():
    decoding(m, function)
    ids, length = asked
    (values,), _ = m.run(length)
  assert ids.shape.to_integer_list == [2, 3, 29]
  assert values == [29]  # Neither 1.5 * 7 + 10, nor 7.


def telling(model, lengths, model_fn=lambda *args: None):
  """A model function that logs the limit of decodes."""
  return pipeline.around(model_fn, [functools.partial(
      decode_length.logged_limit, model=model, sequence_length=lengths)])


def test_the_tables_of_the_decoder_limit_decodes(monkeypatch):
  said = []
  monkeypatch.setattr(decode_length.logging, "info", said.append)
  bindings = ["decoder/synthesizer_stack.attention = 'R'",
              "decoder/RandomLogits.max_length = 5"]
  m, function = predict(*bindings)
  with m.tf_graph.as_default():
    decoded = decoding(m, function)
    tell = telling(m.model, {"inputs": 7})
    tell({}, None, tf.estimator.ModeKeys.PREDICT)
    with gin.unlock_config():
      gin.bind_parameter("Bitransformer.decode.beam_size", 1000)
    with pytest.raises(ValueError, match="beam_size` is 1000, but the vocabulary has"):
      tell({}, None, tf.estimator.ModeKeys.PREDICT)
  assert decoded.shape.to_integer_list == [2, 5]
  assert said == ["Decodes have at most 5 tokens, by `RandomLogits.max_length` in the "
                  "decoder, which is less than 7, the length of the inputs."]


@pytest.mark.slow
def test_a_language_model_continues_by_so_many_tokens():
  inputs = [[5, 9, 0, 0], [8, 4, 7, 3]]
  continued = decode(*GREEDY, TOKENS.format(3), model_type="lm", inputs=inputs)
  assert ((continued > 0).sum(-1) <= 3).all()
  assert (decode(*GREEDY, TOKENS.format(5), model_type="lm", inputs=inputs)[:, :3]
          == continued[:, :3]).all()


def test_given_texts_are_scored_by_what_gin_binds():
  m, _ = predict(TOKENS.format(3))
  assert decode_length.predict_fn(m.model, "given", scores=True) == "given"


BEAMS = "Bitransformer.decode.beam_size = 2"


def rows(*lengths):
  """Ids of these lengths, whose tokens begin alike."""
  ids = np.random.RandomState(3).randint(2, models.VOCABULARY, 40)
  return [np.where(np.arange(40) < length, ids, 0) for length in lengths]


@pytest.mark.slow
def test_what_a_text_becomes_in_beam_search_does_not_depend_on_its_batch():
  bindings = [BEAMS, "synthesizer_stack.attention = 'R'",
              "RandomLogits.max_length = 40"]
  alone, *_ = decode(*bindings, inputs=rows(1))
  first, *_ = decode(*bindings, inputs=rows(1, 40, 3))
  np.testing.assert_array_equal(first, alone)
  assert alone.all()  # Mesh TensorFlow's limit is 1.5 * 1 + 10 for the text alone.


def test_only_mesh_tensorflows_beam_search_and_unknown_functions_need_their_batch():
  ours, own = "synthesizer_stack.attention = 'V'", BEAMS
  for bindings, given, is_needed in (
      ([], None, False), ([ours], None, False), ([own], None, True),
      ([own, ours], None, False), ([own, ours], len, True), ([], len, True),
      ([own, TOKENS.format(9)], None, False),
      ([own, ours, "synthesizer_decoding.fast = False"], None, True),
      ([own, ours, "synthesizer_fast.enabled = False"], None, True)):
    gin.clear_config()
    m, _ = predict(*bindings)
    assert decode_length.depends_on_batch(m.model, given, 7) == is_needed, bindings
  models.parse_gin(["models/bi_v1.gin"], [*models.TINY, own, ours])
  split = models.Model(mesh_shape="all:1,model:2", layout="length:model").model
  assert decode_length.depends_on_batch(split, None, 8)


def test_outputs_without_an_end_of_sequence_are_counted(log):
  outputs = np.array([[5, 1, 0], [5, 6, 7], [5, 6, 1], [7, 7, 7]])
  m, function = predict(given=lambda model, features, variable_dtype: m.ids(outputs))

  def model_fn(features, *others):
    function(model=m.model, features=features, variable_dtype=None)
    m.run()
    return tpu_estimator.TPUEstimatorSpec(
        "infer", predictions={"outputs": tf.constant(outputs)})

  tell = telling(m.model, {"inputs": 3}, model_fn)
  with m.tf_graph.as_default(), tf.Session() as session:
    predictions = session.run(tell({}, None, "infer").predictions)
    exported = tell({"predict_batch_size": 1}, None, "infer").predictions
  assert exported.keys() == {"outputs"}
  assert predictions["outputs_at_the_limit"].tolist() == [False, True, False, True]
  for number, said in ((4, "2 of 4 outputs ended at the limit"), (3, "1 of 3 outputs")):
    log.clear()
    examples = [dict(zip(predictions, row)) for row in zip(*predictions.values())]
    for padding in examples[number:]:
      del padding["outputs_at_the_limit"]
    counted = [*decode_length.counted(examples)]
    assert [[*example] for example in counted] == [["outputs"]] * 4
    assert said in log.text
  log.clear()
  assert len([*decode_length.counted([{"scores": 1}])]) == 1 and not log.text


@pytest.mark.parametrize("tokens, given, message", [
    (0, None, "`synthesizer_decode_length.tokens` is 0 but must be a positive integer"),
    (9, len, "`utils.run.predict_fn` is bound, .*tokens` is 9; leave out one")])
def test_a_limit_that_cannot_hold_is_an_error(tokens, given, message):
  with pytest.raises(ValueError, match=message):
    predict(TOKENS.format(tokens), given=given)


def test_the_log_says_how_long_decodes_can_be(log):
  decode_of = "Bitransformer.decode."
  most = decode_of + "max_decode_length = 6"
  for bindings, model_type, sentence in [
      ([], "bitransformer", "at most 7 tokens, by the length of the inputs; `synth"),
      ([most], "bitransformer",
       "at most 6 tokens, by `Bitransformer.decode.max_decode_length`; `synth"),
      ([decode_of + "beam_size = 3", decode_of + "decode_length_constant = 4"],
       "bitransformer", "at most 7 tokens, by the length of the inputs, and 1.5 times "
       "the longest input of a batch, plus 4; `synth"),
      ([decode_of + "beam_size = 3", "synthesizer_stack.attention = 'V'"],
       "bitransformer", "at most 7 tokens, by the length of the inputs. Beam search "
       "looks 1.5 times the length of the text, plus 10, ahead, and further"),
      ([TOKENS.format(5), most], "bitransformer",
       "at most 5 tokens, by `synthesizer_decode_length.tokens`. "
       "`Bitransformer.decode.max_decode_length`, which is 6, has no effect."),
      ([], "lm", "Inputs and decodes have at most 16 tokens together")]:
    gin.clear_config()
    log.clear()
    m, _ = predict(*bindings, model_type=model_type)
    function = telling(m.model, {"inputs": 7, "targets": 9}, lambda *args: args)
    assert function({}, 2, "train", 4, 5) == ({}, 2, "train", 4, 5)
    assert "at most" not in log.text
    function({}, 2, "infer", 4, 5)
    assert sentence in log.text
