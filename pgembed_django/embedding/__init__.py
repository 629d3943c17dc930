"""From a claimed job to stored vectors: ``handler`` is the walk of one saved row."""
