"""PyTorch networks as Schwann's files have them, and back. The scripts of the repository use it too."""
