#!/usr/bin/env bash
# The steps of share/docker without a container engine: what the build stage installs runs the job that the compose file
# starts, in a directory of its own, and the last stage lists every library the program needs.
#   check_container.sh BUILD SOURCE
set -euo pipefail
build=$1; source=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

BUILD=$build "$source/share/docker/build.sh" "$source" "$work/usr/local" >/dev/null
for file in LICENSE NOTICE; do cmp "$source/$file" "$work/usr/local/share/doc/llmq/$file"; done

# Each library's package is in the list, is what C++ itself needs, or is wanted by one that is in the list.
listed=" $(LIST_ONLY=1 "$source/share/docker/runtime.sh") libc6 libstdc++6 libgcc-s1 "
if command -v dpkg-query >/dev/null; then
  while read -r library; do
    path=$(ldd "$work/usr/local/bin/llmq" | sed -n "s|^\t\($library => \)\?\(/.*$library\) (.*|\2|p")  # the loader itself stands without an arrow
    package=$( (dpkg-query -S "$path" || dpkg-query -S "/usr$path") 2>/dev/null | head -n 1 | cut -d : -f 1)
    [ -n "$package" ] || continue
    [[ "$listed" == *" $package "* ]] || { echo "runtime.sh does not install $package, which has $library"; exit 1; }
  done < <(readelf -d "$work/usr/local/bin/llmq" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
fi

# As compose.yaml runs it: the working directory has models, the recipe, and places for outputs and figures.
mkdir -p "$work/work/models" "$work/work/out" "$work/work/metrics"
cp -r "$source/tests/models/tinystories-656k" "$work/work/models/tiny"
cat >"$work/work/job.yaml" <<RECIPE
version: 1
model: models/tiny
output: out/tiny-rtn
method: rtn
RECIPE
cd "$work/work"
entrypoint=$(sed -n 's|^ *entrypoint: \["sh", "/usr/local/\(.*\)"\]$|\1|p' "$source/share/docker/compose.yaml")
PATH=$work/usr/local/bin:$PATH RECIPE=job.yaml METRICS_DIR=$PWD/metrics LLMQ_DIGEST_CACHE="" sh "$work/usr/local/$entrypoint"
for file in out/tiny-rtn/model.safetensors out/tiny-rtn/manifest.json metrics/metrics.json metrics/llmq.prom; do
  [ -s "$file" ] || { echo "the job left no $file"; exit 1; }
done
