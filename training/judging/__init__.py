"""What a job is judged by: its steps again, its first steps by a plain loop, fingerprints of its state."""
