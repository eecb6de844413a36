"""Answers in the place of gcloud, xpk, Slurm and Python: notes its arguments, and says what it was told to."""

# No more is imported at first: hundreds of these are started.
import json
import os
import sys

ROOT = os.environ["STAND_IN_ROOT"]
TOOL, ARGV = os.path.basename(sys.argv[0]), sys.argv[1:]


def path(*names):
    return os.path.join(ROOT, *names)


def read(*names):
    with open(path(*names)) as file:
        return file.read()


def write(text, *names):
    with open(path(*names), "w") as file:
        file.write(text)


def hosts():
    return [path("hosts", name) for name in sorted(os.listdir(path("hosts")))]


def answer(key):
    """The next of the answers for this key; the last one stays."""
    file = key.replace(" ", "_").replace("/", "_")
    answers = json.loads(read("answers", file)) if os.path.exists(path("answers", file)) else [{}]
    if len(answers) > 1:
        write(json.dumps(answers[1:]), "answers", file)
    if "term" in answers[0]:
        __import__("signal").signal(15, lambda *_: sys.exit(answers[0]["term"]))
    record(key)
    while "until" in answers[0]:
        __import__("time").sleep(0.01)
    if "out" in answers[0]:
        print(answers[0]["out"], flush=True)
    return answers[0].get("code", 0)


def record(key):
    wanted = ("GLIBC_TUNABLES", "JAX_LOCAL_DEVICE_IDS", "SRUN_CPUS_PER_TASK")
    wanted += ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")
    call = {"key": key, "argv": [TOOL, *ARGV], "host": os.path.basename(os.environ["HOME"]), "pid": os.getpid()}
    call["environment"] = {name: os.environ[name] for name in wanted if name in os.environ}
    with open(path("calls.jsonl"), "a") as file:
        file.write(json.dumps(call) + "\n")


def gcloud():
    if ARGV[0] == "config":
        return answer(f"config {ARGV[2]}")
    if ARGV[0] == "storage":
        return answer("storage cp")
    group, verb = ARGV[2:4]
    if verb == "ssh":
        return ssh(next(a for a in ARGV if a.startswith("--command=")).removeprefix("--command="))
    code = answer(f"{group} {verb}")
    if verb == "list" and os.path.exists(path(group)):
        print(f"projects/p/locations/z/{group}/{read(group)}")
    if verb == "create":
        for kind in ("queued-resources", "tpu-vm"):
            write(ARGV[4], kind)
    if verb == "delete" and not code:
        os.unlink(path(group))
        if os.path.exists(path("tpu-vm")):
            os.unlink(path("tpu-vm"))
    if verb == "scp" and "--recurse" not in ARGV:
        for host in hosts():
            copy(ARGV[4], os.path.join(host, ARGV[5].split(":")[1]))
    return code


def copy(source, target):
    import shutil

    shutil.copy(source, target)


def ssh(command):
    import subprocess

    code = answer("ssh run" if "worker.sh start" in command else "ssh prepare")
    for host in hosts():
        there = subprocess.run(["bash", "-c", command], cwd=host, env={**os.environ, "HOME": host})
        code = code or there.returncode
    return code


def sbatch():
    """Runs the job as Slurm does: a copy of the script, from elsewhere, in the folder of --chdir."""
    import subprocess

    code = answer("sbatch")
    script = next(i for i, a in enumerate(ARGV) if not a.startswith("-"))
    copy(ARGV[script], path("slurm_script"))
    options = dict(a.split("=", 1) for a in ARGV[:script] if "=" in a)
    environment = {**os.environ, "SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": options["--cpus-per-task"]}
    command = ["bash", path("slurm_script"), *ARGV[script + 1 :]]
    job = subprocess.run(command, cwd=options["--chdir"], env=environment)
    write(str(job.returncode), "job_code")
    return code


def srun():
    record("srun")
    program = next(i for i, a in enumerate(ARGV) if not a.startswith("-"))
    os.execv(ARGV[program], ARGV[program:])


def python():
    if ARGV[:2] == ["-m", "venv"]:
        os.makedirs(os.path.join(ARGV[2], "bin"))
        copy(sys.argv[0], os.path.join(ARGV[2], "bin", "python"))
    module = ARGV[1] if ARGV[0] == "-m" else "python"
    return answer({"retrieval.main": "main"}.get(module, module))


special = {"gcloud": gcloud, "sbatch": sbatch, "srun": srun, "python": python, "python3.11": python}
sys.exit(special.get(TOOL, lambda: answer(TOOL))())
