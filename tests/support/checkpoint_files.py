"""Makes and damages tiny checkpoints, for several test files."""

import hashlib

import tensorflow.compat.v1 as tf

SHAPES = {"encoder/q": [7, 11], "encoder/q_slot_v": [7, 11],
          "encoder/R": [2, 5, 3], "encoder/R_slot_vr": [2, 5]}


def save(model_dir, *steps, shapes=None):
  """Writes checkpoints as the trainer does, by default of two steps."""
  with tf.Graph().as_default():
    for name, shape in (shapes or SHAPES).items():
      with tf.device("cpu:0"):
        tf.get_variable(name, shape)
    tf.train.create_global_step()  # Without a device, so in another data file.
    saver = tf.train.Saver(
        sharded=True, save_relative_paths=True, max_to_keep=None)
    with tf.Session() as session:
      session.run(tf.global_variables_initializer())
      for step in steps or (4, 8):
        saver.save(session, str(model_dir / "model.ckpt"), global_step=step)


def name_in_state(model_dir, *steps):
  """Makes `checkpoint` list some steps, and name the first to resume from."""
  names = [f"model.ckpt-{step}" for step in steps]
  (model_dir / "checkpoint").write_text(
      f'model_checkpoint_path: "{names[0]}"\n' + "".join(
          f'all_model_checkpoint_paths: "{name}"\n' for name in names))


def largest_data_file(model_dir, step):
  return max(model_dir.glob(f"model.ckpt-{step}.data-*"),
             key=lambda path: path.stat().st_size)


def truncate(path):
  path.write_bytes(path.read_bytes()[:path.stat().st_size // 2])


def flip(path):
  data = bytearray(path.read_bytes())
  data[len(data) // 2] ^= 255
  path.write_bytes(bytes(data))


def contents(model_dir):
  """Returns a hash of each file of the checkpoints."""
  return {path.name: hashlib.md5(path.read_bytes()).hexdigest()
          for path in model_dir.glob("model.ckpt-*") if path.is_file()}
