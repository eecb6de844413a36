"""Mistakes that people make, and what they are told: the field or file, the nearest name, a way out, in five lines.

Nothing that is dear is done before: but for those of `IN_A_STAGE`, no stage has begun when the message comes.
"""

import gzip
import importlib
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
from typing import NamedTuple

import pytest
from conftest import REPOSITORY
from support import toy_corpus
from support.command_flags import forget_flags

from retrieval import main, study
from retrieval.cli import command_line
from retrieval.config import experiment
from retrieval.config.fields import declared
from retrieval.data.tokenizers.vocab import SPECIAL_TOKENS
from retrieval.pipeline import records, runner
from retrieval.pipeline.stage import STAGES
from retrieval.runtime import hosts
from retrieval.stage_outputs import Run

LINES, COLUMNS = 5, 120


class Mistake(NamedTuple):
    """What is typed, and what the message has to say."""

    typed: str
    says: tuple[str, ...]


def mistakes(table):
    """Those of a text: a command, and below it, indented, what the message says, between bars.

    $NAME stands for one of `SHORT`. {run} is a work directory that does not exist, everything else in braces lies in
    the folder that `inputs` makes.
    """
    found = []
    for line in table.strip().splitlines():
        if line.startswith(" "):
            typed, says = found.pop()
            found.append(Mistake(typed, (*says, *(part.strip() for part in line.split("|") if part.strip()))))
        else:
            found.append(Mistake(written_out(line), ()))
    return found


def written_out(line):
    while "$" in line.replace("$HOME", ""):
        line = re.sub(r"\$(\w+)", lambda match: SHORT.get(match[1], match[0]), line)
    return line


SHORT = {
    "BERT": "--config.model.hidden_size=16 --config.model.num_heads=4 --config.model.mlp_size=24 "
    "--config.data.query_length=16 --config.data.document_length=20 --config.train.init_from={bert}",
    "QUICK": "--config=configs/ict_bfs_wlp.py:local --workdir={run}",
    "LABELLED": "--config=configs/dpr.py:local --workdir={run} --config.pairs.files={dpr.json}",
    "REQA": "--config=configs/reqa.py:local --workdir={run} --config.base={finished} --config.sets.reqa={squad.json}",
    "DPR": "--config=configs/dpr.py:local --workdir={run} --config.base={finished} --config.pairs.files",
    "ALONE": "--config=configs/dpr_mined.py:local --workdir={run} --config.sets.reqa={squad.json}",
    "MINED": "$ALONE --config.base={finished}",
    "REFRESHED": "$MINED --config.mine.refresh_every=100",
    "LAGGED": "$REFRESHED --config.mine.refresh_lag=50",
    "DUMP": "--config.sets.pydocs=False --config.corpus={dump.xml}",
    "MIXED": "--workdir={mixed} --config.base={other_words} --config.stages=\"('prepare', 'sets', 'encode')\"",
    "BM25": "--config=configs/bm25.py --workdir={run} --stage=sets",
    "OLDER": "--config=configs/dpr_mined.py:local --workdir={run} --config.base={older_index} "
    "--config.split.set=pydocs",
    "SEEDS": "--config=configs/studies/seed_encoder.py:local",
    "TASKS": "--config=configs/studies/pretraining_tasks.py:local",
}

