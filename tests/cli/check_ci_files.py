"""The ready files for GitHub Actions, GitLab CI and containers: parsed, and every step of theirs run in a plain directory.

All must come to what the shell form makes (share/ci/quantize.sh): the same digest, signed where there is a key, figures where they are looked for.
    check_ci_files.py BUILD SOURCE        77: PyYAML or what makes Debian packages is not installed
"""
import glob, json, os, re, shutil, socket, subprocess, sys, tempfile, time, urllib.request, xml.etree.ElementTree

try:
    import yaml
except ImportError:
    print("PyYAML is not installed (Debian package python3-yaml): the CI files were not parsed")
    sys.exit(77)

if not shutil.which("dpkg-shlibdeps"):
    print("dpkg-shlibdeps is not installed (Debian package dpkg-dev): no Debian package was made, and the CI files were not run")
    sys.exit(77)

build, source = (os.path.abspath(path) for path in sys.argv[1:3])
work = tempfile.mkdtemp()
image, packages = os.path.join(work, "image"), os.path.join(work, "packages")  # the container's files, and what its first stage leaves
prefix = os.path.join(image, "usr")
TEXTS = ["LICENSE", "NOTICE", "/usr/share/doc/llmq/"]  # what an image copies, and where to
RECIPE = "version: 1\nmodel: {model}\noutput: out/model\nmethod: rtn\nevaluate: {{max_windows: 1, max_kl: 5}}\n"


def expect(met, what):
    print(("ok: " if met else "FAILED: ") + what)
    if not met:
        sys.exit(1)


def parsed(name):
    with open(os.path.join(source, "share", name)) as file:
        return yaml.safe_load(file)


def here(text):
    """The paths of the image, in this directory."""
    return text.replace("/usr/share/llmq", os.path.join(prefix, "share/llmq")).replace("/packages", packages)


def run(script, directory, environment):
    """A step, as a runner starts it: a shell that ends with the first failing command. What it printed."""
    path = {"PATH": os.path.join(prefix, "bin") + ":" + os.environ["PATH"], "HOME": work, "LLMQ_DIGEST_CACHE": ""}
    done = subprocess.run(["sh", "-e", "-c", here(script)], cwd=directory, env={**path, **environment}, capture_output=True, text=True)
    expect(done.returncode == 0, f"{os.path.basename(directory)}: {script.strip().splitlines()[-1]}" + (done.stderr if done.returncode else ""))
    return done.stdout + done.stderr


def place(name, model):
    directory = os.path.join(work, name)
    os.makedirs(directory)
    with open(os.path.join(directory, "job.yaml"), "w") as file:
        file.write(RECIPE.format(model=model))
    return directory


def check_gates(directory, summary, what):
    """The gates as test cases, and as a table on the run's page."""
    suite = xml.etree.ElementTree.parse(os.path.join(directory, "metrics/junit.xml")).getroot()
    expect([(case.get("name"), len(case.findall("failure"))) for case in suite.iter("testcase")] == [("max_kl", 0)], f"{what}: the gate is a test case")
    with open(summary) as file:
        expect(re.search(r"^\| max\\_kl \| \S+ \| 5 \| met \|$", file.read(), re.M) is not None, f"{what}: the summary has the gate in a table")


