from modles.net import Net
# truth: rank=all line=1 kind=exception says=No module named 'modles'
