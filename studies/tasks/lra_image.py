"""The pictures of Long Range Arena (arXiv:2011.04006, section 2.2.4): CIFAR-10, grey.

As in the paper's code, the first 90% of the training split are for training, and the
rest is for validation.
"""

from studies.tasks import pixels
from synthesizer_mtf.tasks import tfds_source
import tensorflow.compat.v2 as tf

_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse",
            "ship", "truck")


def _read(dataset):
  height, width = dataset.element_spec["image"].shape[:2]
  pixels.check_size("a picture of CIFAR-10", height, width)
  return dataset.map(
      lambda row: {"inputs": pixels.ids(row["image"]),
                   "targets": tf.gather(_CLASSES, row["label"])},
      num_parallel_calls=tf.data.AUTOTUNE)


pixels.add(
    "synth_lra_image",
    tfds_source.PreparedDataSource("cifar10:3.0.2", splits={
        "train": "train[:90%]", "validation": "train[90%:]", "test": "test"}),
    _read, _CLASSES)