def check_action(model):
    """action.yml of the repository: its one step, run as GitHub's runner would."""
    directory = place("action", model)
    with open(os.path.join(source, "action.yml")) as file:
        action = yaml.safe_load(file)
    (step,) = action["runs"]["steps"]
    expect(action["runs"]["using"] == "composite" and "${{" not in step["run"], "action.yml: values reach the script by the environment")
    values = {name: given.get("default", "") for name, given in action["inputs"].items()}
    values.update({"recipe": "job.yaml", "sign-key": private_text})
    environment = {name: re.sub(r"\$\{\{ inputs\.(.*?) \}\}", lambda found: values[found[1]], text) for name, text in step["env"].items()}
    files = {name: os.path.join(directory, name) for name in ("summary", "outputs", "runner")}
    os.makedirs(files["runner"])
    printed = run(step["run"], directory, {"RUNNER_TEMP": files["runner"], "GITHUB_STEP_SUMMARY": files["summary"], "GITHUB_OUTPUT": files["outputs"],
                                           "GITHUB_ACTION_PATH": source, **environment})
    check_gates(directory, files["summary"], "action.yml")
    with open(files["outputs"]) as file:
        told = dict(line.rstrip("\n").split("=", 1) for line in file)
    expect(told["digest"] == digest(directory) and float(told["kl"]) < 5 and float(told["perplexity"]) > 1, f"action.yml: its outputs: {told}")
    expect(set(told) <= set(action["outputs"]), "action.yml: every output is declared")
    expect(verified(directory), "action.yml: the output is signed")
    expect(not os.listdir(files["runner"]) and private_text.splitlines()[1] not in printed, "action.yml: the key is removed and never printed")
    return digest(directory)


def digest(directory):
    for name in ("metrics.json", "llmq.prom"):
        expect(os.path.getsize(os.path.join(directory, "metrics", name)) > 0, f"{os.path.basename(directory)}: {name}")
    with open(os.path.join(directory, "metrics/quantize.json")) as file:
        return json.load(file)["digest"]


def verified(directory):
    return subprocess.run([os.path.join(prefix, "bin/llmq"), "verify", "out/model", "--key", public], cwd=directory, capture_output=True).returncode == 0


def instructions(name):
    """Of a Dockerfile: (word, rest) in order."""
    with open(os.path.join(source, "share", name)) as file:
        lines = [line.strip() for line in file if line.strip() and not line.startswith("#")]
    return [tuple(line.split(maxsplit=1)) for line in lines]


def check_dockerfile():
    """The first stage packs, here a finished build, and the second installs that package, which the rest of this file runs."""
    stages = [[]]
    for word, rest in instructions("docker/Dockerfile"):
        if word == "FROM" and stages[-1]:
            stages.append([])
        stages[-1].append((word, rest))
    expect(len(stages) == 2, "a Dockerfile of two stages")
    (built,) = [rest for word, rest in stages[0] if word == "RUN"]
    subprocess.run(["sh", "-e", "-c", here(built)], cwd=source, env={**os.environ, "BUILD": build}, check=True)
    texts, copied = sorted((rest.split() for word, rest in stages[1] if word == "COPY"), key=lambda words: words[0] == "--from=build")
    expect(copied[0] == "--from=build" and os.listdir(here(copied[1])), f"Dockerfile copies what the first stage left: {copied[1]}")
    (named,) = [re.search(r"apt-get install .*?(/\S+\.deb)", rest)[1] for word, rest in stages[1] if word == "RUN" and "apt-get install" in rest]
    (package,) = glob.glob(here(named))
    simulated = subprocess.run(["apt-get", "install", "-s", "--no-install-recommends", package], capture_output=True, text=True)
    expect(simulated.returncode == 0, "the last stage installs it, and Debian has what it depends on" + simulated.stderr)
    subprocess.run(["dpkg-deb", "-x", package, image], check=True)
    (program,) = [json.loads(rest)[0] for word, rest in stages[1] if word == "ENTRYPOINT"]
    expect(os.access(os.path.join(prefix, "bin", program), os.X_OK), f"the entry point {program} is installed")
    kept = open(os.path.join(prefix, "share/doc/llmq/copyright")).read()  # all that debian:bookworm-slim keeps of that folder
    expect(open(os.path.join(source, "NOTICE")).read() in kept and "common-licenses/Apache-2.0" in kept, "the package says NOTICE and names the licence")
    expect(texts == TEXTS and all(os.path.getsize(os.path.join(source, name)) for name in texts[:-1]), "the image has both texts themselves")


