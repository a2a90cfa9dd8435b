"""What one device computes and holds: precision, memory, what fits, and how many operations a sample takes."""
