"""What takes the place of Mesh TensorFlow's `train_model`, and its parts."""
