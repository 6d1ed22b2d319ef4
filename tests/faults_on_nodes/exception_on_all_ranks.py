raise KeyError("learning_rate")
