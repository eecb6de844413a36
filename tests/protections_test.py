"""Every protection that docs/reliability.md names is taken out, one at a time, and its test has to notice.

    .venv/bin/python -m pytest -m long tests/protections_test.py

Each runs in a copy of the repository in which one piece of code has been changed.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from typing import NamedTuple

import pytest
from conftest import REPOSITORY

# Seconds in which a test has to notice; one that hangs has noticed as well.
_PATIENCE = 500


class Protection(NamedTuple):
    """A piece of code against a fault, what is left without it, and the test that must fail then."""

    fault: str
    file: str
    code: str
    without: str
    test: str


PROTECTIONS = [
    Protection(
        "kill: position in the data",
        "training/checkpoint.py",
        "args.data.restore(directory)",
        "pass",
        "faults_test.py::test_a_run_that_is_killed_many_times_ends_as_if_it_had_not_been",
    ),
    Protection(
        "kill: half a file",
        "files.py",
        'temporary = path.with_name(f"{_TEMPORARY}{os.getpid()}-{path.name}")',
        "temporary = path",
        "files_test.py::test_an_interrupted_write_leaves_what_was_there",
    ),
    Protection(
        "kill: leftovers",
        "search/encode.py",
        'files.remove_temporaries(folder, f"{path.stem}.*")',
        "pass",
        "encode_test.py::test_what_a_kill_left_of_our_shards_is_removed_and_nothing_of_another_process",
    ),
    Protection(
        "kill: version of the negatives",
        "stages/versions.py",
        "if (version := files.read_json(folder / _VERSION)) != self._version:",
        "if (version := 0) != self._version:",
        "refresh_test.py::test_batches_turn_with_the_step_and_a_checkpoint_says_which_they_are",
    ),
    Protection(
        "kill: parameters that are being mined with",
        "training/checkpoint.py",
        "policies.append(_NewestMultiple(every))",
        "pass",
        "refresh_test.py::test_a_run_that_is_cut_off_within_a_lag_ends_as_if_it_had_not_been",
    ),
    Protection(
        "kill: a second process that fails",
        "stages/refresh.py",
        "if code not in (None, 0, hosts.EXIT_CODE):",
        "if False:",
        "refresh_test.py::test_how_the_second_process_ends_is_how_training_does",
    ),
    Protection(
        "kill: a second process that is left alone",
        "stages/inferencer.py",
        "hosts.end_with_input()",
        "pass",
        "refresh_test.py::test_the_second_process_ends_with_the_first_and_the_first_with_it",
    ),
    Protection(
        "SIGTERM: saved and told",
        "hosts.py",
        "signal.signal(signal.SIGTERM, _interrupt)",
        "pass",
        "faults_test.py::test_sigterm_ends_a_run_with_the_code_to_start_it_again",
    ),
    Protection(
        "SIGTERM: gone in time",
        "hosts.py",
        "time.sleep(_GRACE)\n        os._exit(EXIT_CODE)",
        "pass",
        "faults_test.py::test_a_process_that_does_not_hear_is_gone_in_time",
    ),
    Protection(
        "study: runs that are saving",
        "study.py",
        "running.process.wait()",
        "pass",
        "study_test.py::test_an_interrupted_study_ends_when_its_runs_are_gone",
    ),
    Protection(
        "study: runs that are left alone",
        "study_run.py",
        "hosts.end_with_input()",
        "pass",
        "study_test.py::test_a_run_ends_with_its_study",
    ),
    Protection(
        "pod: news of an end",
        "hosts.py",
        "threading.Thread(target=_listen, args=[_pod], daemon=True).start()",
        "pass",
        "pod_test.py::test_an_error_of_one_process_ends_the_others_with_its_message_and_code",
    ),
    Protection(
        "pod: a host that is silent",
        "silence.py",
        "before = set_terminate(_handler)",
        "before = lambda: None",
        "pod_test.py::test_a_process_that_loses_another_while_one_is_at_work_ends",
    ),
    Protection(
        "other hosts or devices",
        "data/batches.py",
        "np.random.SeedSequence([seed, number])",
        "np.random.SeedSequence([seed, number, len(sharding.device_set)])",
        "tasks_test.py::test_same_batches_whatever_the_number_of_devices",
    ),
    Protection(
        "a folder that is moved",
        "data/tasks.py",
        ", record, reader_cls=read)",
        ", record)",
        "tasks_test.py::test_a_position_goes_with_the_files_to_another_folder",
    ),
    Protection(
        "hard pages",
        "data/wikimarkup.py",
        "_refuse_hard(text)\n",
        "\n",
        "hostile_test.py::test_nasty_pages",
    ),
    Protection(
        "a dump that is cut off",
        "data/wikipedia.py",
        'export.parser.Parse(b"", True)',
        "pass",
        "hostile_test.py::test_a_cut_at_any_byte_is_noticed",
    ),
    Protection(
        "entities",
        "data/wikipedia.py",
        'raise UserError(f"{self._path}: declares a document type',
        'str(f"{self._path}: declares a document type',
        "hostile_test.py::test_entities_are_refused",
    ),
    Protection(
        "broken input",
        "data/beir.py",
        "except ValueError as error:\n        raise UserError(f\"{at}: the score '{text}' is not an integer",
        "except ZeroDivisionError as error:\n        raise UserError(f\"{at}: the score '{text}' is not an integer",
        "fuzz_test.py::test_judgements_of_a_beir_folder",
    ),
    Protection(
        "users' mistakes",
        "stages/check.py",
        "settings.check_combinations(run.config, names)",
        "pass",
        "mistakes_test.py::test_before_anything_begins",
    ),
    Protection(
        "code in data",
        "files.py",
        "array = np.load(path, allow_pickle=False)",
        "array = np.load(path, allow_pickle=True)",
        "security_test.py::test_pickled_data_is_refused_and_not_run",
    ),
    Protection(
        "text on a terminal",
        "command_line.py",
        "return terminal.printable(super().format(record))",
        "return super().format(record)",
        "security_text_test.py::test_errors_and_the_log_leave_a_terminal_alone",
    ),
    Protection(
        "damage: a name twice",
        "files.py",
        ", object_pairs_hook=_unambiguous)",
        ")",
        "files_test.py::test_no_flipped_bit_of_a_manifest_hides_a_file",
    ),
    Protection(
        "damage: sums of files",
        "files.py",
        "if now[name] != expected:",
        "if False:",
        "faults_test.py::test_a_thousand_damages_are_all_seen",
    ),
    Protection(
        "damage: sums are asked for",
        "stages/runner.py",
        'files.verify_checksums(holder.folder, record.get("outputs", {}), remedy)',
        "pass",
        "faults_test.py::test_what_is_damaged_is_not_read",
    ),
    Protection(
        "damage: the newest checkpoint",
        "training/checkpoint.py",
        'files.verify_manifest(folder / str(step), "of no use")',
        "pass",
        "loop_test.py::test_a_damaged_checkpoint_gives_way_to_the_one_before",
    ),
    Protection(
        "a disk that takes no checkpoint",
        "training/loop.py",
        "checkpointer.check()",
        "pass",
        "loop_test.py::test_a_checkpoint_that_cannot_be_written_ends_the_run_and_spoils_no_other",
    ),
    Protection(
        "a folder that goes away",
        "training/checkpoint.py",
        'raise FileNotFoundError("its folder was moved or deleted meanwhile")',
        "pass",
        "loop_test.py::test_a_folder_that_goes_away_under_a_run_ends_it_at_the_next_step",
    ),
    Protection(
        "two runs in one folder",
        "files.py",
        "fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "pass",
        "faults_test.py::test_a_second_run_in_the_same_folder_is_refused",
    ),
    Protection(
        "store: the manifest comes last",
        "mirror.py",
        "all_of(self._put, data)\n        for name in reversed(manifests):",
        "for name in [*manifests, *data]:",
        "mirror_test.py::test_wherever_a_machine_dies_the_store_is_good_to_go_on_from",
    ),
    Protection(
        "store: half a checkpoint",
        "mirror.py",
        "if not _is_below(name, _SEALED) or",
        "if True or",
        "mirror_test.py::test_what_is_half_copied_is_left_out_and_removed",
    ),
    Protection(
        "store: an older disk",
        "mirror.py",
        "self._counts = self.lease.before == self._owner and",
        "self._counts =",
        "mirror_test.py::test_what_another_machine_wrote_behind_the_same_checkpoint_stays",
    ),
    Protection(
        "store: a byte that flips",
        "files.py",
        "if now[name] != expected:",
        "if False:",
        "mirror_test.py::test_a_flipped_byte_on_the_store_is_noticed",
    ),
    Protection(
        "store: a disk that is put back",
        "mirror.py",
        " and _newest(self._there) <= _newest(self.checkpoints())",
        "",
        "mirror_test.py::test_a_disk_that_is_put_back_makes_nothing_older_on_the_store",
    ),
    Protection(
        "store: a copy that fails",
        "mirror.py",
        "self._failure = error",
        "pass",
        "mirror_test.py::test_a_copy_that_fails_in_the_background_ends_the_run",
    ),
    Protection(
        "store: the last checkpoint",
        "training/checkpoint.py",
        "self._follower.wait()",
        "pass",
        "mirror_test.py::test_the_last_checkpoint_is_on_the_store_when_a_preempted_run_ends",
    ),
    Protection(
        "store: two runs",
        "lease.py",
        "if until > time.time():",
        "if False:",
        "mirror_test.py::test_a_second_run_is_refused",
    ),
    Protection(
        "store: a lease that is taken",
        "lease.py",
        "if owner not in (self._owner, None):",
        "if False:",
        "mirror_test.py::test_a_run_whose_lease_is_taken_ends",
    ),
    Protection(
        "not finite: the update",
        "training/loop.py",
        "finite = jnp.isfinite(value) & jnp.isfinite(norm)",
        "finite = jnp.array(True)",
        "loop_test.py::test_an_update_that_is_not_finite_is_skipped",
    ),
    Protection(
        "not finite: the gradient",
        "training/loop.py",
        " & jnp.isfinite(norm)",
        "",
        "loop_test.py::test_a_gradient_that_is_not_finite_is_skipped_whatever_the_loss",
    ),
    Protection(
        "not finite: many in a row",
        "training/loop.py",
        "if int(skipped) < self._settings.max_skipped:",
        "if True:",
        "loop_test.py::test_too_many_in_a_row_end_the_run_and_leave_a_good_checkpoint",
    ),
    Protection(
        "BERT's weights",
        "models/hugging_face.py",
        'if type(value) is not (float if ours == "layer_norm_epsilon" else int) or value <= 0:',
        "if False:",
        "weights_fuzz_test.py::test_configs",
    ),
    Protection(
        "not finite: embeddings",
        "search/encode.py",
        "if not np.isfinite(values_BE).all():",
        "if False:",
        "encode_test.py::test_embeddings_that_are_not_finite_are_refused",
    ),
]


def test_every_protection_is_in_the_code_once():
    for protection in PROTECTIONS:
        assert (REPOSITORY / "retrieval" / protection.file).read_text().count(protection.code) == 1, protection.fault


def test_the_docs_name_every_test_and_every_row_has_a_protection_that_is_tried():
    table = (REPOSITORY / "docs" / "reliability.md").read_text()
    tests = {protection.test.partition("::")[2] for protection in PROTECTIONS}
    for name in tests:
        assert f"`{name}`" in table, name
    rows = [line for line in table.splitlines() if line.startswith("| ") and not line.startswith("| fault |")]
    for row in rows:
        assert any(f"`{name}`" in row for name in tests), row


@pytest.mark.long
@pytest.mark.parametrize("protection", PROTECTIONS, ids=lambda protection: protection.fault)
def test_without_it_a_test_fails(protection, tmp_path):
    copy = tmp_path / "repository"
    shutil.copytree(REPOSITORY, copy, ignore=shutil.ignore_patterns(".*", "runs", "__pycache__"))
    path = copy / "retrieval" / protection.file
    path.write_text(path.read_text().replace(protection.code, protection.without))
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "", f"tests/{protection.test}"]
    environment = os.environ | {"RETRIEVAL_TEST_DATA": str(REPOSITORY.parent / "shared" / "data")}
    given = dict(cwd=copy, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    with subprocess.Popen(command, start_new_session=True, **given) as process:
        try:
            said, _ = process.communicate(timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            return
        finally:  # a process that nothing ends any more, too
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 1 and " failed" in said, said[-2000:]
