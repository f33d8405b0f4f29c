#!/usr/bin/env bash
# Runs a command on a worker of a Cloud TPU slice. tpu_vm.sh calls it over ssh:
#
#   worker.sh start COMMAND...   stops an earlier command, and starts this one, independent of ssh
#   worker.sh state              prints the exit code of the command, or `running`, or `dead` if it
#                                has vanished without an exit code, as in a reboot
#
# Its output is appended to ~/log.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
# The command has a session of its own, whose number is that of its first process. After a reboot,
# another session may have this number, so it counts only together with the identity of the boot.
boot=$(cat /proc/sys/kernel/random/boot_id)
{ read -r booted session <~/session; } 2>/dev/null || session=
# Zombies are left out: their exit has yet to be noticed by their parent, but they run no more.
running() { [[ $session && $booted == "$boot" ]] && pgrep --session "$session" --runstates DIRST >/dev/null; }

case ${1:-} in
  start)
    [[ $# -gt 1 ]] || { echo "${0##*/}: start: which command?" >&2; exit 2; }
    if running; then
      # until_done.sh, the child of the first process, passes SIGTERM on, and the run saves its
      # state. It has two minutes for that, which is twice the default of --config.train.grace.
      pkill -TERM --parent "$session" || true
      for ((second = 0; second < 120; second++)); do
        running || break
        sleep 1
      done
      pkill -KILL --session "$session" || true
    fi
    rm -f ~/exit_code
    # The installed python comes first in PATH.
    # shellcheck disable=SC2016  # the inner shell expands it
    PATH=$PWD/.venv/bin:$PATH setsid bash -c '"$@"; echo $? >~/exit_code' - \
      launch/until_done.sh "${@:2}" >>~/log 2>&1 </dev/null &
    echo "$boot $!" >~/session
    ;;
  state)
    # In this order, because a command that no longer runs has written its exit code, if it ever
    # does.
    if running; then
      echo running
    else
      cat ~/exit_code 2>/dev/null || echo dead
    fi
    ;;
  *)
    echo "usage: ${0##*/} start COMMAND... | state" >&2
    exit 2
    ;;
esac
