"""The least time of a step, at the published rates of a chip.

Matrix products take place at the peak of the matrix units, and communication follows
them without overlap. An all-reduce goes both ways around a ring of the chips of
its group: 2 (k - 1) / k times its bytes pass each of k chips over two links. Groups
that have a core on the same chip share these links. Within one chip an all-reduce
passes through the memory. Left out are everything that moves through the memory
otherwise, latency, input, and the host. `--compile` asks the compiler instead.
"""

from synthesizer_mtf.tools.plan_pod import counting
from synthesizer_mtf.tools.plan_pod import pods

_LINKS_OF_A_RING = 2  # One in each direction.


def estimate(counts: counting.Counts, chip: pods.Chip) -> dict[str, float]:
  """Returns the time of a step.

  Returns:
    a dict of seconds: "matmul", "communication", and "step", their sum.
  """
  seconds = {
      "matmul": 2 * counts.multiply_adds * chip.cores / (1e12 * chip.tflops),
      "communication": sum(communication_seconds(collective, size, chip)
                           for collective, size in counts.collectives.items())}
  return {**seconds, "step": sum(seconds.values())}


def communication_seconds(collective: counting.Collective, size: int,
                          chip: pods.Chip) -> float:
  """Returns the time of a collective.

  Args:
    collective: a `counting.Collective`.
    size: the bytes that each core puts in.
    chip: a `pods.Chip`.
  """
  chips = collective.chips
  if chips == 1:
    return 2 * size / (1e9 * chip.hbm_gbps / chip.cores)
  groups = chip.cores * chips / collective.cores
  link = 1e9 * chip.link_gbps / 8
  # How many times a byte passes a link, for each chip of the ring.
  hops = {"allreduce": 2 * (chips - 1) / chips, "alltoall": chips / 4,
          "receive": 1}[collective.kind]
  links = 1 if collective.kind == "receive" else _LINKS_OF_A_RING
  return groups * size * hops / (links * link)