def check_github(model):
    directory = place("github", model)
    flow = parsed("ci/github-actions.yml")
    expect(set(flow) == {"name", True, "permissions", "concurrency", "jobs"}, "GitHub Actions: the keys of a workflow")  # YAML 1.1 reads `on` as true
    expect(flow[True]["workflow_dispatch"]["inputs"]["recipe"]["default"].endswith(".yaml"), "GitHub Actions: a recipe is asked for")
    (job,) = flow["jobs"].values()
    summary, temporary = os.path.join(directory, "summary"), os.path.join(directory, "runner")
    os.makedirs(temporary)
    values = {"inputs.recipe": "job.yaml", "secrets.LLMQ_SIGN_KEY": private_text, "secrets.LLMQ_KEY_PASSPHRASE": ""}
    value = lambda text: re.sub(r"\$\{\{ (.*?) \}\}", lambda found: values[found[1]], text)
    printed = ""
    for step in job["steps"]:
        expect(("uses" in step) != ("run" in step), f"GitHub Actions: a step uses or runs: {step.get('name', step.get('uses'))}")
        if "uses" in step:
            expect(re.fullmatch(r"actions/(checkout|upload-artifact)@v\d+", step["uses"]) is not None, f"GitHub Actions: {step['uses']}")
            continue
        environment = {name: value(text) for name, text in step.get("env", {}).items()}
        printed += run(value(step["run"]), directory, {"RUNNER_TEMP": temporary, "GITHUB_STEP_SUMMARY": summary, **environment})
    (uploaded,) = [step["with"]["path"] for step in job["steps"] if "with" in step]
    expect(os.path.isdir(os.path.join(directory, uploaded)), "GitHub Actions: what is uploaded is there")
    check_gates(directory, summary, "GitHub Actions")
    expect(verified(directory), "GitHub Actions: the output is signed")
    expect(not os.listdir(temporary) and private_text.splitlines()[1] not in printed, "GitHub Actions: the key is removed and never printed")
    return digest(directory)


def check_gitlab(model):
    directory = place("gitlab", model)
    pipeline = parsed("ci/gitlab-ci.yml")
    jobs = {name: job for name, job in pipeline.items() if name != "stages"}
    (job,) = jobs.values()
    expect(job["stage"] in pipeline["stages"], "GitLab CI: the job's stage is there")
    variables = {**job["variables"], "RECIPE": "job.yaml", "LLMQ_SIGN_KEY": private}
    run("\n".join(job["script"]), directory, variables)
    for path in job["artifacts"]["paths"] + list(job["artifacts"]["reports"].values()):
        expect(os.path.exists(os.path.join(directory, path)), f"GitLab CI: the artifact {path} is there")
    expect(verified(directory), "GitLab CI: the output is signed")
    return digest(directory)


def check_compose(model):
    directory = place("compose", "models/tiny")
    services = parsed("docker/compose.yaml")["services"]
    service = services.pop("quantize")
    inside = lambda path: path.replace("/work", directory)
    for volume in map(unset, service["volumes"]):
        origin, target = volume.removesuffix(":ro").split(":")
        expect(os.path.normpath(os.path.join(directory, origin)) == inside(target), f"compose: {volume} lies below the working directory")
        if not origin.endswith(".yaml"):
            os.makedirs(inside(target))
    shutil.copytree(model, os.path.join(directory, "models/tiny"))
    dockerfile = os.path.join(source, "share/docker", service["build"]["context"], service["build"]["dockerfile"])
    expect(os.path.exists(dockerfile), "compose: builds from a Dockerfile that is there")
    environment = {name: inside(unset(text)) for name, text in service["environment"].items()}
    run(" ".join(service["entrypoint"]), inside(service["working_dir"]), environment)
    shutil.copytree(model, os.path.join(directory, "models/model"))
    for name, server in services.items():
        check_server(name, server, service["build"], directory)
    expect(set(services) == {"baseline", "quantized", "speculation", "prefix_cache", "all"}, "compose: the five configurations")
    return digest(directory)


