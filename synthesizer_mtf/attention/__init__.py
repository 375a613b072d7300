"""What the paper says: the attentions, in Mesh TensorFlow."""
