"""Answer forms: where an answer stands in a submission, and when two spellings of it are the same answer."""
