"""The shared table of attentions under test. A new variant is one more row."""

import synthesizer_mtf

HEADS = 3
D_KV = 5
MAX_LENGTH = 12

# notation: parameters of its synthesizing functions, and the shapes of their
# variables. All sizes differ, so that no two dimensions can be confused.
CASES = {
    "V": ({}, {"q": [11, 15], "k": [11, 15]}),
    "R": ({"max_length": 12}, {"R": [3, 12, 12]}),
    "Fix": ({"max_length": 12}, {"R": [3, 12, 12]}),
    "FR": ({"max_length": 12, "rank": 2}, {"R1": [3, 12, 2], "R2": [3, 12, 2]}),
    "D": ({"max_length": 12}, {"W1": [11, 15], "W2": [3, 5, 12]}),
    "FD": ({"max_length": 12, "a": 6},
           {"W1": [11, 15], "WA": [3, 5, 6], "WB": [3, 5, 2]}),
    "Pattern": ({"patterns": ["left_context", "previous", "current"]}, {}),
    "R+V": ({"max_length": 12},
            {"q": [11, 15], "k": [11, 15], "R": [3, 12, 12], "alpha": [3, 2]}),
    "D+V": ({"max_length": 12},
            {"q": [11, 15], "k": [11, 15], "W1": [11, 15], "W2": [3, 5, 12],
             "alpha": [3, 2]}),
    "R+D": ({"max_length": 12},
            {"R": [3, 12, 12], "W1": [11, 15], "W2": [3, 5, 12],
             "alpha": [3, 2]}),
    "FR+V": ({"max_length": 12, "rank": 2},
             {"q": [11, 15], "k": [11, 15], "R1": [3, 12, 2], "R2": [3, 12, 2],
              "alpha": [3, 2]}),
    "FR+D+V": ({"max_length": 12, "rank": 2},
               {"q": [11, 15], "k": [11, 15], "R1": [3, 12, 2],
                "R2": [3, 12, 2], "W1": [11, 15], "W2": [3, 5, 12],
                "alpha": [3, 3]}),
    "Fix+FD+V": ({"max_length": 12, "a": 3},
                 {"q": [11, 15], "k": [11, 15], "R": [3, 12, 12],
                  "W1": [11, 15], "WA": [3, 5, 3], "WB": [3, 5, 4],
                  "alpha": [3, 3]}),
}

NOTATIONS = list(CASES)


def make_layer(notation, **kwargs):
  """The layer of a row, without dropout unless asked for."""
  kwargs = {"num_heads": HEADS, "key_value_size": D_KV, "dropout_rate": 0.0,
            **CASES[notation][0], **kwargs}
  return synthesizer_mtf.attention_layer(notation, **kwargs)
