"""Converts images and labels to sharded TFRecords with a manifest; never imports TensorFlow."""

__version__ = "0.1.0"