FLAGS = mistakes(
    r"""
--confg=configs/ict.py --workdir={run}
  '--confg' | did you mean --config?
--config=configs/ict.py --workdir={run} --stages=train
  '--stages' | did you mean --stage
--config=configs/ict.py --workdir={run} --batch_size=64
  did you mean | --config.train.batch_size
--config=configs/ict.py --workdir={run} train
  unexpected argument 'train' | --config.train.steps=100
--config=configs/ict.py
  --workdir is missing | such as --workdir=runs/quickstart
--workdir={run}
  --config is missing | such as --config=configs/ict_bfs_wlp.py:local
--workdir={run} --config.train.steps=5
  --config.train.steps=5: --config is missing | such as --config=
--config
  --config has no value | --config=configs/ict_bfs_wlp.py:local
--config=configs/ict.py --workdir={run} --multihost=perhaps
  --multihost=perhaps | True or False
--config=configs/ict_bsf_wlp.py --workdir={run}
  no such file | did you mean --config=configs/ict_bfs_wlp.py
--config=studies/parts --workdir={run}
  configs/studies/parts.py: no get_config in it | such as configs/ict_bfs_wlp.py:local
--config=dpr:locl --workdir={run}
  'locl' | did you mean local?
--config=README.md --workdir={run}
  --config=README.md | line  | mend that file, or take another
--config={raises.py} --workdir={run}
  {raises.py}, line 2 | NameError | mend that file
--config={no_size.py}:local --workdir={run}
  {no_size.py}:local | 0 positional arguments | mend that file
--config={typo.py} --workdir={run}
  'config.train.batchsize' | did you mean config.train.batch_size
--config={lacks.py} --workdir={run}
  config.train.steps is missing | config.experiment.defaults()
--workdir={older}
  config.data.pack.query is missing | --config=configs/NAME.py
--workdir={oldest}
  {oldest}/config.json: config.recipe is missing | of an older version | make it again
--config=configs/reqa.py:local --workdir={run} --config.base={oldest} --config.sets.reqa={squad.json}
  {oldest}/config.json: config.recipe is missing | of an older version
--workdir={damaged} --config.train.steps=5
  {damaged}/config.json: not valid JSON | --workdir
--workdir={finished} --config.stages=5 --stage=train
  config.stages=(5,) | a tuple of texts | ('one', 'two')
--workdir={finished} --config.train.steps=5
  {finished} is the work directory of another config | config.train.steps: 600 there, 5 now
$TASKS --workdir={run}
  --config is that of a study | python -m retrieval.study
$QUICK --config=configs/mlm.py
  --config is there twice | --config=configs/mlm.py | leave one out
$QUICK --config.train.steps=5 --config.seed=1 --noconfig.model.tied --config.train.steps=7
  --config.train.steps is there twice | --config.train.steps=5 and --config.train.steps=7 | leave one out
--config=configs/ict.py --workdir=~/run
  --workdir=~/run | write $HOME
$QUICK --query=zip
  --query | add --stage=search
$QUICK --stage=trian
  unknown stage 'trian' | did you mean train
"""
)

FIELDS = mistakes(
    r"""
--config.trian.steps=5
  'config.trian' | did you mean config.train
--config.data.batch_size=5
  'config.data.batch_size' | did you mean | config.train.batch_size
--config.train.steps.more=5
  'config.train.steps.more' | config.train.steps has no fields
--config.train=5
  config.train is a group of fields | config.train.batch_size
--config.train.learning_rate=fast
  --config.train.learning_rate=fast | a number is needed
--config.train.steps
  --config.train.steps has no value | --config.train.steps=VALUE
--config.stages=()
  config.stages is empty | known: prepare
--config.stages=train,encode
  config.stages=train,encode | ('train', 'encode')
--config.train.accumulation=1000
  config.train.accumulation=1000 | config.train.steps=600 | lower it
--config.model.hidden_size=100 --config.model.num_heads=8
  hidden_size=100 | num_heads=8 | 96 or 104
--config.data.lanes=6
  config.train.batch_size=128 | config.data.lanes=6 | take 126 or 132
--config.data.lanes=16
  config.data.lanes=16 | config.prepare.shards=8 | take 8 lanes
--config.train.batch_size=4
  config.train.batch_size=4 | number of devices, 8 | take 8
--config.train.batch_size=1 --config.data.lanes=1
  config.train.batch_size=1 | take at least 2
--config.train.chunk_size=48
  config.train.chunk_size=48 | batch_size=128 | take 32 or 64
--config.mesh.fsdp=3
  config.mesh.fsdp=3 | 8 devices | take 2 or 4
--config.mesh.rules="(('token_embedding', None),)"
  config.mesh.rules | None | data, fsdp
--config.mesh.rules="(('tokn_embedding', ('fsdp', None)),)"
  config.mesh.rules | 'tokn_embedding' | did you mean | token_embedding
--config.data.rates.ict=0 --config.data.rates.bfs=0 --config.data.rates.wlp=0
  config.data.rates | known: bfs, | config.data.rates.ict=1
--config.data.rates.mlm=1
  'mlm' | config.recipe=two_tower trains on pairs | config.data.rates.mlm=0
--config.data.rates.pairs=1
  'pairs' has no example | config.split.set | config.data.rates.pairs=0
--config.train.loss=triplet
  config.train.loss=triplet | config.data.negatives=1
--config.data.pack.query=0.5
  config.data.pack.document=0.0 | greater than 0
--config.data.pack.query=0.5 --config.data.pack.document=0.5 --config.data.pack.document_row=64
  config.data.pack.document_row=64 | 96 tokens
--config.data.pack.query=0.5 --config.data.pack.document=0.5
  config.data.lanes=4 | number of devices, 8 | take 8
--config.prepare.least_passage=200
  least_passage=200 | longest_passage=80 | lower the first
--config.prepare.held_out=0
  config.prepare.held_out | such as 0.2
--config.prepare.beam_options=region=x
  config.prepare.beam_options | 'region=x' | '--region=
--config.loop.validate_every=10
  config.loop.validate_every=10 | config.data.held_out, such as 0.01
--config.index.words="('bm52',)"
  unknown index in config.index.words 'bm52': did you mean bm25
--config.index.words="('scann',)"
  'scann' is an index of embeddings: name it in config.index.dense
--config.index.words="('bm25','bm25')"
  'bm25' is built twice; name it once
--config.index.words="('bm25_also',)"
  config.index.bm25_also=(): give the index bm25_also its k1
--config.evaluate.depth=10
  config.evaluate.depth=10 | Success@100 | at least 100
--config.evaluate.metrics="('RR@10','R@1000')"
  config.evaluate.depth=100 | the metric R@1000 | at least 1000
--config.sets.qa=corpus,{vocab.txt} --config.evaluate.metrics="('RR@10',)" --config.evaluate.depth=20
  config.evaluate.depth=20 | the metric Answer@100 | at least 100
--config.evaluate.metrics="('RR@10','ndcg@10')"
  config.evaluate.metrics | 'ndcg' | nDCG
--config.evaluate.metrics=RR@10,R@100
  config.evaluate.metrics | "('RR@10', 'R@1000')"
--workdir={indexed} --stage=search --query=zip --config.search.k=500
  config.search.k=500 | config.evaluate.depth=100
--stage=export
  stage 'export' reads what stage 'prepare' writes | --stage=prepare,train,export
--config=configs/bow_mlp.py:local --workdir={run} --stage=prepare,train,export
  config.model.encoder=bow_mlp is no module of sentence-transformers | config.model.encoder=transformer
--config=configs/mlm.py:local --workdir={run} --stage=prepare,train,export
  config.recipe=mlm | no towers | --config.train.init_from={run}
--config=configs/bm25.py:local --workdir={run} --stage=prepare,export
  nothing is trained | config.stages has no 'train'
$BM25,report --config.sets.beir={beir} --config.stages="('sets', 'report')"
  stage 'report' reads what stage 'evaluate' writes | no run has that | --stage=evaluate,report
--config=configs/bm25.py --workdir={run} --config.sets.beir={beir} --config.stages="('index', 'evaluate')"
  stage 'evaluate' reads what stage 'sets' writes | no run has that | --stage=sets,evaluate
--workdir={finished} --stage=similarity --config.similarity.lengths=512
  config.similarity.lengths=(512,) | config.data.document_length=96
--config=configs/mlm.py:local --workdir={run} --config.model.encoder=bow_mlp
  config.model.encoder is 'bow_mlp' | config.model.encoder=transformer
--config=configs/mlm.py:local --workdir={run} --config.loop.validate_every=10
  no towers to validate | config.loop.validate_every=0
--config=configs/mlm.py:local --workdir={run} --config.train.chunk_size=64
  config.train.chunk_size=64 | set 0
"""
)

