"""Late interaction (Khattab & Zaharia 2020, ColBERT): a vector for every token, compared one by one."""
