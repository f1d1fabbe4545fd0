#!/bin/bash
# Trains under PBS and goes on in a new job time after time until it is done. TRAIN is the script
# and its flags, without commas:
#
#     qsub -v TRAIN="hvd_train/cifar.py --name first" hostfiles/schedulers/pbs.sh
#
# Submit it in the project's folder, on a file system that all hosts share. Five minutes before
# the walltime the run saves a checkpoint and ends with 143, upon which the job submits its
# successor, which gets none of qsub's flags: write queue, account and resources below. qrerun and
# a host that fails start the same job again, and qdel ends it for good, with a checkpoint if PBS
# waits (kill_delay) until one is saved.
#PBS -N hvd-train
#PBS -l select=2:ncpus=4:mpiprocs=4
#PBS -l walltime=01:00:00
#PBS -r y
#PBS -j oe

cd "$PBS_O_WORKDIR" || exit
. .venv/bin/activate
hosts=$(mktemp hosts.XXXXXX)
trap 'rm -f "$hosts"' EXIT
hvd_train hosts --form openmpi >"$hosts" || exit

read -ra words <<<"$TRAIN"
# qdel tells mpirun too, which would kill its ranks a second after that: ten are enough to save.
mpirun --mca odls_base_sigkill_timeout 10 --hostfile "$hosts" -x PATH \
  python "${words[@]}" --resume --max-minutes 55 &
ranks=$!
deleted=
trap 'deleted=yes; kill -USR1 "$ranks"' TERM # mpirun passes it on to all ranks
wait "$ranks"
code=$?
if [ -n "$deleted" ]; then # the signal has ended only the wait
  wait "$ranks"
  code=$?
elif [ "$code" -eq 143 ]; then
  qsub -v TRAIN="$TRAIN" hostfiles/schedulers/pbs.sh
fi
exit "$code"
