# relight submit --dryrun -s ssh -cfg hosts=node1;node2 dist.ddp -j 2x8 --script train.py
# train/0, logs in /home/me/.local/state/relight/jobs/train-x7abc/train/0
ssh -T -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5 -o ServerAliveCountMax=3 -o LogLevel=INFO -o ControlMaster=no -o ControlPath=none -- node1 'exec sh -c '"'"'p=/home/me/env/bin/python; command -v "$p" >/dev/null 2>&1 || p=python3; exec "$p" -P -m relight.schedulers.ssh.replica'"'"''
# there, on node1:
cd /home/me/project
export LOGLEVEL=WARNING
export TORCHX_TRACKING_EXPERIMENT_NAME=default-experiment
export TORCHX_TRACKING_RUN_NAME=train
export TORCHX_JOB_ID=ssh://torchx/train-x7abc
export TORCHX_INTERNAL_SESSION_ID=0123456789abcdef
export RELIGHT_TRACKING_EXPERIMENT_NAME=default-experiment
export RELIGHT_TRACKING_RUN_NAME=train
export RELIGHT_JOB_ID=ssh://relight/train-x7abc
export RELIGHT_INTERNAL_SESSION_ID=0123456789abcdef
export RELIGHT_REPLICA_ID=0
export RELIGHT_RANK0_HOST=node1
export TORCHX_RANK0_HOST=node1
bash -c 'relight run --rdzv_backend c10d --rdzv_endpoint ${RELIGHT_RANK0_HOST:=localhost}:29500 --rdzv_id '"'"'train-x7abc'"'"' --nnodes 2 --nproc_per_node 8 --tee 3 --role '"'"''"'"' train.py'

# train/1, logs in /home/me/.local/state/relight/jobs/train-x7abc/train/1
ssh -T -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5 -o ServerAliveCountMax=3 -o LogLevel=INFO -o ControlMaster=no -o ControlPath=none -- node2 'exec sh -c '"'"'p=/home/me/env/bin/python; command -v "$p" >/dev/null 2>&1 || p=python3; exec "$p" -P -m relight.schedulers.ssh.replica'"'"''
# there, on node2:
cd /home/me/project
export LOGLEVEL=WARNING
export TORCHX_TRACKING_EXPERIMENT_NAME=default-experiment
export TORCHX_TRACKING_RUN_NAME=train
export TORCHX_JOB_ID=ssh://torchx/train-x7abc
export TORCHX_INTERNAL_SESSION_ID=0123456789abcdef
export RELIGHT_TRACKING_EXPERIMENT_NAME=default-experiment
export RELIGHT_TRACKING_RUN_NAME=train
export RELIGHT_JOB_ID=ssh://relight/train-x7abc
export RELIGHT_INTERNAL_SESSION_ID=0123456789abcdef
export RELIGHT_REPLICA_ID=1
export RELIGHT_RANK0_HOST=node1
export TORCHX_RANK0_HOST=node1
bash -c 'relight run --rdzv_backend c10d --rdzv_endpoint ${RELIGHT_RANK0_HOST:=localhost}:29500 --rdzv_id '"'"'train-x7abc'"'"' --nnodes 2 --nproc_per_node 8 --tee 3 --role '"'"''"'"' train.py'
