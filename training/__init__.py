"""From datasets to nine experts and one student."""
