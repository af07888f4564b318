"""The files for CI fit their systems' own schemas, and other programs read what llmq writes for CI and for clusters.   ci_files.py LLMQ

check-jsonschema holds action.yml and share/ci against the schemas of GitHub and GitLab that it brings; junitparser reads the gates of two evaluations,
one met and one missed; skopeo and umoci (Debian packages) read and unpack an image of `llmq pack --image`, and every file comes out as it was. Needs
check-jsonschema 0.39.0 and junitparser 5.0.3 in $LLMQ_PEERS/ci. Where they are missing the script says so and leaves with 77.
"""
import filecmp, json, os, pathlib, shutil, subprocess, sys, tempfile

llmq = os.path.abspath(sys.argv[1])
source = pathlib.Path(__file__).resolve().parents[3]
tools = pathlib.Path(os.environ.get("LLMQ_PEERS", os.path.expanduser("~/.cache/llmq-peers"))) / "ci" / "bin"
model = source / "tests/models/tinystories-656k"
skipped = []


def run(*words, code=0):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode != code:
        sys.exit(f"FAILED: {' '.join(map(str, words))}: exit code {done.returncode}, not {code}\n{done.stdout}{done.stderr}")
    return done.stdout


def schemas():
    for schema, file in (("vendor.github-actions", "action.yml"), ("vendor.github-workflows", "share/ci/github-actions.yml"), ("vendor.gitlab-ci", "share/ci/gitlab-ci.yml")):
        run(tools / "check-jsonschema", "--builtin-schema", schema, source / file)
        print(f"ok: {file} fits {schema}")


def junit(work):
    script = "import junitparser, json, sys; xml = junitparser.JUnitXml.fromfile(sys.argv[1]); print(json.dumps([[case.name, [type(one).__name__ for one in case.result]] for suite in xml for case in suite]))"
    for limit, code, result in (("9", 0, []), ("1", 3, ["Failure"])):
        run(llmq, "eval-ppl", model, "--max-windows", "1", "--max-ppl", "1e9" if code == 0 else limit, "--junit", work / "gates.xml", "--quiet", code=code)
        found = json.loads(run(tools / "python", "-c", script, work / "gates.xml"))
        if found != [["max-ppl", result]]:
            sys.exit(f"FAILED: junitparser reads {found}")
    print("ok: junitparser reads the gates, met and missed")


def image(work):
    run(llmq, "quantize", "--model", model, "--method", "rtn", "--output", work / "model", "--quiet")
    run(llmq, "pack", work / "model", "--oci", work / "image", "--image", "--tag", "v1")
    if shutil.which("skopeo"):
        said = json.loads(run("skopeo", "inspect", f"oci:{work}/image:v1"))
        if len(said["Layers"]) != len(os.listdir(work / "model")):
            sys.exit(f"FAILED: skopeo finds {said['Layers']}")
        run("skopeo", "copy", "--insecure-policy", f"oci:{work}/image:v1", f"dir:{work}/copied")
        print("ok: skopeo reads and copies the image")
    else:
        skipped.append("skopeo")
    if not shutil.which("umoci"):
        skipped.append("umoci")
        return
    run("umoci", "unpack", "--rootless", "--image", f"{work}/image:v1", work / "bundle")
    found = filecmp.dircmp(work / "model", work / "bundle/rootfs/models")
    if found.left_only or found.right_only or found.diff_files or filecmp.cmpfiles(work / "model", work / "bundle/rootfs/models", found.common_files, shallow=False)[1]:
        sys.exit("FAILED: umoci unpacks other files")
    print("ok: umoci unpacks every file as it was")


if not (tools / "check-jsonschema").exists():
    print(f"SKIPPED: no {tools}; make the environment and install check-jsonschema==0.39.0 and junitparser==5.0.3")
    sys.exit(77)
with tempfile.TemporaryDirectory() as directory:
    schemas()
    junit(pathlib.Path(directory))
    image(pathlib.Path(directory))
if skipped:
    print(f"SKIPPED in part: {' and '.join(skipped)} (Debian) not installed")
