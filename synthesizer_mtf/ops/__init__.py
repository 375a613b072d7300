"""How attention is computed: forms of logits, means of values, blocks of rows."""
