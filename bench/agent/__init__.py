"""What runs on a node beside the trainers. Standard library only, Python 3.9: it is carried to nodes as an archive."""
