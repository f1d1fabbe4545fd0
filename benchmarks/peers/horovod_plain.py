"""Horovod as its TensorFlow 2 example writes it: DistributedGradientTape in a tf.function.

    mpirun -np 2 python benchmarks/peers/horovod_plain.py
    horovodrun --gloo -np 2 python benchmarks/peers/horovod_plain.py

After examples/tensorflow2/tensorflow2_synthetic_benchmark.py of Horovod 0.28.1. `--tuned` adds
what a user learns only by measuring: one thread a rank, and ranks that yield while they wait.
"""

import os

from measure import BATCH, memory_mib, parser, report, synthetic_batch, train

TUNED = {
    "OMP_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
}


def main() -> None:
    """Trains, and prints the rate of all ranks on rank 0."""
    flags = parser(__doc__)
    flags.add_argument("--tuned", action="store_true", help="1 thread a rank, yield when idle")
    arguments = flags.parse_args()
    if arguments.tuned:
        os.environ.update(TUNED)
    # Only now: TensorFlow and MPI read these variables when they load.
    import horovod.tensorflow as hvd
    import seed_cnn
    import tensorflow as tf

    hvd.init()
    images, labels = map(tf.constant, synthetic_batch(hvd.rank()))
    named = seed_cnn.build()
    variables = list(named.values())

    @tf.function
    def training_step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = seed_cnn.loss(named, images, labels)
        tape = hvd.DistributedGradientTape(tape)
        seed_cnn.descend(variables, tape.gradient(loss, variables))
        return loss

    # The example broadcasts after its first step, since Keras makes its variables there; these
    # exist already.
    hvd.broadcast_variables(variables, root_rank=0)
    rate, loss = train(training_step, arguments)
    memory = hvd.allgather(tf.constant([memory_mib()])).numpy()
    if hvd.rank() == 0:
        report(rate * BATCH * hvd.size(), float(loss), memory.tolist())


if __name__ == "__main__":
    main()