def unset(text):
    """With none of the variables set."""
    return re.sub(r"\$\{(\w+):-(.*?)\}", lambda found: found[2], text)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


def check_server(name, service, built, directory):
    """A server of the compose file, started as it says but for its port: healthy, and what its configuration has, by its own counters, and nothing else."""
    expect(service["profiles"] == [name] and service["build"] == built, f"compose: {name} has a profile of its own and the one image")
    port = free_port()
    here_port = lambda text: unset(text).replace("8000", port).replace("$$", "$")
    expect(here_port(service["ports"][0]) == f"127.0.0.1:{port}:{port}", f"compose: {name} is offered to this machine alone")
    command = [here_port(word) for word in service["command"]]
    with subprocess.Popen([os.path.join(prefix, "bin/llmq"), *command, "--quiet"], cwd=directory, stdout=subprocess.DEVNULL) as server:
        try:
            test = [here_port(word) for word in service["healthcheck"]["test"]]
            expect(test[0] == "CMD", f"compose: {name}'s health is asked by a command")
            for _ in range(600):
                healthy = subprocess.run(test[1:], capture_output=True).returncode == 0
                if healthy or server.poll() is not None:
                    break
                time.sleep(0.1)
            expect(healthy, f"compose: {name} is healthy")
            body = json.dumps({"model": os.path.basename(command[1]), "prompt": "One day a little girl saw a big red ball. " * 4, "max_tokens": 24, "temperature": 0, "ignore_eos": True})
            for _ in range(2):
                request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", body.encode(), {"Content-Type": "application/json"})
                with urllib.request.urlopen(request, timeout=60) as answer:
                    expect(json.load(answer)["usage"]["completion_tokens"] == 24, f"compose: {name} answers")
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as page:
                counters = dict(re.findall(r"^llmq_(\w+){.*} (\S+)$", page.read().decode(), re.M))
            expect((float(counters["prefix_cache_hits_total"]) > 0) == (name in ("prefix_cache", "all")), f"compose: {name}: the prefix cache")
            expect((float(counters["spec_decode_num_draft_tokens_total"]) > 0) == (name in ("speculation", "all")), f"compose: {name}: speculation")
        finally:
            server.terminate()
        expect(server.wait() == 0, f"compose: {name} ends when it is told")
    expect(os.path.samefile(os.path.join(directory, command[1]), os.path.join(directory, "models/model" if name == "baseline" else "out/model")), f"compose: {name}: the model")


def pods(document):
    """The specification of every pod in it."""
    if isinstance(document, dict) and "containers" in document:
        yield document
    for inner in document.values() if isinstance(document, dict) else document if isinstance(document, list) else []:
        yield from pods(inner)


