"""`hugging_face`: from Mesh TensorFlow to Hugging Face and PyTorch, and back."""
