"""NVIDIA GPUs: the device, which of them a process takes, and the network through torch.compile."""
