"""What runs inside a machine. Standard library only; copied into the root file system, where nothing else of ours is."""
