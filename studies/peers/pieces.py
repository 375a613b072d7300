"""A vocabulary of made-up pieces, for models with random weights.

`exported.py` uses it beside TensorFlow, and `onnx_speed.py` beside PyTorch.
"""

from sentencepiece import sentencepiece_model_pb2


def write(path: str, size: int) -> None:
  """Writes a SentencePiece model of `size` pieces: <pad>, </s>, <unk>, p3, p4, ..."""
  kinds = sentencepiece_model_pb2.ModelProto.SentencePiece
  spec = sentencepiece_model_pb2.ModelProto()
  spec.trainer_spec.pad_id, spec.trainer_spec.eos_id = 0, 1
  spec.trainer_spec.unk_id, spec.trainer_spec.bos_id = 2, -1
  special = [("<pad>", kinds.CONTROL), ("</s>", kinds.CONTROL),
             ("<unk>", kinds.UNKNOWN)]
  normal = [(f"p{i}", kinds.NORMAL) for i in range(len(special), size)]
  for piece, kind in special + normal:
    spec.pieces.add(piece=piece, score=0, type=kind)
  with open(path, "wb") as f:
    f.write(spec.SerializeToString())
