"""Measures exported steps in JAX beside T5 of Transformers, where there is a GPU.

  python jax_speed.py --steps=FOLDER --json=results.json

`jax_steps.py` makes the FOLDER. The script needs jax and numpy, and for T5 also PyTorch
and Transformers; it uses nothing of this package. It writes a row for each measurement
as it is made. Programs are compiled at the same time, and measured alone. Values of
variables are random, made from their shapes, except for the comparison of losses.
"""

import argparse
import collections
from concurrent import futures
import contextlib
import fcntl
import glob
import gzip
import itertools
import json
import lzma
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from typing import Any

import numpy as np

START = time.time()
# Trying kernels for each product takes minutes; cuBLAS chooses its own.
FLAGS = "--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false"
_DESERIALIZING = threading.Lock()  # It imports modules.


def main() -> None:
  """Parses flags and measures."""
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  add = parser.add_argument
  add("--steps", required=True, metavar="FOLDER")
  add("--json", required=True, metavar="FILE")
  add("--only", default="", help="names of programs; default all")
  add("--t5", default="float32,bfloat16", help="dtypes of T5; empty for none")
  add("--t5_lengths", default="512,2048")
  add("--t5_sizes", default="small")
  add("--seconds", type=float, default=1e9, help="measure nothing after these")
  add("--repeats", type=int, default=10)
  add("--rounds", type=int, default=2)
  add("--profile", default="", help="names of programs whose kernels are listed")
  add("--keep_hlo", metavar="FOLDER", help="where compiled programs of --profile go")
  add("--threads", type=int, default=8, help="that compile")
  add("--as_t5", help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.as_t5:
    return _T5(args).run()
  handle, os.environ["MEASURING"] = tempfile.mkstemp(suffix=".lock")
  os.close(handle)
  others = [subprocess.Popen([sys.executable, __file__, *sys.argv[1:], f"--as_t5={d}"])
            for d in args.t5.split(",") if d]
  try:
    _Jax(args).run()
  finally:
    for other in others:
      try:
        other.wait(max(args.seconds - (time.time() - START), 1))
      except subprocess.TimeoutExpired:
        other.kill()


@contextlib.contextmanager
def _alone():
  """Keeps other processes from measuring within a `with` block."""
  with open(os.environ["MEASURING"], "a", encoding="utf-8") as f:
    fcntl.flock(f, fcntl.LOCK_EX)
    yield


class Measurements:
  """The rows of one process."""

  def __init__(self, args: argparse.Namespace) -> None:
    self._args = args

  def _add(self, **row: Any) -> None:
    row["at"] = round(time.time() - START, 1)
    print(json.dumps(row), flush=True)
    with open(self._args.json, "a", encoding="utf-8") as f:
      f.write(json.dumps(row) + "\n")

  def _try(self, function: Any, *arguments: Any, **described: Any) -> Any:
    if time.time() - START > self._args.seconds:
      self._add(skipped="no time is left", **described)
      return None
    try:
      return function(*arguments)
    except Exception as error:
      traceback.print_exc()
      self._add(error=repr(error)[:300], **described)
      return None


class Program:
  """An exported program, compiled."""

  def __init__(self, path: str) -> None:
    import jax

    with open(path + ".json", encoding="utf-8") as f:
      self.about = json.load(f)
    with lzma.open(path + ".step") as packed, _DESERIALIZING:
      exported = jax.export.deserialize(bytearray(packed.read()))
    self.name, self.path = os.path.basename(path), path
    names = [name for name, *_ in self.about["state"]]
    self._changed = self.about["changed"]
    self._kept = [name for name in names if name not in self._changed]

    def call(values, changed, kept):
      arrays = dict(zip(self._changed + self._kept, [*changed, *kept]))
      return exported.call(*values, *(arrays[name] for name in names))

    self._call = call

    shapes = {name: jax.ShapeDtypeStruct(shape, dtype)
              for name, shape, dtype in self.about["state"]}
    begin = time.time()
    self._shapes = ([jax.ShapeDtypeStruct(*rest) for _, *rest in self.about["inputs"]],
                    [shapes[n] for n in self._changed], [shapes[n] for n in self._kept])
    self.compiled = jax.jit(call, donate_argnums=(1,)).lower(*self._shapes).compile()
    self.seconds = time.time() - begin

  def compile_loss(self) -> None:
    """Compiles `loss`, from which XLA takes gradients and the optimizer away."""
    import jax

    self._loss = jax.jit(lambda *given: self._call(*given)[0]).lower(
        *self._shapes).compile()

  def start(self, values: dict[str, np.ndarray] | None = None) -> None:
    """Makes the variables, at random without values."""
    import jax

    block = np.random.default_rng(0).standard_normal(2**20).astype(np.float32)

    def made(name, shape, dtype):
      if values:
        return values[name].astype(dtype)
      if "_slot_" in name:
        return np.zeros(shape, dtype)
      if name.endswith("scale"):
        return np.ones(shape, dtype)
      return (np.resize(block, shape) * .04).astype(dtype)

    self.arrays = {name: jax.device_put(made(name, shape, dtype))
                    for name, shape, dtype in self.about["state"]}
    self._inputs = self._random_inputs()

  def _random_inputs(self):
    random = np.random.default_rng(1)
    return [random.integers(2, self.about["sizes"]["vocabulary"], shape, np.int32)
            if shape else np.int32(0) for _, shape, _ in self.about["inputs"]]

  def run(self, step: int, inputs: list[Any] | None = None) -> Any:
    """Runs it once; returns its result, perhaps before it is computed."""
    result, *new = self.compiled(*self._given(step, inputs or self._inputs))
    self.arrays.update(zip(self._changed, new))
    return result

  def loss(self, inputs: list[Any]) -> Any:
    """Returns what `run` returns, and changes nothing."""
    return self._loss(*self._given(0, inputs))

  def _given(self, step, inputs):
    return ([v if np.ndim(v) else np.int32(step) for v in inputs],
            [self.arrays[n] for n in self._changed],
            [self.arrays[n] for n in self._kept])

  def end(self) -> None:
    """Frees the variables."""
    self.arrays = {}


class _Jax(Measurements):
  """The measurements in JAX."""

  def run(self) -> None:
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    os.environ.setdefault("XLA_FLAGS", FLAGS)
    import jax

    args = self._args
    self._add(part="machine", jax=jax.__version__, device=str(jax.devices()[0]),
              card=jax.devices()[0].device_kind, flags=os.environ.get("XLA_FLAGS", ""))
    names = sorted(os.path.splitext(os.path.basename(p))[0]
                   for p in glob.glob(os.path.join(args.steps, "*.step")))
    names = [n for n in names if not args.only or n in args.only.split(",")]
    programs = []
    pool = futures.ThreadPoolExecutor(args.threads)
    for made in futures.as_completed([
        pool.submit(self._try, Program, os.path.join(args.steps, name), name=name)
        for name in names]):
      program = made.result()
      if program:
        programs.append(program)
        self._first(program)
    for program in programs * (args.rounds - 1):
      self._try(self._time, program, name=program.name)

  def _first(self, program):
    self._try(self._about, program, name=program.name)
    if os.path.exists(program.path + ".npz"):
      self._try(self._losses, program, name=program.name)
    self._try(self._time, program, name=program.name)
    if program.name in self._args.profile.split(","):
      self._try(self._profile, program, name=program.name)

  def _about(self, program):
    memory, cost = (program.compiled.memory_analysis(),
                    program.compiled.cost_analysis() or {})
    self._add(part="compiled", name=program.name, seconds=program.seconds,
              gigaflops=round(cost.get("flops", 0) / 1e9, 1),
              accessed_gb=round(cost.get("bytes accessed", 0) / 1e9, 2),
              temporary_mib=memory.temp_size_in_bytes >> 20 if memory else None,
              arguments_mib=memory.argument_size_in_bytes >> 20 if memory else None)

  def _losses(self, program):
    saved = np.load(program.path + ".npz")
    program.start({name: saved[f"state/{name}"] for name, *_ in program.about["state"]})
    inputs = [saved[f"input/{i}"] for i in range(len(program.about["inputs"]))]
    losses = [float(program.run(i, inputs)) for i in range(len(saved["losses"]))]
    program.end()
    off = np.abs(np.array(losses) - saved["losses"])
    self._add(part="losses", name=program.name, steps=len(losses),
              greatest_difference=float(off.max()), first_ten=float(off[:10].max()),
              last=losses[-1], last_elsewhere=float(saved["losses"][-1]))

  def _time(self, program):
    import jax

    about, repeats = program.about, self._args.repeats
    program.start()
    for i in range(2):
      result = np.asarray(program.run(i))
    with _alone():
      times = []
      for _ in range(3):
        begin = time.perf_counter()
        for i in range(repeats):
          result = program.run(i)
        jax.block_until_ready((result, program.arrays))
        times.append((time.perf_counter() - begin) / repeats)
    program.end()
    sizes = about["sizes"]
    row = {
        "part": "time", "name": program.name, "row": about["row"],
        "dtype": about["dtype"], "measure": about["measure"],
        "inputs": sizes["inputs"], "d_model": sizes["d_model"],
        "batch": sizes["batch"], "seconds": statistics.median(times),
        "least": min(times), "finite": bool(np.isfinite(result).all())}
    if about["measure"] == "decode":
      row["tokens_per_second"] = result.size / row["seconds"]
    self._add(**row)

  def _profile(self, program):
    import jax

    program.start()
    np.asarray(program.run(0))
    with tempfile.TemporaryDirectory() as folder, _alone():
      with jax.profiler.trace(folder, create_perfetto_trace=True):
        for i in range(2):
          result = program.run(i)
        jax.block_until_ready((result, program.arrays))
      path, = glob.glob(f"{folder}/**/perfetto_trace.json.gz", recursive=True)
      with gzip.open(path) as f:
        events = json.load(f)["traceEvents"]
    program.end()
    threads = {(e["pid"], e.get("tid")): e["args"]["name"] for e in events
               if e.get("name") == "thread_name"}
    total = collections.Counter()
    for event in events:
      if event.get("ph") == "X" and "Stream" in threads.get(
          (event["pid"], event.get("tid")), ""):
        total[event["name"]] += event["dur"] / 2000
    self._add(part="profile", name=program.name, milliseconds=sum(total.values()),
              kernels=[(round(ms, 3), name) for name, ms in total.most_common(40)])
    if self._args.keep_hlo:
      with gzip.open(os.path.join(
          self._args.keep_hlo, program.name.replace("+", "_") + ".hlo.gz"), "wt") as f:
        f.write(program.compiled.as_text())


class _T5(Measurements):
  """The measurements of Transformers' T5 in one dtype."""

  def run(self) -> None:
    import torch
    import transformers

    self._torch, args = torch, self._args
    torch.backends.cuda.matmul.allow_tf32 = False
    self._device = "cuda" if torch.cuda.is_available() else "cpu"
    transformers.logging.set_verbosity_error()
    self._add(part="machine", torch=torch.__version__, dtype=args.as_t5,
              transformers=transformers.__version__)
    made = []
    for size, length, how in itertools.product(
        args.t5_sizes.split(","), map(int, args.t5_lengths.split(",")),
        ("compiled", "eager")):
      trained = self._try(self._made, size, how, length, name=f"T5 {how} {length}")
      if trained:
        made.append((size, how, length, trained))
        self._try(self._time, *made[-1], name=f"T5 {how} {length}")
    for one in made * (args.rounds - 1):
      self._try(self._time, *one, name=f"T5 {one[1:3]}")
    self._try(self._decode, name="T5 decodes")

  def _made(self, size, how, length):
    """A T5 that has trained for a step: (forward and backward, optimizers)."""
    import transformers

    torch = self._torch
    torch.manual_seed(0)
    torch._dynamo.reset()
    sizes = {"tiny": (32, 2, 8, 64, 1), "small": (512, 8, 64, 2048, 6),
             "base": (768, 12, 64, 3072, 12)}[size]
    config = transformers.T5Config(
        vocab_size=32128, d_model=sizes[0], num_heads=sizes[1], d_kv=sizes[2],
        d_ff=sizes[3], num_layers=sizes[4], dropout_rate=.1, decoder_start_token_id=0)
    config._attn_implementation = "sdpa" if how == "compiled" else "eager"
    model: Any = transformers.T5ForConditionalGeneration(config)
    model = model.to(self._device).train()
    batch = max((16384 if size != "tiny" else 64) // length, 1)
    inputs, targets = [torch.randint(2, 32128, (batch, n), device=self._device)
                       for n in (length, 128)]
    mask = torch.ones_like(inputs)

    def loss():
      with torch.autocast(self._device, torch.bfloat16,
                          enabled=self._args.as_t5 == "bfloat16"):
        return model(input_ids=inputs, attention_mask=mask, labels=targets,
                     use_cache=False).loss

    forward = torch.compile(loss, dynamic=False) if how == "compiled" else loss

    def gradients():
      model.zero_grad(set_to_none=True)
      value = forward()
      value.backward()
      return value.detach()

    optimizers = {
        "transformers": transformers.optimization.Adafactor(
            model.parameters(), lr=1e-3, relative_step=False, scale_parameter=True,
            warmup_init=False),
        "torch": torch.optim.Adafactor(model.parameters(), lr=1e-3)}
    float(gradients())
    self._model = model
    return gradients, optimizers

  def _wait(self):
    if self._device == "cuda":
      self._torch.cuda.synchronize()

  def _seconds(self, function):
    function()
    function()
    self._wait()
    times = []
    for _ in range(3):
      begin = time.perf_counter()
      for _ in range(self._args.repeats):
        function()
      self._wait()
      times.append((time.perf_counter() - begin) / self._args.repeats)
    return statistics.median(times)

  def _time(self, size, how, length, trained):
    gradients, optimizers = trained

    def step(optimizer):
      gradients()
      optimizer.step()

    with _alone():
      row = {f"with_{name}": self._seconds(lambda o=o: step(o))
             for name, o in optimizers.items()}
      row["gradients"] = self._seconds(gradients)
    self._add(part="time", row=f"T5 {how}", size=size, dtype=self._args.as_t5,
              measure="train", inputs=length, seconds=min(
                  row["with_transformers"], row["with_torch"]), **row)

  def _decode(self):
    torch, model = self._torch, self._model.eval()
    inputs = torch.randint(2, 32128, (16, 512), device=self._device)

    def decode():
      with torch.no_grad(), torch.autocast(
          self._device, torch.bfloat16, enabled=self._args.as_t5 == "bfloat16"):
        return model.generate(inputs, attention_mask=torch.ones_like(inputs),
                              min_new_tokens=128, max_new_tokens=128, do_sample=False)

    decode()
    with _alone():
      begin = time.perf_counter()
      decode()
      self._wait()
      seconds = time.perf_counter() - begin
    self._add(part="time", row="T5 eager", dtype=self._args.as_t5, measure="decode",
              inputs=512, seconds=seconds, tokens_per_second=16 * 128 / seconds)


if __name__ == "__main__":
  main()