FILES = mistakes(
    r"""
--config.corpus=
  config.corpus is not set | --config.corpus=pages-articles.xml.bz2
--config.corpus=pydoc
  pydoc: no such file | config.corpus | did you mean pydocs?
--config.sets.pydocs=False --config.corpus={folder}/dumb.xml
  dumb.xml: no such file | did you mean {folder}/dump.xml
--config.sets.pydocs=False --config.corpus={empty}
  {empty}: the file is empty | config.corpus
--config.sets.pydocs=False --config.corpus={array.json}
  {array.json} | expected a MediaWiki export | or documents, whose names end in .csv
--config.corpus={dump.xml}
  config.sets.pydocs | config.corpus=pydocs | --config.sets.pydocs=False
$DUMP --config.vocab={folder}/vocab.text
  vocab.text: no such file | config.vocab | did you mean {folder}/vocab.txt
$DUMP --config.vocab={text.txt}
  {text.txt} | [PAD] | a BERT vocab.txt
$DUMP --config.vocab={twice.txt}
  {twice.txt} | repeats the token 'fox' | drop one
$DUMP --config.sets.reqa={text.txt}
  {text.txt} | not valid JSON | a file of SQuAD is needed
$DUMP --config.sets.reqa={none.json}
  {none.json}: not one question with an answer | name a file of SQuAD
$DUMP --config.sets.reqa={cut.json.gz}
  {cut.json.gz} | cannot be read | copy or download it again
$DUMP --config.sets.reqa=tfds:squda
  unknown TFDS data set 'squda' | did you mean squad
$DUMP --config.sets.reqa=tfds:squad?data_dir={nowhere}
  data_dir '{nowhere}' is not a folder | squad/
$DUMP --config.sets.beir=tfds:scifact
  tfds:scifact: no such file or folder | config.sets.beir
$DUMP,tfds:wikipedia
  tfds:wikipedia as a Wikipedia of TensorFlow Datasets | prepare one kind in a run
$DUMP --config.vocab={cut.json.gz}
  {cut.json.gz} | not UTF-8 text | a BERT vocab.txt
$MIXED --stage=encode
  config.base={other_words} | trained with another vocabulary than {mixed}/corpus/vocab.txt
$DUMP --config.sets.beir={folder}
  {folder}: neither corpus.jsonl | a folder of config.sets.beir
$DUMP --config.sets.beir={unjudged}
  {unjudged}/qrels: no .tsv | such as test.tsv
$DUMP --config.sets.beir={beir},{folder}/two/beir
  two evaluation sets are named 'beir' | rename
$DUMP --config.sets.beir={folder}/two/corpus
  set is named 'corpus' | rename its folder or its file
$REQA --config.split.set=requa
  config.split.set | 'requa' | did you mean reqa | sets of config.base do not count
$REQA --config.split.set=
  'pairs' needs labelled examples | config.pairs.files | such as reqa
$DPR={text.txt}
  {text.txt}, line 1: no format | dpr, id_triples, jsonl, | look like
$DPR={ids.tsv}
  {ids.tsv}: triples of ids | set config.pairs.queries
$DPR={dpr.json} --config.split.shards=12
  config.data.lanes=8 | labelled pairs, config.split.shards=12 | take 6 or 12 lanes
$DPR={dpr.json} --config.data.rates.ict=1
  config.data.negatives=1 | only labelled examples | config.data.rates.ict=0
$DPR={dpr.json} --config.loop.wandb=mine
  config.loop.wandb=mine | wandb | pip install wandb
$DPR={dpr.json} --config.sets.msmarco={ids.tsv}
  config.sets.msmarco | 1 files, but three are needed | collection.tsv,queries.tsv,qrels.tsv
$MINED --config.split.set= --config.stages="('sets', 'index', 'mine')"
  training questions of a set | config.split.set | such as reqa
$MINED --config.mine.system=exact
  'mine' reads what stage 'encode' writes | in {finished}: run it
$ALONE --config.mine.system=exact
  'train' | no stage before 'mine' | config.mine.system=bm25
$ALONE --config.stages="('sets', 'mine', 'index', 'pairs')"
  config.mine.system=bm25 | put 'index' before 'mine' | config.base
$ALONE --config.mine.system=doc2query
  config.mine.system=doc2query: no such index is built | config.index.words=('bm25',): add it there
$MINED --config.data.negatives=50
  config.data.negatives=50 | config.mine.negatives=20, so | twice | raise the second
$MINED --config.mine.refresh_every=300
  config.mine.refresh_every=300 | config.train.steps=300
$REFRESHED --config.data.negatives=0
  config.mine.refresh_every=100 | config.data.negatives=0 | config.data.negatives=1 or more
$REFRESHED --config.pairs.files={dpr.json}
  config.mine.refresh_every=100 | config.pairs.files={dpr.json} | one of the two
$REFRESHED --config.mine.refresh_lag=100
  config.mine.refresh_lag=100 | config.mine.refresh_every=100 | lower the first
$MINED --config.mine.refresh_every=200 --config.mine.refresh_lag=100
  config.mine.refresh_lag=100 | never be trained on | config.train.steps=300
$LAGGED --config.mine.refresh_env="('LD_PRELOAD=evil.so',)"
  'LD_PRELOAD' | config.mine.refresh_env | JAX_PLATFORMS
$LAGGED --config.mine.refresh_env="('1',)"
  config.mine.refresh_env | '1' sets no variable | NAME=VALUE
$REFRESHED --config.mine.refresh_env="('CUDA_VISIBLE_DEVICES=1',)"
  config.mine.refresh_env | config.mine.refresh_lag=0 | config.mine.refresh_lag=50
$MINED --config.mine.refresh_lag=50
  config.mine.refresh_lag | config.mine.refresh_every=0
$ALONE --config.mine.answers=True --config.sets.beir={beir} --config.split.set=beir
  config.mine.answers=True | set 'beir' have no answers | those of reqa and nq | answers.jsonl
--config=configs/bm25.py --workdir={run} --config.sets.qa={nq.jsonl}
  config.sets.qa={nq.jsonl}: 1 files, but two are needed, of passages, questions
--config=configs/bm25.py --workdir={run} --config.sets.qa=corpus,{nq.jsonl}
  'corpus' is the prepared corpus | add 'prepare' to config.stages | config.base
--config=configs/bm25.py --workdir={run} --config.sets.qa={ids.tsv},{nq.jsonl} --config.split.set=qa
  config.split.set=qa | no positive to train on | such as reqa
$MINED --stage=mine
  'mine' reads what stage 'sets' writes | --stage=sets,index,mine
$OLDER --config.stages="('mine', 'pairs')"
  'mine' would read what stage 'index' made in {older_index} before | again in {older_index}: --stage=encode,index
$REQA --config.vocab={nowhere}
  config.vocab: no stage of this run reads it, but 'prepare' | of the base, {finished} | add 'prepare'
--config=configs/reqa.py:local --workdir={run} --config.base={nowhere} --config.sets.reqa={squad.json}
  config.base={nowhere} | not a work directory
--config=configs/reqa.py:local --workdir={circle_a} --config.base={circle_b}
  leads back to | take another base
$REQA --config.train.init_from=bert-base-uncased
  config.train.init_from=bert-base-uncased: no such folder | a work directory | are not downloaded
$REQA --config.train.init_from={folder}
  config.train.init_from={folder}: no config.json there | config.json beside model.safetensors
$REQA --config.train.init_from={untrained}
  config.train.init_from={untrained} | finished train stage
$REQA --config.train.init_from={finished} --config.model.hidden_size=64
  config.train.init_from={finished} | config.model.hidden_size is 128 there and 64 here | take the same
$REQA --config.train.init_from={finished} --config.data.document_length=160
  config.train.init_from={finished}: an encoder of 96 positions |
  config.data.query_length and config.data.document_length there, and here that is 160 | set both to 96 at most
$REQA --config.train.init_from={finished} --config.model.encoder=bow_mlp
  config.train.init_from={finished} | config.model.encoder is transformer there and bow_mlp here
$REQA --config.train.init_from={bert}
  config.train.init_from={bert}: a model of other sizes | --config.model.hidden_size=16
$REQA $BERT
  config.train.init_from={bert} | another vocabulary than {finished}/corpus/vocab.txt | --config.vocab={bert}
$LABELLED $BERT
  there is no vocabulary | config.vocab to a vocabulary | config.base | add 'prepare' to config.stages
$LABELLED --config.vocab={vocab.txt} --config.data.negatives=0 --config.data.rates.ict=1
  task 'ict' is drawn from a prepared corpus | config.base | config.data.rates.ict=0
$REQA $BERT,{nowhere} --config.model.tied=False
  {nowhere} is no folder of BERT's weights
$REQA --config.train.init_from={bert_without}
  {bert_without}: no weights there | model.safetensors
$REQA --config.train.init_from={bert_relative}
  {bert_relative}/config.json: position_embedding_type is 'relative_key' | 'absolute'
--config.model.embed_dim=0 --config.model.encoder=bow_mlp
  config.model.embed_dim=0 | =512
--config.model.embed_norm=True --config.model.encoder=bow_mlp
  config.model.embed_norm=True | set config.model.embed_norm=False
$REQA --stage=prepare
  stage 'prepare' is one of the base | run it there
$REQA --stage=train
  'train' reads what stage 'pairs' writes | has not run | --stage=sets,pairs,train
--stage=evaluate
  'evaluate' reads what stage 'sets' writes | --stage=prepare,sets,train,encode,index,evaluate
--config=ict_bfs_wlp:local --workdir={run} --config.base={finished} --stage=sets,encode
  config.stages has 'prepare' | config.base={finished} | --config.stages="('sets', 'encode')"
--stage=train,prepare
  'train' comes before 'prepare' | --stage=prepare,train
--stage=search --query=zip
  'search' reads what stage 'index' writes | --stage=prepare,sets,train,encode,index,search
--workdir={squad.json}
  --workdir={squad.json} | is a file | use another --workdir
--workdir=/proc/run
  /proc/run | --workdir
--workdir=gss://bucket/run
  unknown scheme of gss://bucket/run | 'gss' | did you mean gs
--workdir=gs://
  gs://: no bucket | such as gs://bucket/run
--workdir=az://bucket/run
  az://bucket/run: the package adlfs is not installed | pip install adlfs
--workdir={folder}
  {folder} is not empty and not a work directory | use another --workdir
--config=configs/ict.py:local --workdir={array}
  {array}/config.json: not the config of a run | --workdir
--workdir={record} --stage=train
  {record}/stages/prepare.json: damaged | delete it | --stage=prepare
"""
)


