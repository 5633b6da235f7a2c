#!/usr/bin/env bash
# The CPU stack (docker-compose.yaml and docker-compose.cpu.yaml): build it, start it, ask it, stop it. With
# Docker where its engine answers, else with podman and podman-compose.
#   cpu-stack.sh engine            which of the two; status 3 and the reason where there is neither
#   cpu-stack.sh build             build the images
#   cpu-stack.sh up SERVICE…       start, return once each is healthy
#   cpu-stack.sh again SERVICE     replace this service's container, and leave the others
#   cpu-stack.sh health SERVICE    run its health check now: 0 if it is healthy
#   cpu-stack.sh container SERVICE the running container's id
#   cpu-stack.sh down              stop and remove containers, networks and volumes
# OVERLAYS names more compose files. GOURMET_BUILD names a command to use in place of `docker build`.
# COMPOSE_PROJECT_NAME keeps two stacks apart. WAIT_S is how long a service may take to become healthy (180).
set -euo pipefail
cd "$(dirname "$0")/../.."
export COMPOSE_PROJECT_NAME=${COMPOSE_PROJECT_NAME:-gourmetgram}
WAIT_S=${WAIT_S:-180}
# requirements/dev.txt brings podman-compose.
PATH=$PATH:$PWD/.venv/bin

find_engine() {
    if docker info >/dev/null 2>&1 && docker compose version >/dev/null 2>&1; then
        echo docker
    elif command -v podman >/dev/null && command -v podman-compose >/dev/null; then
        echo podman
    else
        echo "no containers here: start a Docker engine with the compose plugin, or install podman and podman-compose" >&2
        exit 3
    fi
}

compose() {
    local options=(-f docker-compose.yaml -f docker-compose.cpu.yaml) overlay
    for overlay in ${OVERLAYS:-}; do options+=(-f "$overlay"); done
    if [ "$engine" = docker ]; then docker compose "${options[@]}" "$@"; else podman-compose "${options[@]}" "$@"; fi
}

build() {
    if [ -z "${GOURMET_BUILD:-}" ]; then
        compose build
        return
    fi
    local part
    for part in triton-cpu flask jupyter; do
        $GOURMET_BUILD -f "Dockerfile.$part" -t "gourmetgram-$part" .
    done
}

down() {
    compose down --volumes --timeout 15
}

container() {
    "$engine" ps -q --filter "label=com.docker.compose.project=$COMPOSE_PROJECT_NAME" \
        --filter "label=com.docker.compose.service=$1"
}

health() {
    if [ "$engine" = podman ]; then
        podman healthcheck run "$(container "$1")"
    else
        [ "$(docker inspect --format '{{.State.Health.Status}}' "$(container "$1")")" = healthy ]
    fi
}

up() {
    if [ "$engine" = docker ]; then
        compose up -d --no-build --wait --wait-timeout "$WAIT_S" "$@"
        return
    fi
    # podman leaves it to systemd to run health checks; where there is none, they are run here.
    local service
    for service in "$@"; do
        # Without a note of who needs whom, with which podman puts no new container in the place of one that others need.
        compose up -d --no-build --no-deps "$service"
        SECONDS=0
        until health "$service" >/dev/null 2>&1; do
            if ((SECONDS > WAIT_S)); then
                echo "$service is not healthy after $WAIT_S s:" >&2
                podman exec "$(container "$service")" true || true # where nothing runs, no check can
                podman inspect --format '{{range .State.Health.Log}}{{println .Output}}{{end}}' "$(container "$service")" >&2
                podman logs --tail 20 "$(container "$service")" >&2
                exit 1
            fi
            sleep 1
        done
        echo "$service is healthy after $SECONDS s"
    done
}

again() {
    if [ "$engine" = docker ]; then
        compose up -d --no-build --no-deps --force-recreate "$1"
    else
        podman rm -f -t 15 "$(container "$1")" >/dev/null
        compose up -d --no-build --no-deps "$1"
    fi
}

case ${1:-} in
    engine) find_engine ;;
    build | up | again | health | container | down)
        engine=$(find_engine)
        "$@"
        ;;
    *)
        sed -n '2,/^set -/s/^# \{0,1\}//p' "$0"
        exit 2
        ;;
esac
