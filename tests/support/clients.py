"""Clients of the server in docs/serving.md: many at once, and how long they wait.

  PYTHONPATH=tests python -m support.clients --port=8080 --clients=8 --seconds=30 \\
    --texts=demo_output/data/names.txt
"""

import argparse
import http.client
import json
import pathlib
import statistics
import threading
import time
from typing import NamedTuple


class Outcome(NamedTuple):
  """The outcome of one request."""
  text: str
  seconds: float
  status: int
  answer: dict


def ask(connection, body):
  """Sends one request; returns (status, answer).

  Args:
    connection: an HTTP connection.
    body: bytes, or a value that JSON can write.
  """
  if not isinstance(body, bytes):
    body = json.dumps(body).encode()
  connection.request("POST", "/v1/models/names:predict", body)
  response = connection.getresponse()
  return response.status, json.loads(response.read())


def run(port, texts, clients, seconds):
  """Returns the `Outcome`s of all requests; a client sends one text after another."""
  outcomes, end = [], time.monotonic() + seconds

  def client(number):
    connection = http.client.HTTPConnection("localhost", port, timeout=60)
    index = number
    while time.monotonic() < end:
      text = texts[index % len(texts)]
      began = time.monotonic()
      status, answer = ask(connection, {"instances": [text]})
      outcomes.append(Outcome(text, time.monotonic() - began, status, answer))
      index += clients
    connection.close()

  threads = [threading.Thread(target=client, args=(i,)) for i in range(clients)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  return outcomes


def report(outcomes, seconds):
  """Returns a sentence with the figures of all requests."""
  waits = sorted(1e3 * outcome.seconds for outcome in outcomes)
  lost = sum(outcome.status != 200 for outcome in outcomes)
  return (f"{len(waits)} requests in {seconds} s, {len(waits) / seconds:.1f} a second; "
          f"milliseconds: median {statistics.median(waits):.0f}, 99th percentile "
          f"{waits[len(waits) * 99 // 100]:.0f}; {lost} without an answer")


def main(argv=None):
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--port", type=int, default=8080)
  parser.add_argument("--clients", type=int, default=8)
  parser.add_argument("--seconds", type=float, default=30)
  parser.add_argument("--texts", type=pathlib.Path, help="a file with one in each line")
  args = parser.parse_args(argv)
  texts = args.texts.read_text(encoding="utf-8").splitlines()
  print(report(run(args.port, texts, args.clients, args.seconds), args.seconds))


if __name__ == "__main__":
  main()
