"""The CPU: its device, the C++ kernel (`source`, `build`, `library`, `network`), and torch.compile for the rest."""