def one_field_of_each_kind():
    """What no value of a kind may be -> what is needed; the value is given to a field of the kind."""
    experiment.defaults()  # declares them all
    found = {}
    for path, field in declared().items():
        wrong = (-1, 1e50, -1.0, 99.0, "no such") if type(field.default) in (int, float, str) else ((-1,), ("x",))
        fitting = [value for value in wrong if type(value) is type(field.default) and not field.kind.fits(value)]
        if fitting:
            found.setdefault(field.kind.needed, (path, fitting[0]))
    return found.items()


@pytest.mark.parametrize(("needed", "given"), one_field_of_each_kind())
def test_a_value_that_a_field_cannot_have(needed, given, answer):
    path, value = given
    shown = f'"{value!r}"' if isinstance(value, tuple) else shlex.quote(str(value))
    mistake = Mistake(f"--config.{path}={shown}", (f"config.{path}", needed))
    check(mistake, *answer(typed(mistake.typed, answer.paths)), answer.paths)


# Found only by the work itself, which is the first to read so far.
IN_A_STAGE = mistakes(
    r"""
$BM25 --config.sets.beir={bad_grade}
  {bad_grade}/qrels/test.tsv, line 2 | 'high' is not an integer | write 1
$BM25 --config.sets.beir={same_ids}
  {same_ids}/corpus.jsonl, line 2 | 'd1' is there twice | must be distinct
$BM25 --config.sets.labelled={bad_dpr.json}
  {bad_dpr.json}, record 1, positive_ctxs 1 | 'text' is missing or not a string
$BM25 --config.sets.labelled={bad.jsonl}
  {bad.jsonl}, line 2 | one of positive, positives
$BM25 --config.sets.msmarco={ids.tsv},{ids.tsv},{ids.tsv}
  {ids.tsv}, line 1: 3 fields, expected 2 | query id, query
$BM25 --config.sets.qa={ids.tsv},{ids.tsv}
  {ids.tsv}, line 1 | no format of questions | 3 fields
$BM25 --config.sets.qa={ids.tsv},{trec.tsv}
  {trec.tsv}, line 2 | 'a(' is no regular expression | mend it, or drop it
$BM25 --config.sets.reqa={squad.json} --config.split.set=reqa --config.split.ratio=0.01
  config.split.ratio=0.01 | 0 train | choose others, or a larger set
$BM25 --config.sets.reqa={squad.json} --config.sets.distractors=10
  config.sets.distractors=10 | a prepared corpus
--workdir={finished_corpus} --stage=train --config.data.lanes=8 --config.train.batch_size=4096
  150 examples | config.train.batch_size=4096 | a smaller batch
--workdir={indexed} --stage=search
  --stage=search needs a query | --query='how do I
--workdir={indexed} --stage=search --query=zip
  {indexed} | no index of the corpus | encode.corpus=True
"""
)

