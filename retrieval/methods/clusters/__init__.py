"""ProQA's batches of clusters, made anew while the model trains (Xiong et al. 2020)."""

NAMES = {"refresh": {"refresh": "clusters"}}
