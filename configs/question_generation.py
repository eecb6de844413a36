"""Question generation (Xiong et al. 2020, section 3.1): questions that passages answer, to pre-train a retriever with.

An encoder-decoder learns from SQuAD to write a question of an answer and its paragraph. Then answers are proposed in
every passage of a corpus, and a question is written for each. ProQA's filters leave out short passages and questions
that have their answer in them. `proqa.py` trains on what is left.

    python -m retrieval.main --config=configs/question_generation.py --workdir=runs/questions \\
        --config.base=runs/wikipedia --config.pairs.files=train-v1.1.json

The paper has a published BART, fine-tuned on Natural Questions. A folder of such a model writes here too:
`--config.generate.model=FOLDER --config.stages="('generate',)"`. Its source is the answer, then the passage.

At the size of a laptop:

    python -m retrieval.main --config=configs/question_generation.py:local --workdir=runs/questions \\
        --config.base=runs/own --config.pairs.files=train-v1.1.json
"""

from ml_collections import ConfigDict

from retrieval.configs import doc2query


def get_config(size: str = "paper") -> ConfigDict:
    """doc2query's model with the answer in the place of the title; 'local' is for a laptop."""
    config = doc2query.get_config(size)
    config.stages = ("pairs", "train", "generate")
    config.pairs.format = "squad_answers"
    config.data.query_length = 32
    config.encode.corpus = True
    config.generate.update(answers="spacy" if size == "paper" else "rules", queries=3, way="beam")
    if size == "paper":
        config.model.update(num_layers=12, hidden_size=768, num_heads=12, mlp_size=3072)
        config.model.writer.update(layers=6, copy=True)
        config.train.update(steps=20_000, batch_size=128, learning_rate=1e-4, warmup_ratio=0.1)
    else:
        config.data.document_length = 192
    return config
