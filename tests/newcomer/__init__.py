"""What a newcomer wants to do, done with what the documents say."""
