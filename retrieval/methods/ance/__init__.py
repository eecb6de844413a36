"""ANCE: hard negatives searched anew while the model trains (Xiong et al. 2020)."""
