"""`plot_attention`: runs a trained model on texts, and draws its attention."""
