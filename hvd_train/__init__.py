"""Trains TensorFlow models by Horovod allreduce on the data sets that data_tools writes."""
