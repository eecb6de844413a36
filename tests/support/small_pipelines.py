"""Small input pipelines, drawn from a few times: TensorFlow would rewrite the graph of every function in them first."""

import tensorflow

tensorflow.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
