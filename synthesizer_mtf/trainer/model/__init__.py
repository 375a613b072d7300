"""The one way to build a model, as T5's trainer does, in the trainer and the tools.

  building.py   the model that gin describes, in a graph of Mesh TensorFlow
  session.py    a session of TensorFlow, with the model's variables
  function.py   a part of TensorFlow's graph, such as a step, as a function
"""
