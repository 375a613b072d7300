"""Makes tasks of a cluster on free ports of this machine."""

import socket

from synthesizer_mtf.trainer.command import tf_config


def free_ports(count):
  sockets = [socket.socket() for _ in range(count)]
  for s in sockets:
    s.bind(("localhost", 0))
  ports = [s.getsockname()[1] for s in sockets]
  for s in sockets:
    s.close()
  return ports


def two_tasks():
  return [tf_config.Task(job, 0, f"localhost:{port}")
          for job, port in zip(("chief", "worker"), free_ports(2))]
