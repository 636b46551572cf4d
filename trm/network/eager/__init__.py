"""The network in plain PyTorch operations."""