STUDY = mistakes(
    r"""
--config=configs/ict.py:local --workdir={run}
  --config is missing, or not that of a study | configs/studies/
--config=configs/studies/pretraining_tasks.py:locl --workdir={run}
  'locl' | did you mean local
$TASKS --workdir={run} --config.corpus=pydocs --only=corpsu
  unknown run 'corpsu' | did you mean corpus
$TASKS --workdir=gs://bucket/study
  --workdir=gs://bucket/study | share a folder, which must be on a disk
$TASKS --workdir={run} --config.parallel=0
  config.parallel=0 | at least 1
$TASKS --workdir={run} --config.runs.corpus.prepare.shards=0
  run 'corpus' | config.prepare.shards=0 | at least 1
$TASKS --workdir={run} --config.corpus=pydocs
  run 's0-1-bm25' of the study: unknown set | config.questions | of the study: empty
$SEEDS --workdir={run} --config.corpus=pydocs --config.questions={folder}/squad.jsn
  run 's0-10-search' of the study: {folder}/squad.jsn: no such file | did you mean {folder}/squad.json
$TASKS --workdir={folder}/.. --config.corpus=pydocs --config.questions={squad.json} --only=corpus
  holds runs of another table | not a run of this study | use another --workdir
"""
)

POD = [
    ({"JAX_NUM_PROCESSES": "two"}, ("JAX_NUM_PROCESSES='two': not a number", "such as 1")),
    ({"JAX_PROCESS_ID": "first", "JAX_NUM_PROCESSES": "2"}, ("JAX_PROCESS_ID='first': not a number", "such as 1")),
]