def launched(script, starter, environment, *words):
    """What a script gives to the launcher, of which a stand-in says its words."""
    directory = os.path.join(work, starter)
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, starter), "w") as file:
        file.write('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    os.chmod(os.path.join(directory, starter), 0o755)
    script = os.path.join(source, "share/launchers", script)
    return subprocess.run(["sh", script, *words], env={"PATH": directory + ":" + os.environ["PATH"], **environment}, capture_output=True, text=True, check=True).stdout.split()


def check_launchers(model):
    """As many ranks as nodes, started with words that the program takes, in one image by the user that it has, over one volume and the ssh that it is set up for."""
    directory = place("launchers", model)
    made = dict.fromkeys(("FROM", "RUN"), "")
    for word, rest in instructions("docker/Dockerfile.mpi"):
        made[word] = made.get(word, "") + rest + "\n"
    expect(" ".join(TEXTS) in made["COPY"].splitlines(), "Dockerfile.mpi: the image has LICENSE and NOTICE")
    expect("libllmq_mpi.so /usr/lib/llmq/" in made["RUN"], "Dockerfile.mpi: the plug-in lies where /usr/bin/llmq looks for it")
    with open(os.path.join(source, "share/launchers/trainjob.yaml")) as file:
        runtime, train = yaml.safe_load_all(file)
    job = parsed("launchers/mpijob.yaml")
    expect((job["apiVersion"], job["kind"]) == ("kubeflow.org/v2beta1", "MPIJob"), "MPIJob v2beta1")
    expect({runtime["apiVersion"], train["apiVersion"]} == {"trainer.kubeflow.org/v1alpha1"} and train["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"], "TrainJob of its runtime")
    replicas, policy = job["spec"]["mpiReplicaSpecs"], runtime["spec"]["mlPolicy"]
    launcher = replicas["Launcher"]["template"]["spec"]["containers"][0]["command"]
    trainer = train["spec"]["trainer"]["command"] + train["spec"]["trainer"]["args"]
    for name, words, nodes, keys in (("MPIJob", launcher, replicas["Worker"]["replicas"], job["spec"]["sshAuthMountPath"]), ("TrainJob", trainer, policy["numNodes"], policy["mpi"]["sshAuthMountPath"])):
        expect(words[:3] == ["mpirun", "-n", str(nodes)], f"{name}: a rank on each of its {nodes} nodes")
        run(" ".join(words[words.index("llmq"):] + ["--dry-run"]), directory, {})
        expect(f"HostKey {keys}/id_rsa" in made["RUN"], f"{name}: its keys lie where the image's sshd looks")
    expect(train["spec"]["trainer"]["numNodes"] == policy["numNodes"], "TrainJob: as many nodes as its runtime")
    for pod in list(pods(job)) + list(pods(runtime)):
        (container,), (volume,) = pod["containers"], pod["volumes"]
        expect(container["image"] == "llmq-mpi" and f"--uid {pod['securityContext']['runAsUser']} " in made["RUN"], "a pod runs the image as its user")
        expect(container["volumeMounts"] == [{"name": volume["name"], "mountPath": container["workingDir"]}] and "persistentVolumeClaim" in volume, "a pod works on the one volume")
        if "sshd" in container.get("command", [""])[0]:
            expect(container["command"][-1] in made["RUN"], "a node's sshd has its settings")
    words = ["quantize", "--recipe", "job.yaml"]
    expect(launched("slurm.sh", "srun", {"SLURM_CPUS_ON_NODE": "16"}, *words) == ["--mpi=pmix", "--kill-on-bad-exit=1", "--cpus-per-task=16", "llmq", *words], "slurm.sh")
    expect(launched("mpirun.sh", "mpirun", {"HOSTS": "a,b"}, *words) == ["--host", "a,b", "--map-by", "ppr:1:node", "--bind-to", "none", "llmq", *words], "mpirun.sh")


try:
    check_dockerfile()
    for name in ("ci/quantize.sh", "ci/github-actions.yml", "ci/gitlab-ci.yml"):
        with open(os.path.join(source, "share", name)) as a, open(os.path.join(prefix, "share/llmq", name)) as b:
            expect(a.read() == b.read(), f"{name} is installed as it is")
    private, public = os.path.join(work, "signer.pem"), os.path.join(work, "signer.pub.pem")
    subprocess.run(["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", private], check=True)
    subprocess.run(["openssl", "ec", "-in", private, "-pubout", "-out", public], check=True, capture_output=True)
    with open(private) as file:
        private_text = file.read()
    tiny = os.path.join(source, "tests/models/tinystories-656k")
    shell = place("shell", tiny)
    run(f"sh {source}/share/ci/quantize.sh", shell, {"RECIPE": "job.yaml"})
    wanted = digest(shell)
    check_launchers(tiny)
    for check in (check_github, check_action, check_gitlab, check_compose):
        expect(check(tiny) == wanted, f"{check.__name__[6:]}: the digest of the shell form")
finally:
    shutil.rmtree(work)
