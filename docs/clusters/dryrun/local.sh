# relight submit --dryrun -s local dist.ddp -j 1x4 --script train.py
# train/0, logs in /home/me/.local/state/relight/jobs/train-x7abc/train/0
cd /home/me/project
export LOGLEVEL=WARNING
export TORCHX_TRACKING_EXPERIMENT_NAME=default-experiment
export TORCHX_TRACKING_RUN_NAME=train
export TORCHX_JOB_ID=local://torchx/train-x7abc
export TORCHX_INTERNAL_SESSION_ID=0123456789abcdef
export RELIGHT_TRACKING_EXPERIMENT_NAME=default-experiment
export RELIGHT_TRACKING_RUN_NAME=train
export RELIGHT_JOB_ID=local://relight/train-x7abc
export RELIGHT_INTERNAL_SESSION_ID=0123456789abcdef
export RELIGHT_REPLICA_ID=0
export PATH=/usr/bin:/bin:/home/me/project:/home/me/env/bin
export RELIGHT_RANK0_HOST=localhost
export TORCHX_RANK0_HOST=localhost
export TORCHELASTIC_ERROR_FILE=/home/me/.local/state/relight/jobs/train-x7abc/train/0/error.json
export PET_LOG_DIR=/home/me/.local/state/relight/jobs/train-x7abc/torchelastic/train
bash -c 'relight run --rdzv_backend c10d --rdzv_endpoint localhost:0 --rdzv_id '"'"'train-x7abc'"'"' --nnodes 1 --nproc_per_node 4 --tee 3 --role '"'"''"'"' train.py'
