# truth: rank=1 line=8 kind=exit says=No such file or directory
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0)\b
# run: {L} --no-python --nproc-per-node=2 bash {C}/88_shell_wrapper_cd_fails.sh
set -e
echo "rank $RANK: preparing"
sleep 0.5
if [ "$RANK" = 1 ]; then
    cd "/nonexistent/scratch-$RANK"
fi
sleep 60