# In a process of their own, as people see them.
WHOLE = mistakes(
    r"""
--config=configs/ict.py:local --workdir={run} --config.trian.steps=5
  did you mean config.train
--config=configs/ict.py:local --workdir={run} --multihost
  --multihost: the hosts cannot be joined | JAX_COORDINATOR_ADDRESS
"""
)

LOCK = REPOSITORY / "requirements.lock"


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Files and folders to name by mistake: name -> path."""
    root = tmp_path_factory.mktemp("mistakes")
    folder = root / "inputs"
    folder.mkdir()
    toy_corpus.write_dump(folder / "dump.xml")
    toy_corpus.write_squad(folder / "squad.json")
    lines = [*SPECIAL_TOKENS, *("fox dog cat owl".split())]
    texts = {
        "empty": "",
        "text.txt": "Nothing but words.\n",
        "page.html": "<html><body>Not found</body></html>",
        "array.json": "[]",
        "none.json": '{"data": []}',
        "ids.tsv": "1\t2\t3\n",
        "nq.jsonl": '{"question": "q", "answer": ["a"]}\n',
        "trec.tsv": "1\tfactoid\tq\ta\n2\tfactoid\tr\ta(\n",
        "dpr.json": '[{"question": "q", "positive_ctxs": [{"text": "a"}]}]',
        "bad_dpr.json": '[{"question": "q", "positive_ctxs": [{"text": 3}]}]',
        "bad.jsonl": '{"query": "q", "positive": "a"}\n{"query": "q"}\n',
        "vocab.txt": "\n".join(lines),
        "twice.txt": "\n".join([*lines, "fox"]),
        "raises.py": "def get_config():\n    return undefined\n",
        "no_size.py": "def get_config():\n    return None\n",
        "typo.py": config_file("config.train.batchsize = 5"),
        "lacks.py": config_file("del config.train.steps"),
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "cut.json.gz").write_bytes(gzip.compress(b"{" * 1000)[:-9])
    write_sets(folder)
    write_bert(folder)
    write_runs(folder.parent, folder)
    paths = {path.name: path for path in [*folder.iterdir(), *root.iterdir()]}
    return {**paths, "folder": folder, "nowhere": folder / "nowhere"}


def config_file(line):
    body = f"    config = ict.get_config('local')\n    {line}\n    return config\n"
    return f"from configs import ict\n\n\ndef get_config():\n{body}"


def write_sets(folder):
    """BEIR folders: a good one, its double, and one for each of the mistakes in them."""
    good = {
        "corpus.jsonl": '{"_id": "d1", "text": "one"}\n{"_id": "d2", "text": "two"}\n',
        "queries.jsonl": '{"_id": "q1", "text": "one?"}\n',
        "qrels/test.tsv": "query-id\tcorpus-id\tscore\nq1\td1\t1\n",
    }
    bad = {
        "beir": {},
        "two/beir": {},
        "two/corpus": {},
        "unjudged": {"qrels/test.tsv": None},
        "bad_grade": {"qrels/test.tsv": "query-id\tcorpus-id\tscore\nq1\td1\thigh\n"},
        "bad_query": {"qrels/test.tsv": "query-id\tcorpus-id\tscore\nq9\td1\t1\n"},
        "bad_line": {"corpus.jsonl": '{"_id": "d1", "text": "one"}\n{"_id"\n'},
        "same_ids": {"corpus.jsonl": '{"_id": "d1", "text": "one"}\n{"_id": "d1", "text": "two"}\n'},
    }
    for name, changes in bad.items():
        for path, text in (good | changes).items():
            (folder / name / path).parent.mkdir(parents=True, exist_ok=True)
            if text is not None:
                (folder / name / path).write_text(text)


def write_bert(folder):
    """A folder of weights, and those with one mistake each."""
    bert = shutil.copytree(REPOSITORY / "tests" / "golden" / "bert", folder / "bert")
    (bert / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, *(f"w{number}" for number in range(45))]))
    (shutil.copytree(bert, folder / "bert_without") / "model.safetensors").unlink()
    config = json.loads((bert / "config.json").read_text()) | {"position_embedding_type": "relative_key"}
    (shutil.copytree(bert, folder / "bert_relative") / "config.json").write_text(json.dumps(config))


def write_runs(root, folder):
    """Work directories, as if their stages had run."""
    words = (folder / "vocab.txt").read_text()
    finished(root / "finished", words, "prepare", "sets", "train")
    finished(root / "finished_corpus", words, "prepare", "sets")
    finished(root / "indexed", words, "prepare", "sets", "train", "encode", "index")
    run = finished(root / "older_index", words, "prepare", "sets", "train", "encode", "index")
    records.write_record(run, "sets", records.read_record(run, "sets") | {"outputs": {"sets/pydocs": "another sum"}})
    finished(root / "other_words", words.replace("fox", "fax"), "prepare", "train")
    finished(root / "untrained", words, "prepare")
    finished(root / "mixed", words, "prepare", "sets")
    for name, base in (("circle_a", "circle_b"), ("circle_b", "circle_a")):
        finished(root / name, words, config="reqa", base=str(root / base))
    finished(root / "record", words, "prepare", "sets")
    (root / "record" / "stages" / "prepare.json").write_text('{"done": true}')
    older = json.loads((root / "finished" / "config.json").read_text())
    del older["data"]["pack"]
    oldest = {name: value for name, value in older.items() if name != "recipe"}
    texts = {"damaged": "{", "array": "[]", "older": json.dumps(older), "oldest": json.dumps(oldest)}
    for name, text in texts.items():
        (root / name).mkdir()
        (root / name / "config.json").write_text(text)


def finished(folder, words, *stages, config="ict_bfs_wlp", base=""):
    config = importlib.import_module(f"configs.{config}").get_config("local")
    config.base = base
    (folder / "corpus").mkdir(parents=True)
    (folder / "config.json").write_text(config.to_json())
    (folder / "corpus" / "vocab.txt").write_text(words)
    tasks = {task: {"pairs": 50} for task in ("ict", "bfs", "wlp", "mlm")}
    (folder / "corpus" / "stats.json").write_text(json.dumps({"tasks": tasks}))
    record = {"done": True, "seconds": 1, "peak_memory_mb": 1, "details": {"step": 1}, "outputs": {}}
    run = Run(config, folder, LOCK)
    for stage in stages:
        made_with = {
            "settings": records._settings(run, STAGES[stage]),
            "stages": records._made(run, stage),
        }
        records.write_record(run, stage, record | {"inputs": made_with})
    return run


def fill(text, paths):
    """Puts paths in the place of names in braces."""
    return re.sub(r"{([\w.]+)}", lambda match: str(paths[match[1]]), text)


def typed(arguments, paths):
    """The arguments as the shell would give them, with those of the quickstart where there are none."""
    given = [word for word in SHORT["QUICK"].split() if f"{word.partition('=')[0]}=" not in arguments]
    return shlex.split(fill(" ".join([*given, arguments]), paths))


@pytest.fixture
def answer(inputs, tmp_path, monkeypatch, capsys):
    """What a command says in the end, of which the first stage must not begin."""
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setattr(hosts, "heed_sigterm", lambda: None)  # a thread for each would stay

    def call(words, command=main, may_begin=False):
        if not may_begin:
            monkeypatch.setattr(runner, "run_stage", begins)
            monkeypatch.setattr(study.Execution, "run", begins)
        forget_flags()
        monkeypatch.setattr(sys, "argv", ["command", *words])
        with pytest.raises(SystemExit) as end:
            command_line.run(command.main)
        return end.value.code, capsys.readouterr().err

    call.paths = inputs | {"run": tmp_path / "run"}
    return call


def begins(*_, **__):
    raise AssertionError("the mistake was not noticed")


def check(mistake, status, told, paths):
    """Status 2 and one message: short, without a stack trace, and with all that helps."""
    assert status == 2, told
    assert len(re.findall("^error: ", told, re.MULTILINE)) == 1 and "Traceback" not in told, told
    message = re.split("^error: ", told, flags=re.MULTILINE)[1].rstrip()
    lines = [math.ceil(len(line) / COLUMNS) for line in message.splitlines()]
    assert sum(lines) <= LINES, message
    for word in mistake.says:
        assert fill(word, paths) in message, message


@pytest.mark.parametrize("mistake", FLAGS, ids=lambda mistake: mistake.typed)
def test_in_flags(mistake, answer):
    check(mistake, *answer(shlex.split(fill(mistake.typed, answer.paths))), answer.paths)
    assert not answer.paths["run"].exists()


@pytest.mark.parametrize("mistake", [*FIELDS, *FILES], ids=lambda mistake: mistake.typed)
def test_before_anything_begins(mistake, answer):
    check(mistake, *answer(typed(mistake.typed, answer.paths)), answer.paths)
    assert not answer.paths["run"].exists()


@pytest.mark.parametrize("mistake", IN_A_STAGE, ids=lambda mistake: mistake.typed)
def test_in_the_first_stage(mistake, answer):
    check(mistake, *answer(typed(mistake.typed, answer.paths), may_begin=True), answer.paths)


@pytest.mark.parametrize("mistake", STUDY, ids=lambda mistake: mistake.typed)
def test_in_a_study(mistake, answer):
    check(mistake, *answer(shlex.split(fill(mistake.typed, answer.paths)), study), answer.paths)


@pytest.mark.parametrize(("environment", "says"), POD)
def test_in_a_pod(environment, says, answer, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    check(Mistake("--multihost", says), *answer(typed("--multihost", answer.paths)), answer.paths)


def test_in_a_pod_on_a_store(answer, monkeypatch):
    monkeypatch.setattr(hosts, "count", lambda: 4)
    says = ("--workdir=gs://bucket/run: 4 hosts", "a disk that all of them share")
    mistake = Mistake("--workdir=gs://bucket/run", says)
    check(mistake, *answer(typed(mistake.typed, answer.paths)), answer.paths)


@pytest.mark.parametrize("mistake", WHOLE, ids=lambda mistake: mistake.typed)
def test_in_a_process_of_its_own(mistake, inputs, tmp_path):
    paths = inputs | {"run": tmp_path / "run"}
    command = [sys.executable, "-m", "retrieval.main", *shlex.split(fill(mistake.typed, paths))]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    check(mistake, done.returncode, done.stderr, paths)
