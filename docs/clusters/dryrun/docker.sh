# relight submit --dryrun -s docker dist.ddp -j 2x8 -h gpu.medium --image pytorch/pytorch --script train.py
# train/0, with the launcher in /opt/relight
docker run --detach --name=train-x7abc-train-0 --network=relight --hostname=train-x7abc-train-0 --init --stop-timeout=40 \
  --cpus=16 --memory=68719476736 --shm-size=68719476736 '--gpus="device=0,1"' \
  --label=relight/app-id=train-x7abc --label=relight/app-name=train --label=relight/role=train --label=relight/replica=0 --label=relight/replicas=2 --label=relight/min-replicas=2 --label=relight/max-retries=0 --label=relight/user=me --label=relight/version=VERSION --label=torchx.pytorch.org/version=0.1.0 --label=torchx.pytorch.org/app-id=train-x7abc --label=torchx.pytorch.org/role-name=train --label=torchx.pytorch.org/replica-id=0 --label=relight/gpus=0,1 \
  --env=PYTHONUNBUFFERED=x \
  --env=TORCHELASTIC_ERROR_FILE=/tmp/relight-error.json \
  --env=LOGLEVEL=WARNING \
  --env=TORCHX_TRACKING_EXPERIMENT_NAME=default-experiment \
  --env=TORCHX_TRACKING_RUN_NAME=train \
  --env=TORCHX_JOB_ID=docker://torchx/train-x7abc \
  --env=TORCHX_INTERNAL_SESSION_ID=0123456789abcdef \
  --env=RELIGHT_TRACKING_EXPERIMENT_NAME=default-experiment \
  --env=RELIGHT_TRACKING_RUN_NAME=train \
  --env=RELIGHT_JOB_ID=docker://relight/train-x7abc \
  --env=RELIGHT_INTERNAL_SESSION_ID=0123456789abcdef \
  --env=RELIGHT_REPLICA_ID=0 \
  --env=RELIGHT_RANK0_HOST=train-x7abc-train-0 \
  --env=TORCHX_RANK0_HOST=train-x7abc-train-0 \
  --env=RELIGHT_IMAGE=pytorch/pytorch \
  --env=TORCHX_IMAGE=pytorch/pytorch \
  pytorch/pytorch sh -c 'PATH="$PATH:/opt/relight" exec "$@"' sh bash -c 'relight run --rdzv_backend c10d --rdzv_endpoint ${RELIGHT_RANK0_HOST:=localhost}:29500 --rdzv_id '"'"'train-x7abc'"'"' --nnodes 2 --nproc_per_node 8 --tee 3 --role '"'"''"'"' train.py'
# train/1, with the launcher in /opt/relight
docker run --detach --name=train-x7abc-train-1 --network=relight --hostname=train-x7abc-train-1 --init --stop-timeout=40 \
  --cpus=16 --memory=68719476736 --shm-size=68719476736 '--gpus="device=2,3"' \
  --label=relight/app-id=train-x7abc --label=relight/app-name=train --label=relight/role=train --label=relight/replica=1 --label=relight/replicas=2 --label=relight/min-replicas=2 --label=relight/max-retries=0 --label=relight/user=me --label=relight/version=VERSION --label=torchx.pytorch.org/version=0.1.0 --label=torchx.pytorch.org/app-id=train-x7abc --label=torchx.pytorch.org/role-name=train --label=torchx.pytorch.org/replica-id=1 --label=relight/gpus=2,3 \
  --env=PYTHONUNBUFFERED=x \
  --env=TORCHELASTIC_ERROR_FILE=/tmp/relight-error.json \
  --env=LOGLEVEL=WARNING \
  --env=TORCHX_TRACKING_EXPERIMENT_NAME=default-experiment \
  --env=TORCHX_TRACKING_RUN_NAME=train \
  --env=TORCHX_JOB_ID=docker://torchx/train-x7abc \
  --env=TORCHX_INTERNAL_SESSION_ID=0123456789abcdef \
  --env=RELIGHT_TRACKING_EXPERIMENT_NAME=default-experiment \
  --env=RELIGHT_TRACKING_RUN_NAME=train \
  --env=RELIGHT_JOB_ID=docker://relight/train-x7abc \
  --env=RELIGHT_INTERNAL_SESSION_ID=0123456789abcdef \
  --env=RELIGHT_REPLICA_ID=1 \
  --env=RELIGHT_RANK0_HOST=train-x7abc-train-0 \
  --env=TORCHX_RANK0_HOST=train-x7abc-train-0 \
  --env=RELIGHT_IMAGE=pytorch/pytorch \
  --env=TORCHX_IMAGE=pytorch/pytorch \
  pytorch/pytorch sh -c 'PATH="$PATH:/opt/relight" exec "$@"' sh bash -c 'relight run --rdzv_backend c10d --rdzv_endpoint ${RELIGHT_RANK0_HOST:=localhost}:29500 --rdzv_id '"'"'train-x7abc'"'"' --nnodes 2 --nproc_per_node 8 --tee 3 --role '"'"''"'"' train.py'
