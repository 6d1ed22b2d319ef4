# truth: rank=0 line=7 kind=exit says=ffprobe5: command not found
# also: 127
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:1|2)\b
# run: {L} --no-python --nproc-per-node=3 bash {C}/89_shell_command_not_found.sh
sleep 0.5
if [ "$RANK" = 0 ]; then
    frames=$(ffprobe5 -count_frames clip.mp4) || exit 127
fi
sleep 60
