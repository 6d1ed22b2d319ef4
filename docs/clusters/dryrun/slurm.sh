# relight submit --dryrun -s slurm -cfg partition=gpu dist.ddp -j 2:4x8 -h gpu.medium --script train.py
#!/bin/bash
# Job train-x7abc, written by relight. Submit it with: sbatch FILE
#
#SBATCH --job-name=train-x7abc
#SBATCH --chdir=/home/me/project
#SBATCH --output=/dev/null
#SBATCH --open-mode=append
#SBATCH --partition=gpu
#SBATCH --requeue
#SBATCH --signal=B:USR1@120
#SBATCH --nodes=2-4
#SBATCH --no-kill
#SBATCH --cpus-per-task=16
#SBATCH --mem=65536M
#SBATCH --gpus-per-node=2

export RELIGHT_JOB_DIR=/home/me/.local/state/relight/jobs/train-x7abc/slurm
(umask 077 && mkdir -p "$RELIGHT_JOB_DIR")
# `relight submit` passes --output with this file, in the directory that it has created.
[ ! /dev/stdout -ef /dev/null ] || exec >>"$RELIGHT_JOB_DIR/batch.log" 2>&1
# This script runs on the first node of the first role.
export RELIGHT_RANK0_HOST=$SLURMD_NODENAME TORCHX_RANK0_HOST=$SLURMD_NODENAME
export RELIGHT_MAX_RETRIES=0 TORCHX_MAX_RETRIES=0
export PYTHONUNBUFFERED=1
# An agent needs this token to join the job.
export RELIGHT_TOKEN=${RELIGHT_TOKEN:-$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')}

# One replica of train; $SLURM_PROCID is its number.
run_train() {
    unset -f run_train
    export TORCHELASTIC_ERROR_FILE="$RELIGHT_JOB_DIR/train/$SLURM_PROCID/error.json"
    export PET_LOG_DIR="$RELIGHT_JOB_DIR/torchelastic/train"
    export RELIGHT_ON_PREEMPT=SIGUSR1
    export LOGLEVEL=WARNING
    export TORCHX_TRACKING_EXPERIMENT_NAME=default-experiment
    export TORCHX_TRACKING_RUN_NAME=train
    export TORCHX_JOB_ID="slurm://torchx/${SLURM_JOB_ID}"
    export TORCHX_INTERNAL_SESSION_ID=0123456789abcdef
    export RELIGHT_TRACKING_EXPERIMENT_NAME=default-experiment
    export RELIGHT_TRACKING_RUN_NAME=train
    export RELIGHT_JOB_ID="slurm://relight/${SLURM_JOB_ID}"
    export RELIGHT_INTERNAL_SESSION_ID=0123456789abcdef
    export RELIGHT_REPLICA_ID="${SLURM_PROCID}"
    export PATH="$PATH":/home/me/env/bin:"$RELIGHT_JOB_DIR/launcher"
    exec bash -c "relight run --rdzv_backend c10d --rdzv_endpoint \${RELIGHT_RANK0_HOST:=localhost}:29500 --rdzv_id '${SLURM_JOB_ID}' --nnodes 2:4 --nproc_per_node 8 --tee 3 --role '' train.py"
}
export -f run_train

# Remove files of an earlier attempt.
(cd "$RELIGHT_JOB_DIR" && rm -f ./*/*/error.json ./*/srun.log failed ended)
mkdir -p "$RELIGHT_JOB_DIR"/train/{0..3}

# How often this script has retried the job. SLURM_RESTART_COUNT also counts lost nodes, preemptions
# and requeues by hand.
retries=$(cat "$RELIGHT_JOB_DIR/retries" 2>/dev/null | grep -cxF "$SLURM_JOB_ID")

# This script does not requeue a job that Slurm has cancelled, preempted, or requeued itself.
is_running() { scontrol show job "$SLURM_JOB_ID" | grep -q JobState=RUNNING; }

# Print the exit code or signal of the first failed task, from srun's messages; ignore tasks on
# lost nodes.
first_failure() {
    awk '/: error: Node failure on / { lost[$NF ":"] }
         /: error: [^ ]+: tasks? [^ ]+: / && !($3 in lost) { print $NF; exit }' "$1"
}

# Return whether tasks have exited with 0 while others failed, left the job, or lost their node: an
# agent exits with 0 only if the whole job has succeeded.
has_survivors() {
    local gone
    gone=$(sed -nE 's/.*: error: (Node failure on ([^ ]+)|([^ ]+): tasks? [^ ]+: .*)/\2\3/p' "$1")
    [ -n "$gone" ] && ! grep -q 'launch failed' "$1" &&
        (($(scontrol show hostnames "${gone//$'\n'/,}" | sort -u | wc -l) < $2))
}

# Run a role: one task on each of its nodes.
step() {
    local role=$1 nodes=$2 code first_code srun_log=$RELIGHT_JOB_DIR/$1/srun.log
    shift 2
    trap : TERM USR1 # let srun handle the signal; keep waiting
    # Tasks need this script's variables even if the site has set SBATCH_EXPORT=NONE.
    srun --export=ALL --nodes="$nodes" --ntasks="$nodes" --ntasks-per-node=1 --wait=0 \
        --open-mode=append \
        --output="$RELIGHT_JOB_DIR/$role/%t/stdout.log" \
        --error="$RELIGHT_JOB_DIR/$role/%t/stderr.log" "$@" 2>"$srun_log"
    code=$?
    cat "$srun_log"
    first_code=$(first_failure "$srun_log")
    if [[ $code != 0 && "$*" == *--no-kill* && (-z $first_code || "$*" == *-exit=0*) ]] &&
        has_survivors "$srun_log" "$nodes"; then
        code=0 first_code= # the other nodes went on without those
    fi
    if [[ $code != 0 && $first_code =~ ^[0-9]+$ ]]; then
        code=$first_code # srun may exit with the code of a task that was stopped afterwards
    fi
    if [ "$code" != 0 ]; then
        echo "$code $role" >>"$RELIGHT_JOB_DIR/failed"
    fi
    return "$code"
}

# Slurm sends USR1 to this script when the time limit is near: signal the workers.
near_the_limit() {
    interrupted=yes
    echo "relight: the time limit is near, sending SIGUSR1 to the workers"
    scancel --signal=USR1 "$SLURM_JOB_ID"
    if [ "$RELIGHT_MAX_RETRIES" -gt "$retries" ]; then
        # Stop what still runs, in time to queue the job again. After a requeue the job id is the
        # same: stop it only if this script still runs.
        { sleep 60; kill -0 $$ 2>/dev/null && scancel --signal=TERM "$SLURM_JOB_ID"; } &
    fi
}
trap near_the_limit USR1
trap 'interrupted=yes stopped=yes' TERM # cancelled, or the time limit

steps=()
echo "$SLURM_JOB_NODELIST" >"$RELIGHT_JOB_DIR"/train/nodes
step train "$SLURM_JOB_NUM_NODES" --cpus-per-task=16 --kill-on-bad-exit=0 --no-kill bash -c run_train &
steps+=($!)

code=0 role="the job"
for pid in "${steps[@]}"; do
    # A signal interrupts `wait`: wait again.
    until interrupted=; wait "$pid"; step_code=$?; [ -z "$interrupted" ]; do :; done
    [ "$step_code" = 0 ] || code=$step_code
done
# The first failure is the cause. If the disk is full, it isn't recorded.
[ ! -s "$RELIGHT_JOB_DIR/failed" ] || read -r code role <"$RELIGHT_JOB_DIR/failed"
[ "$code" = 0 ] || echo "relight: $role failed with exit code $code"
if [ -n "$stopped" ]; then
    exit "$code" # cancelled or timed out: Slurm records the reason
fi
if [ "$code" = 75 ] && [ $SECONDS -ge 10 ] && is_running; then
    echo "relight: requeueing the job, which was preempted: its workers have saved a checkpoint"
    scontrol requeue "$SLURM_JOB_ID" && exit "$code"
elif [ "$code" != 0 ] && [ "$RELIGHT_MAX_RETRIES" -gt "$retries" ] && is_running; then
    # Record the retry first: Slurm may kill this script when it requeues the job, and retries that
    # can't be recorded would never end.
    if echo "$SLURM_JOB_ID" >>"$RELIGHT_JOB_DIR/retries"; then
        echo "relight: requeueing the job, retry $((retries + 1)) of $RELIGHT_MAX_RETRIES"
        scontrol requeue "$SLURM_JOB_ID" && exit "$code"
    else
        echo "relight: the job is not retried: can't write to $RELIGHT_JOB_DIR"
    fi
fi
echo "$code" >"$RELIGHT_JOB_DIR/ended"
exit "$code"
