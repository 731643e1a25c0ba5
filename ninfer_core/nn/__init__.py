"""What models are built from: a checkpoint's parameters as operations over any stored weight format."""
