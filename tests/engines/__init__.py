"""Real engines for tests: machines in namespaces, OpenSSH and Slurm on them; see README.md."""
