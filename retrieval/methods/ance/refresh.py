"""The refresh 'negatives': hard negatives, mined with the model as it is (ANCE, Xiong et al. 2021)."""

from retrieval.stages.mined_negatives import NegativesRefresh
from retrieval.stages.refresh_kind import REFRESHES

REFRESHES.register(NegativesRefresh.name, NegativesRefresh())
