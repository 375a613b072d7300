"""The paper's layers in T5's stack."""
