"""Late interaction (Khattab & Zaharia 2020, ColBERT): a vector for every token, compared one by one."""

NAMES = {
    "recipe": {"recipe": "late_interaction"},
    "stage": {"tokens_stage": "tokens", "maxsim_stage": "maxsim"},
    "loss": {"loss": "maxsim_softmax maxsim_distillation"},
    "trained": {"trained": "late_interaction"},
}
